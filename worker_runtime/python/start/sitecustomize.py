"""Runs inside `site`, before the program, in a Python that ddprun starts; leaves nothing behind.

The agent puts this folder before PYTHONPATH. Its part is done by ddprun_start. The installed
sitecustomize, if there is one, takes this one's place.
"""

import sys


def _begin():
    folder = __spec__.origin.rpartition("/")[0]
    modules = set(sys.modules)
    writes_no_bytecode = sys.dont_write_bytecode
    sys.dont_write_bytecode = True  # The folder may be another user's, or be removed.
    try:
        import ddprun_start
    finally:
        sys.dont_write_bytecode = writes_no_bytecode
    ddprun_start.begin(folder, modules)


_begin()
