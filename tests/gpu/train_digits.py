#!/usr/bin/env python3
"""Does in Python what examples/train_digits does: only for its images a second."""

import argparse
import os
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DistributedSampler

DATA = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "examples",
                    "train_digits", "data", "optdigits.csv")
BATCH = 32


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--checkpoint-dir", help="where the parameters of each epoch go")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(1)
    rank, local_rank = int(os.environ["RANK"]), int(os.environ["LOCAL_RANK"])
    device = torch.device("cuda", local_rank) if torch.cuda.is_available() else torch.device("cpu")
    if device.type == "cuda":
        torch.cuda.set_device(device)
    dist.init_process_group("nccl" if device.type == "cuda" else "gloo")

    with open(DATA, encoding="utf-8") as file:
        rows = torch.tensor([[int(field) for field in line.split(",")] for line in file])
    count = len(rows) * 4 // 5
    images = (rows[:count, :64] / 16).float().reshape(-1, 1, 8, 8)
    labels = rows[:count, 64]
    model = nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.Conv2d(16, 32, 3, padding=1), nn.ReLU(),
        nn.MaxPool2d(2), nn.Flatten(), nn.Linear(32 * 4 * 4, 64), nn.ReLU(),
        nn.Linear(64, 10)).to(device)
    network = DistributedDataParallel(model)
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
    sampler = DistributedSampler(range(count), seed=1)
    for epoch in range(1, arguments.epochs + 1):
        started = time.monotonic()
        sampler.set_epoch(epoch)
        order = torch.tensor(list(sampler))
        network.train()
        for batch in order.split(BATCH):
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(network(images[batch].to(device)),
                                               labels[batch].to(device))
            loss.backward()
            optimizer.step()
            loss.item()  # as the other does
        rate = len(order) * dist.get_world_size() / (time.monotonic() - started)
        if rank == 0:
            print(f"epoch {epoch}/{arguments.epochs}: {rate:.0f} images/s", flush=True)
            torch.save(model.state_dict(), os.path.join(arguments.checkpoint_dir, "newest.pt"))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
