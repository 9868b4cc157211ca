#!/usr/bin/env python3
"""Data parallelism and sharded optimizers: the worker runtime beside PyTorch, in alternating runs.

sharded_rank.cpp and sharded_peer.py train the same network, with the same initial weights and
batches, and one thread per rank. A run of ddprun's engine, then one of PyTorch's: samples a second,
and by how much the memory of the largest rank has grown at its peak, from before the network is
built. The losses of all steps must agree to 1e-6; the bench asserts nothing else.
"""

import argparse
import os
import subprocess
import sys

from job import PATIENCE_S, say, start_ranks
from report import Table

HERE = os.path.dirname(os.path.abspath(__file__))
ENGINES = {"ddp": ("DistributedDataParallel", "DistributedDataParallel"),
           "zero1": ("ShardedOptimizer, overlaps_gather", "ZeroRedundancyOptimizer"),
           "zero2": ("ShardedOptimizer, shards_gradients and overlaps_gather",
                     "fully_shard(reshard_after_forward=False)")}
PEERS = ("ddprun", "PyTorch")


def train(command, world, log):
    """The losses, samples a second and MiB of each rank of one training."""
    ranks = start_ranks(command, world, stdout=subprocess.PIPE, stderr=log, text=True)
    try:
        texts = [rank.communicate(timeout=PATIENCE_S * 10)[0] for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
            rank.wait()
    if any(rank.returncode for rank in ranks):
        raise RuntimeError(f"{' '.join(command)} has failed")
    said = []
    for text in texts:
        values = {}
        for name, value in map(str.split, text.splitlines()):
            values.setdefault(name, []).append(float(value))
        said.append(values)
    return said


class Bench:
    def __init__(self, arguments):
        self.arguments = arguments
        self.table = Table(PEERS)
        self.log = os.path.join(os.path.dirname(os.path.abspath(arguments.json)),
                                "failed-console.log")
        self.loads = []
        self.commands = {
            "ddprun": [os.path.join(arguments.build, "tests", "sharded_rank")],
            "PyTorch": [arguments.python, os.path.join(HERE, "sharded_peer.py")]}

    def measure(self, engine, world):
        mebibytes, steps = self.arguments.mebibytes, self.arguments.steps
        label = f"{' / '.join(dict.fromkeys(ENGINES[engine]))}, {world} ranks"
        largest = 0
        for run in range(self.arguments.runs):
            say(f"{label}: run {run + 1} of {self.arguments.runs}")
            losses = {}
            for name in PEERS:
                self.loads.append(os.getloadavg()[0])
                with open(self.log, "ab") as log:
                    ranks = train([*self.commands[name], engine, str(mebibytes), str(steps)],
                                  world, log)
                losses[name] = [rank["loss"] for rank in ranks]
                self.table.add(f"{label}: training", "samples/s", "ratio >= 1.0", name,
                               [min(rank["rate"][0] for rank in ranks)], more_is_better=True)
                self.table.add(f"{label}: memory of a rank for {mebibytes} MiB of parameters",
                               "MiB", "ratio >= 1.0", name,
                               [max(rank["memory"][0] for rank in ranks)])
            largest = max(largest, *(abs(ours - theirs) / abs(theirs)
                                     for rank in zip(*(losses[name] for name in PEERS))
                                     for ours, theirs in zip(*rank)))
        if largest > 1e-6:
            raise RuntimeError(f"{label}: the losses differ by {largest:.1e} of their values")
        say(f"{label}: the losses differ by {largest:.1e} of their values at most")


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=5, help="of each engine and world")
    parser.add_argument("--mebibytes", type=int, default=64, help="of parameters, float32")
    parser.add_argument("--steps", type=int, default=100, help="that are measured")
    parser.add_argument("--ranks", type=int, action="append", metavar="N", help="2 and 4")
    parser.add_argument("--only", action="append", metavar="ENGINE", choices=ENGINES)
    parser.add_argument("--build", default="build/release", help="where sharded_rank was built")
    parser.add_argument("--python", default=".venv/bin/python", help="one that has PyTorch")
    parser.add_argument("--json", default="build/bench/sharded.json")
    arguments = parser.parse_args()
    os.makedirs(os.path.dirname(os.path.abspath(arguments.json)), exist_ok=True)
    bench = Bench(arguments)
    for world in arguments.ranks or [2, 4]:
        for engine in arguments.only or ENGINES:
            bench.measure(engine, world)
            bench.table.write_json(arguments.json, {
                "bench": "sharded", "runs": arguments.runs, "mebibytes": arguments.mebibytes,
                "steps": arguments.steps, "load_averages": bench.loads})
    print(bench.table.text())
    say(f"load average {min(bench.loads):.1f} to {max(bench.loads):.1f}")
    say(f"samples are in {arguments.json}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
