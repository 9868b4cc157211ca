"""Sums all ranks with Gloo. In the first attempt rank 1 fails when all have the sum."""

import os
import sys

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
store = dist.distributed_c10d._get_default_store()
while isinstance(store, dist.PrefixStore):  # PyTorch has one for each attempt
    store = store.underlying_store
print("calls of others:", store.add("calls", 1) > dist.get_world_size(), flush=True)
total = torch.ones(1) * dist.get_rank()
dist.all_reduce(total)
dist.barrier()
attempt = os.environ["TORCHELASTIC_RESTART_COUNT"]
print(f"sum {int(total)} of {dist.get_world_size()} attempt={attempt} "
      f"at={os.environ['MASTER_ADDR']}:{os.environ['MASTER_PORT']}", flush=True)
if attempt == "0" and dist.get_rank() == 1:
    sys.exit(17)
dist.barrier()
dist.destroy_process_group()
