"""A program of PyTorch that lets its model go while a checkpoint of it is being copied.

usage: python_dropped.py FOLDER, started by ddprun. FOLDER gets the checkpoint. Fails unless the
checkpoint has what the model was. $DDPRUN_FAKE_GPU_TASK_DELAY_US makes the copies take a while.
"""

import sys

import ddprun
import torch
import torch.distributed as dist
from torch import nn

LAYERS, WIDTH = 20, 16


def main():
    worker = ddprun.worker()
    torch.cuda.set_device(worker.local_rank)
    checkpoints = ddprun.Checkpoints(sys.argv[1])
    dist.init_process_group("nccl")
    model = nn.Sequential(*(nn.Linear(WIDTH, WIDTH) for _ in range(LAYERS))).cuda()
    for parameter in model.parameters():
        dist.broadcast(parameter.data, 0)
    optimizer = torch.optim.SGD(model.parameters())
    expected = {name: value.cpu() for name, value in model.state_dict().items()}
    saving = checkpoints.save_async(1, model=model, optimizer=optimizer)
    del parameter, optimizer
    while len(model):
        del model[-1]  # The last one is copied last.
    saving.wait()

    model = nn.Sequential(*(nn.Linear(WIDTH, WIDTH) for _ in range(LAYERS))).cuda()
    checkpoints.resume(model=model, optimizer=torch.optim.SGD(model.parameters()))
    lost = [name for name, value in model.state_dict().items()
            if not torch.equal(value.cpu(), expected[name])]
    dist.destroy_process_group()
    if lost:
        sys.exit(f"rank {worker.rank}: not saved as they were: {lost}")


if __name__ == "__main__":
    main()
