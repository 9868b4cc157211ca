"""A training of PyTorch on GPUs as a user writes it, which dies where it is told to.

usage: python_training.py FOLDER STEPS, started by ddprun. FOLDER gets the newest checkpoint.

$DEATHS has a word for each generation, RANK@STEP or RANK@STEP+: that rank kills itself when it has
launched the collectives of the step, or when it has done the step and not yet saved it. $SLOW is
how many seconds rank 1 sleeps in each step. Says "parameters" and a hash of all values at the end.
"""

import hashlib
import os
import signal
import sys
import time

import ddprun
import torch
import torch.distributed as dist
from torch import nn

BATCH, WIDTH = 8, 16


def hash_of(model):
    digest = hashlib.sha256()
    for value in model.state_dict().values():
        digest.update(value.cpu().numpy().tobytes())
    return digest.hexdigest()[:16]


def die_at(worker, step, is_done):
    deaths = os.environ.get("DEATHS", "").split()
    if worker.generation <= len(deaths):
        rank, _, when = deaths[worker.generation - 1].partition("@")
        if (worker.rank, f"{step}{'+' * is_done}") == (int(rank), when):
            os.kill(os.getpid(), signal.SIGKILL)


def save(path, **state):
    torch.save(state, path + ".partial")
    os.replace(path + ".partial", path)


def main():
    folder, steps = sys.argv[1], int(sys.argv[2])
    path = os.path.join(folder, "newest.pt")
    worker = ddprun.worker()
    torch.set_num_threads(1)
    torch.manual_seed(1)
    torch.cuda.set_device(worker.local_rank)
    dist.init_process_group("nccl")
    model = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.ReLU(), nn.Linear(WIDTH, 1)).cuda()
    optimizer = torch.optim.Adam(model.parameters())
    step = 0
    if os.path.exists(path):
        saved = torch.load(path, map_location="cuda", weights_only=True)
        model.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        step = saved["step"]
        if worker.rank == 0:
            print("resumed after step", step, flush=True)
    network = nn.parallel.DistributedDataParallel(model)
    while step < steps:
        step += 1
        dice = torch.Generator().manual_seed(step * worker.world_size + worker.rank)
        batch = torch.randn(BATCH, WIDTH, generator=dice).cuda()
        if worker.rank == 1:
            time.sleep(float(os.environ.get("SLOW", 0)))
        optimizer.zero_grad()
        loss = network(batch).square().mean()
        loss.backward()
        die_at(worker, step, is_done=False)
        optimizer.step()
        dist.all_reduce(loss)
        worker.progress(step, samples=BATCH, loss=loss.item() / worker.world_size)
        die_at(worker, step, is_done=True)
        if worker.rank == 0:
            save(path, step=step, model=model.state_dict(), optimizer=optimizer.state_dict())
            print("step", step, flush=True)
        if worker.stop_requested():
            print("rank", worker.rank, "leaves after step", step, flush=True)
            worker.leave()
    if worker.rank == 0:
        print("parameters", hash_of(model), flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
