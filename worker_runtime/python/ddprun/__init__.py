"""The interface between ddprun and a training program in Python.

    import ddprun
    worker = ddprun.worker()
    for step, batch in enumerate(loader, start):
        ...
        worker.progress(step, samples=len(batch), loss=value)
        if worker.stop_requested():      # the same answer on every rank, at the same step
            save()
            worker.leave()               # exit code 75: left when asked

Outside ddprun all of it works: a world of one (or torchrun's), and no stop is ever requested.
Importing this package imports nothing else, installs nothing and changes no signal.
"""

from __future__ import annotations

from ddprun._worker import EXIT_LEFT_WHEN_ASKED, Worker

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ddprun._library import CheckpointError
    from ddprun._saves import Checkpoints
    from ddprun._verify import verify_resume

__all__ = ["EXIT_LEFT_WHEN_ASKED", "CheckpointError", "Checkpoints", "Worker", "verify_resume",
           "worker"]

# Imported when they are asked for: they import torch.
_LATE = {"CheckpointError": "ddprun._library", "Checkpoints": "ddprun._saves",
         "verify_resume": "ddprun._verify"}

_the_worker: Worker | None = None


def worker() -> Worker:
    """This process as a worker; every call gives the same object.

    The first call reads the environment, maps the page shared with the agent, and notes the time
    in it as the start of the program: call it early. A page that cannot be used is one line on
    stderr; a stop then comes as a signal.

    Raises ValueError, naming the variable, if ddprun's environment is incomplete or a number in
    it is none.
    """
    global _the_worker
    if _the_worker is None:
        import os

        _the_worker = Worker(os.environ)
    return _the_worker


def __getattr__(name: str) -> object:
    if name not in _LATE:
        raise AttributeError(f"module 'ddprun' has no attribute {name!r}")
    import importlib

    return getattr(importlib.import_module(_LATE[name]), name)
