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

__all__ = ["EXIT_LEFT_WHEN_ASKED", "Worker", "worker"]

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
