"""kept_training.cpp in Python: the same arguments, the same lines.

$KEPT_LIBRARY names ddprun-checkpoint.so.
"""

import hashlib
import os
import sys

os.environ["DDPRUN_CHECKPOINT_LIBRARY"] = os.environ["KEPT_LIBRARY"]

import ddprun  # noqa: E402
import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402
from torch.distributed.optim import ZeroRedundancyOptimizer  # noqa: E402
from torch.nn.parallel import DistributedDataParallel  # noqa: E402


def say(line):
    print(line, flush=True)


def train(folder, steps, disk_every, fifo):
    worker = ddprun.worker()
    checkpoints = ddprun.Checkpoints(folder, disk_every=disk_every)
    leave = os.open(fifo, os.O_RDWR) if fifo and worker.rank == 0 else None
    dist.init_process_group("gloo")
    torch.set_num_threads(1)
    torch.manual_seed(11 + worker.rank)
    # 32 MiB and their momentum: large enough for all ranks to write a share.
    network = torch.nn.Sequential(torch.nn.Linear(2048, 2048), torch.nn.BatchNorm1d(2048),
                                  torch.nn.Linear(2048, 2048))
    model = DistributedDataParallel(network)
    if "KEPT_SHARDED" in os.environ:
        optimizer = ZeroRedundancyOptimizer(model.parameters(), torch.optim.SGD, lr=0.01,
                                            momentum=0.9)
    else:
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    things = {"model": model, "optimizer": optimizer}
    say(f"rank {worker.rank} of {worker.world_size} is {os.getpid()}")
    done = checkpoints.resume(**things)

    def say_first(line):
        if worker.rank == 0:
            say(line)

    say_first("begins" if done is None else f"resumed {done}")
    for step in range((done or 0) + 1, steps + 1):
        if leave is not None:
            os.read(leave, 1)
        optimizer.zero_grad()
        model(torch.randn(4, 2048)).square().mean().backward()
        optimizer.step()
        worker.progress(step)
        say_first(f"trained {step}")
        saving = checkpoints.save_async(step, **things)
        say_first(f"asked {step}")
        try:
            saving.wait()
            say_first(f"kept {step}")
        except ddprun.CheckpointError as error:
            say_first(f"missed {step}: {error}")
    values = b"".join(parameter.detach().numpy().tobytes() for parameter in network.parameters())
    say_first("parameters " + hashlib.sha256(values).hexdigest())
    dist.destroy_process_group()


train(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4] if len(sys.argv) > 4 else "")
