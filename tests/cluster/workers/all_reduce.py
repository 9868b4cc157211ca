"""Sums all ranks with Gloo. In the first attempt rank 1 fails when all have told the sum."""

import os
import sys

import torch
import torch.distributed as dist


def say(text):
    """In one piece: the other workers write to the same console."""
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


dist.init_process_group("gloo")
store = dist.distributed_c10d._get_default_store()
while isinstance(store, dist.PrefixStore):  # PyTorch has one for each attempt
    store = store.underlying_store
say(f"calls of others: {store.add('calls', 1) > dist.get_world_size()}")
total = torch.ones(1) * dist.get_rank()
dist.all_reduce(total)
attempt = os.environ["TORCHELASTIC_RESTART_COUNT"]
say(f"sum {int(total)} of {dist.get_world_size()} attempt={attempt} "
    f"at={os.environ['MASTER_ADDR']}:{os.environ['MASTER_PORT']}")
dist.barrier()
if attempt == "0" and dist.get_rank() == 1:
    sys.exit(17)
dist.barrier()
dist.destroy_process_group()
