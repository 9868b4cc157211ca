"""A training of PyTorch on GPUs as a user writes it, which dies where it is told to.

usage: python_training.py FOLDER STEPS, started by ddprun. FOLDER gets the checkpoints.

Batches are random numbers of the CPU, Dropout's are the GPU's: the parameters depend on both.

$DEATHS has a word for each generation, RANK@STEP or RANK@STEP+: that rank kills itself when it has
launched the collectives of the step, or when it has done the step and not yet saved it. $SLOW is
how many seconds rank 1 sleeps in each step. $VERIFY is the step after which the ranks verify that
a resume loses nothing. Says "parameters" and a hash of all values at the end.
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


def main():
    folder, steps = sys.argv[1], int(sys.argv[2])
    worker = ddprun.worker()
    torch.set_num_threads(1)
    torch.cuda.set_device(worker.local_rank)
    checkpoints = ddprun.Checkpoints(folder)
    dist.init_process_group("nccl")
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.ReLU(), nn.BatchNorm1d(WIDTH), nn.Dropout(),
                          nn.Linear(WIDTH, 1)).cuda()
    optimizer = torch.optim.Adam(model.parameters())
    things = {"model": model, "optimizer": optimizer}
    torch.manual_seed(2 + worker.rank)
    step, saving = checkpoints.resume(**things) or 0, None
    if step and worker.rank == 0:
        print("resumed after step", step, flush=True)
    network = nn.parallel.DistributedDataParallel(model)
    while step < steps:
        step += 1
        batch = torch.randn(BATCH, WIDTH).cuda()
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
        if step == int(os.environ.get("VERIFY", 0)):
            ddprun.verify_resume(network, optimizer)
        saving = checkpoints.save_async(step, **things)
        if worker.rank == 0:
            print("step", step, flush=True)
        if worker.stop_requested():
            saving.wait()
            print("rank", worker.rank, "leaves after step", step, flush=True)
            worker.leave()
    if saving is not None:
        saving.wait()
    if worker.rank == 0:
        print("parameters", hash_of(model), flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
