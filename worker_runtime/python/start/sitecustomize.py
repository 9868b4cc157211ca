"""Runs inside `site`, before the program, in a Python that ddprun starts; leaves nothing behind.

The agent puts this folder before PYTHONPATH. The work is done by ddprun_start. The installed
sitecustomize, if there is one, takes this one's place. Any Python may come here, so this file is in
words that Python 2 knows, too.
"""

import os
import sys


def _take_out(folder):
    """As if the agent had not put `folder` into PYTHONPATH; "/" at its end: that was empty."""
    sys.path[:] = [one for one in sys.path if one.rstrip("/") != folder]
    sys.modules.pop("sitecustomize", None)
    entries = os.environ.get("PYTHONPATH", "").split(":")
    others = [one for one in entries if one.rstrip("/") != folder]
    if others or entries == [folder + "/"]:
        os.environ["PYTHONPATH"] = ":".join(others)
    else:
        os.environ.pop("PYTHONPATH", None)


def _begin():
    this = sys.modules["sitecustomize"]  # Python 2 takes a module down with its last name.
    folder = os.path.dirname(this.__file__)
    if sys.version_info < (3, 8):
        _take_out(folder)
        os.environ.pop("DDPRUN_IMPORTS", None)
        if "DDPRUN_STANDBY" in os.environ:
            os._exit(1)
        import sitecustomize  # noqa: F401
        return
    modules = set(sys.modules)
    writes_no_bytecode = sys.dont_write_bytecode
    sys.dont_write_bytecode = True  # The folder may be another user's, or be removed.
    try:
        import ddprun_start
    finally:
        sys.dont_write_bytecode = writes_no_bytecode
    _take_out(folder)
    ddprun_start.begin(folder, modules)


_begin()
