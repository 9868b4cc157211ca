"""What ddprun does in a Python that it starts, while `site` runs and before the program does.

sitecustomize.py calls begin(). A standby waits here for its place. A cold worker takes the lock by
which its death is noticed, and tells the agent what its program imports. Afterwards sys.path,
sys.path_importer_cache, sys.modules, os.environ and the installed sitecustomize are those of a
Python that ddprun has not started.
"""

from __future__ import annotations

import os
import sys

if "DDPRUN_STANDBY" in os.environ:
    from ddprun_start import standby
elif "DDPRUN_IMPORTS" in os.environ:
    from ddprun_start import imports, life
else:
    from ddprun_start import life


def begin(folder: str, modules: set[str]) -> None:
    """`modules` were there before this one.

    Raises what `import sitecustomize` raises without this folder, mostly that there is none.
    """
    _take_out(folder)
    for name in sys.modules.keys() - modules:
        del sys.modules[name]
    for path in [path for path in sys.path_importer_cache if path.startswith(folder)]:
        del sys.path_importer_cache[path]
    if "DDPRUN_STANDBY" in os.environ:
        standby.wait()
        return
    # Its own children lead a session, too, but have none of these variables.
    if os.environ.get("DDPRUN_PAGE") and os.getsid(0) == os.getpid():
        life.hold()
    learner = imports.prepare() if "DDPRUN_IMPORTS" in os.environ else None
    try:
        import sitecustomize  # noqa: F401
    finally:
        if learner is not None:
            learner.begin()


def _take_out(folder: str) -> None:
    """As if the agent had not put `folder` before PYTHONPATH; "/" at its end: that was empty."""
    sys.path[:] = [one for one in sys.path if one.rstrip("/") != folder]
    sys.modules.pop("sitecustomize", None)
    own, colon, others = os.environ["PYTHONPATH"].partition(":")
    if colon or own.endswith("/"):
        os.environ["PYTHONPATH"] = others
    else:
        del os.environ["PYTHONPATH"]
