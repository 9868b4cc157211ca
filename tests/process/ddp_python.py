"""Writes by torch.distributed what ddp_peer.cpp's `beside_python` does: ddp_python.py FOLDER WORLD.

The ranks are forks of one process, before any thread of PyTorch's. Every rank computes for
itself what one process must compute with the whole batch (clip_grad_norm_ over all parameters,
batch normalisation; PyTorch's SyncBatchNorm takes no tensors on CPUs).
"""

import array
import math
import os
import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.nn.parallel import DistributedDataParallel

FOLDER, WORLD = sys.argv[1], int(sys.argv[2])


def numbers(shape, start, dtype):
    count = math.prod(shape)
    return (torch.arange(count, dtype=torch.float64) * 0.7 + start).sin().mul(0.5).reshape(
        shape).to(dtype)


def set_numbers(network, dtype):
    network.to(dtype)
    with torch.no_grad():
        for start, parameter in enumerate(network.parameters(), 1):
            parameter.copy_(numbers(parameter.shape, start, dtype))
    return network


def make_network(dtype):
    return set_numbers(nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3)), dtype)


def inputs_of(step, rank, dtype):
    return numbers((4, 6), 100 + 10 * step + rank, dtype)


def loss_of(outputs):
    return outputs.pow(2).mean()


class Written:
    def __init__(self, name, dtype, rank):
        self.file = open(f"{FOLDER}/{name}.{str(dtype)[6:]}.{rank}", "wb")

    def add(self, tensor):
        array.array("d", tensor.detach().double().flatten().tolist()).tofile(self.file)

    def add_network(self, network):
        for parameter in network.parameters():
            self.add(torch.full((1,), -77.0) if parameter.grad is None else parameter.grad)
            self.add(parameter)


def accumulate(rank, dtype, out):
    network = make_network(dtype)
    model = DistributedDataParallel(network)
    optimizer = torch.optim.SGD(network.parameters(), 0.5, momentum=0.9)
    for step in range(4):
        optimizer.zero_grad()
        with model.no_sync():
            for micro in range(2):
                loss_of(model(inputs_of(step + 20 * micro + 20, rank, dtype))).backward()
        loss_of(model(inputs_of(step, rank, dtype))).backward()
        optimizer.step()
    out.add_network(network)


class Branches(nn.Module):
    def __init__(self):
        super().__init__()
        self.trunk = nn.Linear(6, 4)
        self.left = nn.Linear(4, 4)
        self.right = nn.Linear(4, 4)
        self.never = nn.Linear(4, 4)

    def forward(self, inputs, branch):
        hidden = torch.tanh(self.trunk(inputs))
        return [self.left, self.right, nn.Identity()][branch](hidden)


def unused(rank, dtype, out):
    network = set_numbers(Branches(), dtype)
    model = DistributedDataParallel(network, find_unused_parameters=True)
    optimizer = torch.optim.SGD(network.parameters(), 0.5)
    for step in range(6):
        optimizer.zero_grad()
        branch = (rank % 2, 0, 2 if rank == 1 else 1)[step % 3]
        loss_of(model(inputs_of(step, rank, dtype), branch)).backward()
        optimizer.step()
    out.add_network(network)


def uneven(by_initial):
    def run(rank, dtype, out):
        network = set_numbers(
            nn.Sequential(nn.Linear(6, 4), nn.BatchNorm1d(4), nn.Linear(4, 3)), dtype)
        model = DistributedDataParallel(network)
        optimizer = torch.optim.SGD(network.parameters(), 0.1)
        with model.join(divide_by_initial_world_size=by_initial):
            for step in range(2 + 2 * rank):
                optimizer.zero_grad()
                loss_of(model(inputs_of(step, rank, dtype))).backward()
                optimizer.step()
        for tensor in (*network.parameters(), *network.buffers()):
            out.add(tensor)
    return run


def compress(hook):
    def run(rank, dtype, out):
        network = make_network(dtype)
        model = DistributedDataParallel(network)
        # By another name: the one for bfloat16 wants NCCL.
        model.register_comm_hook(None, lambda state, bucket: hook(state, bucket))
        optimizer = torch.optim.SGD(network.parameters(), 0.5)
        for step in range(3):
            optimizer.zero_grad()
            loss_of(model(inputs_of(step, rank, dtype))).backward()
            optimizer.step()
        out.add_network(network)
    return run


def clip(norm_type):
    def run(rank, dtype, out):
        parameters = []
        for other in range(WORLD):
            for i in range(2):
                parameters.append(torch.zeros(5, dtype=dtype, requires_grad=True))
                parameters[-1].grad = numbers((5,), 10 * other + i, dtype)
        norm = nn.utils.clip_grad_norm_(parameters, 0.5, norm_type)
        out.add(norm)
        out.add(parameters[2 * rank].grad)
        out.add(parameters[2 * rank + 1].grad)
        out.add(norm)
        out.add(parameters[-1].grad)
    return run


def sync_batch_norm(rank, dtype, out):
    counts = [0 if other == 2 else 5 + 3 * other for other in range(WORLD)]
    count = sum(counts)
    network = set_numbers(nn.Sequential(
        nn.BatchNorm2d(3, momentum=0.3), nn.Conv2d(3, 4, 2), nn.BatchNorm2d(4, momentum=None),
        nn.Tanh(), nn.Conv2d(4, 2, 1), nn.BatchNorm2d(2, affine=False)), dtype)
    optimizer = torch.optim.SGD(network.parameters(), 0.001)
    for step in range(3):
        optimizer.zero_grad()
        whole = numbers((count, 3, 4, 4), 50 + step, dtype).add(1).requires_grad_()
        outputs = network(whole)
        weights = torch.cat([
            numbers((own, *outputs.shape[1:]), 0, dtype) + 0.1 * sum(counts[:other])
            for other, own in enumerate(counts)]) * 0.3
        ((outputs * weights).pow(2).sum() / (18 * count)).backward()
        optimizer.step()
        out.add(whole.grad)
        out.add_network(network)
    for buffer in network.buffers():
        out.add(buffer)
    network.eval()
    out.add(network(numbers((3, 3, 4, 4), 9, dtype)))


def run_rank(rank):
    torch.set_num_threads(1)
    dist.init_process_group("gloo", store=dist.FileStore(f"{FOLDER}/store", WORLD), rank=rank,
                            world_size=WORLD)
    scenarios = {
        "accumulate": accumulate, "unused": unused, "join": uneven(True),
        "join_by_active": uneven(False), "clip": clip(2.0), "clip_max": clip(math.inf),
        "float16": compress(default_hooks.fp16_compress_hook),
        "bfloat16": compress(default_hooks.bf16_compress_hook),
        "sync_batch_norm": sync_batch_norm,
    }
    for dtype in (torch.float64, torch.float32):
        for name, scenario in scenarios.items():
            out = Written(name, dtype, rank)
            scenario(rank, dtype, out)
            out.file.close()
    dist.barrier()
    dist.destroy_process_group()


def main():
    children = []
    for rank in range(WORLD):
        child = os.fork()
        if child == 0:
            run_rank(rank)
            sys.stdout.flush()
            os._exit(0)
        children.append(child)
    codes = [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]
    return 1 if any(codes) else 0


if __name__ == "__main__":
    sys.exit(main())
