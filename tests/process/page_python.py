"""The worker of page_python.cpp: usage: page_python.py PAGE asks|silent"""

import os
import sys

ROOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..")
sys.path.insert(0, os.path.join(ROOT, "worker_runtime", "python"))

import ddprun  # noqa: E402

worker = ddprun.Worker({
    "RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "3",
    "GROUP_RANK": "0", "GROUP_WORLD_SIZE": "1", "TORCHELASTIC_RESTART_COUNT": "0",
    "TORCHELASTIC_RUN_ID": "page", "DDPRUN_GENERATION": "7", "DDPRUN_SLOT": "1",
    "DDPRUN_START_REASON": "", "DDPRUN_PAGE": sys.argv[1],
})
worker.group_ready()
worker.resumed()
worker.checkpoints_in("/data/checkpoints")
worker._page.tell_save_asked(False)
worker._page.tell_save_begun(4812)
worker._page.tell_save_stalled(12_000_000)
worker._page.tell_save_ended(1 << 40, 3)
worker._page.tell_save_begun(4813)
worker._page.tell_save_stalled(12_000_000)
worker._page.tell_save_ended(None, 0, "the disk is “full”")
if sys.argv[2] == "silent":
    worker.progress(4812)
else:
    worker.progress(1, samples=32, loss=0.5)
    worker.progress(2, samples=16, loss=0.25)
    if worker.stop_requested() and worker.stop_deadline() is not None:
        worker.leave()
