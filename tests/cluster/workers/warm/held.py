"""Programs of warm_programs.py report these facts to that test, beside their own work.

Each reports whether its process was a standby. In the first generation the ranks wait after the
step at which the test kills one of them. In the second one they report what they find after their
first step, and what each of their imports has found.
"""

import contextlib
import json
import os
import signal

import recorder

HELD_AT = 3  # in steps, or what a program counts

with open("/proc/self/environ", "rb") as _file:
    _was_standby = any(one.startswith(b"DDPRUN_STANDBY=") for one in _file.read().split(b"\0"))
_restarts, _rank = os.environ["TORCHELASTIC_RESTART_COUNT"], os.environ["RANK"]
# A process that multiprocessing has spawned comes here again.
with contextlib.suppress(FileExistsError), open(
        os.path.join(os.environ["OUT"], f"{_restarts}.{_rank}"), "x", encoding="ascii") as _file:
    _file.write("warm" if _was_standby else "cold")


def _tell_found():
    # In one piece, once: a process that multiprocessing has forked comes here, too.
    path = os.path.join(os.environ["OUT"], f"{_restarts}.{_rank}.json")
    with contextlib.suppress(FileExistsError), open(path, "x", encoding="utf-8") as file:
        json.dump({"step": recorder.seen(recorder.OF_GENERATION), "imports": recorder.noted}, file)


def after(step):
    """All of this step is done, on this rank: its checkpoint is written."""
    if _restarts == "1":
        _tell_found()
    if step == HELD_AT and _restarts == "0":
        with open(os.environ["TOLD"], "w", encoding="ascii") as told:
            told.write(f"{_rank} {os.getpid()}\n")
        while True:
            signal.pause()
