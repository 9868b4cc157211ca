"""Sums over all ranks, step by step, until it is asked to leave, and says after which step.

usage: asks_each_step.py [--init URL] [--steps N] [--dies-after N] [--aborts-after N]
       [--destroys] [--raises-after N [--lingers]]
"""

import argparse
import os
import sys

import torch
import torch.distributed as dist

import ddprun


def say(text):
    """In one piece: the other workers write to the same console."""
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


parser = argparse.ArgumentParser()
parser.add_argument("--init", default="env://")
parser.add_argument("--steps", type=int, help="ends with 0 after so many")
parser.add_argument("--dies-after", type=int, help="steps of rank 1, which then is gone")
parser.add_argument("--aborts-after", type=int, help="steps of rank 1, by SIGABRT")
parser.add_argument("--destroys", action="store_true", help="its process group before it leaves")
parser.add_argument("--raises-after", type=int,
                    help="steps of rank 1; rank 0 reads stdin before it asks")
parser.add_argument("--lingers", action="store_true", help="it reads stdin before it is gone")
arguments = parser.parse_args()


class Lingers:
    """In the interpreter's last moments, when no other thread may run Python any more."""

    def __init__(self):
        self._read, self._write = os.read, os.write

    def __del__(self):
        self._write(1, b"is taken down\n")
        self._read(0, 1)


torch.set_num_threads(1)
worker = ddprun.worker()
dist.init_process_group("gloo", init_method=arguments.init, rank=worker.rank,
                        world_size=worker.world_size)
worker.group_ready()
say(f"generation {worker.generation} restarts {worker.restart_count} "
    f"reason '{worker.start_reason}'")
step = 0
while step != arguments.steps:
    # Not by one that raises: Gloo's thread may not have let go of the tensor yet when the
    # interpreter is taken down, and torch aborts then, whichever code has made the call.
    if arguments.dies_after is None and arguments.raises_after is None:
        dist.all_reduce(torch.ones(1))
    elif step == arguments.dies_after and worker.rank == 1:
        os._exit(0)
    if step == arguments.aborts_after and worker.rank == 1:
        os.abort()
    step += 1
    worker.progress(step, samples=32, loss=1 / step)
    if step == arguments.raises_after and worker.rank == 0:
        os.read(0, 1)
    if worker.stop_requested():
        say(f"rank {worker.rank} leaves after step {step}, "
            f"deadline {worker.stop_deadline() is not None}")
        if arguments.destroys:
            dist.destroy_process_group()
        worker.leave()
    if step == arguments.raises_after and worker.rank == 1:
        lingers = Lingers() if arguments.lingers else None
        raise RuntimeError("as it was told to")
    if step == 3:
        say(f"rank {worker.rank} trains")
say(f"rank {worker.rank} is done")
