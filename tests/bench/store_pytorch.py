"""PyTorch's own store server in a process of its own: says its port, serves until input ends."""

import resource
import sys

from torch.distributed import TCPStore

_, most = resource.getrlimit(resource.RLIMIT_NOFILE)
resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False, use_libuv=True)
print(store.port, flush=True)
sys.stdin.buffer.read()
