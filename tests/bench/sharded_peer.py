"""One rank of PyTorch's engines for `scripts/bench.sh sharded`.

usage: sharded_peer.py ddp|zero1|zero2 MEBIBYTES STEPS

Trains and prints as sharded_rank.cpp does.
"""

import sys
import time

import torch
import torch.distributed as dist
from torch.distributed.fsdp import fully_shard
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn.parallel import DistributedDataParallel

WIDTH = 1024
BATCH = 32
STEPS_BEFORE = 5


def layers(mebibytes):
    torch.manual_seed(1)
    network = torch.nn.Sequential()
    for _ in range(mebibytes * (1 << 20) // (4 * WIDTH * WIDTH)):
        network.append(torch.nn.Linear(WIDTH, WIDTH))
        network.append(torch.nn.Tanh())
    return network


def status_kib(name):
    with open("/proc/self/status", encoding="ascii") as status:
        for line in status:
            if line.startswith(name + ":"):
                return int(line.split()[1])
    raise RuntimeError(f"{name} is not in /proc/self/status")


def model_of(engine, network):
    if engine != "zero2":
        return DistributedDataParallel(network)
    # Gathered parameters are kept, so that gradients and state alone are shared out.
    for layer in network:
        if isinstance(layer, torch.nn.Linear):
            fully_shard(layer, reshard_after_forward=False)
    return fully_shard(network, reshard_after_forward=False)


def optimizer_of(engine, network):
    if engine in ("ddp", "zero2"):
        return torch.optim.AdamW(network.parameters(), 1e-4, fused=True)
    if engine == "zero1":
        return ZeroRedundancyOptimizer(network.parameters(), torch.optim.AdamW, lr=1e-4,
                                       fused=True)
    raise RuntimeError(f"no engine {engine}")


def main():
    engine, mebibytes, steps = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    with open("/proc/self/clear_refs", "w", encoding="ascii") as peak:
        peak.write("5")
    before = status_kib("VmRSS")
    network = layers(mebibytes)
    model = model_of(engine, network)
    optimizer = optimizer_of(engine, network)
    begin = 0
    for step in range(STEPS_BEFORE + steps):
        if step == STEPS_BEFORE:
            dist.barrier()
            begin = time.perf_counter()
        torch.manual_seed(1000 * step + dist.get_rank())
        inputs = torch.randn(BATCH, WIDTH)
        optimizer.zero_grad()
        loss = (model(inputs) - inputs).pow(2).mean()
        loss.backward()
        optimizer.step()
        print(f"loss {loss.item():.17g}")
    dist.barrier()
    print("rate", BATCH * steps * dist.get_world_size() / (time.perf_counter() - begin))
    print("memory", (status_kib("VmHWM") - before) / 1024)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
