"""The processes below another one."""

import contextlib
import os


def descendants(pid):
    """Numbers of the processes that came from `pid`, parents first; some may have ended."""
    found = []
    tasks = []
    with contextlib.suppress(OSError):  # It has ended, and so may each of its threads.
        tasks = os.listdir(f"/proc/{pid}/task")
    for task in tasks:
        children = []
        with contextlib.suppress(OSError), \
                open(f"/proc/{pid}/task/{task}/children", encoding="ascii") as file:
            children = [int(child) for child in file.read().split()]
        for child in children:
            found += [child, *descendants(child)]
    return found
