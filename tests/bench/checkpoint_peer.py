"""One rank of PyTorch's own checkpoints for `scripts/bench.sh checkpoint`.

usage: checkpoint_peer.py MEBIBYTES

Reads commands, one line each: COMMAND MULTIPLICATIONS PATH. Carries a command out once all ranks
have read it, and answers as checkpoint_rank.cpp does, in seconds: the stall, the time until the
disk has everything, the computation meanwhile, CPU.
"""

import os
import resource
import sys
import time
import warnings

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.staging import DefaultStager, StagingOptions

WIDTH = 2048
LAYER_BYTES = 2 * 4 * WIDTH * WIDTH  # parameters and momentum
MATRIX = torch.rand(512, 512)


class Training:
    """Linear layers and SGD with momentum, as in checkpoint_rank.cpp."""

    def __init__(self, size):
        torch.manual_seed(1)
        self.model = torch.nn.Sequential(*(torch.nn.Linear(WIDTH, WIDTH, bias=False)
                                           for _ in range(size // LAYER_BYTES)))
        self.optimizer = torch.optim.SGD(self.model.parameters(), 1e-6, momentum=0.9)
        self.model(torch.rand(1, WIDTH)).sum().backward()
        self.optimizer.step()
        self.optimizer.zero_grad()

    def state(self):
        return {"model": self.model.state_dict(), "optimizer": self.optimizer.state_dict()}

    def put_back(self, stored):
        """Copies into the training's tensors, which is cheaper than load_state_dict()."""
        for name, tensor in self.model.state_dict().items():
            tensor.copy_(stored["model"][name])
        for index, own in self.optimizer.state_dict()["state"].items():
            own["momentum_buffer"].copy_(stored["optimizer"]["state"][index]["momentum_buffer"])


class Times:
    def __init__(self):
        self.begin = time.perf_counter()
        self.stall = self.durable = self.work = 0.0

    def passed(self):
        return time.perf_counter() - self.begin


class Rank:
    def __init__(self, size):
        self.training = Training(size)
        self.rank = int(os.environ.get("RANK", "0"))
        self.group = None
        if int(os.environ.get("WORLD_SIZE", "1")) > 1:
            dist.init_process_group("gloo")
            self.group = dist.new_group(backend="gloo")  # for saves beside the training
        self.stager = DefaultStager(StagingOptions(
            use_pinned_memory=False, use_shared_memory=False, use_async_staging=True,
            use_non_blocking_copy=False))

    def compute(self, multiplications, _path):
        times = Times()
        for _ in range(multiplications):
            torch.matmul(MATRIX, MATRIX)
        times.work = times.passed()
        return times

    def torch_save(self, _multiplications, path):
        """Rank 0 writes one file with everything, as data-parallel trainings do."""
        times = Times()
        if self.rank == 0:
            torch.save(self.training.state(), path)
            times.stall = times.passed()
            with open(path, "rb") as file:
                os.fsync(file.fileno())
        times.durable = times.passed()
        return times

    def dcp_save(self, _multiplications, path):
        times = Times()
        dcp.save(self.training.state(), checkpoint_id=path)
        times.stall = times.durable = times.passed()
        return times

    def async_save(self, multiplications, path, stager=None):
        times = Times()
        saved = dcp.async_save(self.training.state(), checkpoint_id=path, async_stager=stager,
                               process_group=self.group)
        times.stall = times.passed()
        before = time.perf_counter()
        for _ in range(multiplications):
            torch.matmul(MATRIX, MATRIX)
        ready = time.perf_counter()
        times.work = ready - before
        if stager is not None:
            saved.staging_completion.result()
            times.stall += time.perf_counter() - ready
            saved = saved.upload_completion
        saved.result()
        times.durable = times.passed()
        return times

    def async_save_staged(self, multiplications, path):
        """Keeps the copies' memory and copies on a thread, which is not PyTorch's default."""
        return self.async_save(multiplications, path, self.stager)

    def load(self, path, **how):
        first = next(self.training.model.parameters()).detach().zero_()
        times = Times()
        if path.endswith(".pt"):
            self.training.put_back(torch.load(path, **how))
        else:
            dcp.load(self.training.state(), checkpoint_id=path)
        times.stall = times.passed()
        if not first.count_nonzero():
            raise SystemExit("what was saved does not come back")
        return times

    def torch_load(self, _multiplications, path):
        return self.load(path)

    def torch_load_mapped(self, _multiplications, path):
        return self.load(path, mmap=True)

    def dcp_load(self, _multiplications, path):
        return self.load(path)


def cpu_seconds():
    use = resource.getrusage(resource.RUSAGE_SELF)
    return use.ru_utime + use.ru_stime


def main():
    warnings.simplefilter("ignore")
    rank = Rank(int(sys.argv[1]) << 20)
    for line in sys.stdin:
        command, multiplications, path = line.split()
        if dist.is_initialized():
            dist.barrier()
        before = cpu_seconds()
        times = getattr(rank, command)(int(multiplications), path)
        print(times.stall, times.durable, times.work, cpu_seconds() - before, flush=True)
    if dist.is_initialized():
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
