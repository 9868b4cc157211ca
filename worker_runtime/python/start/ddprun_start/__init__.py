"""Prepares a Python that ddprun starts, while `site` runs and before the program does.

sitecustomize.py calls begin(). A standby waits here for its place. A cold worker takes the lock by
which its death is noticed, and reports to the agent what its program imports. Then sys.path,
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
    """`modules` were in sys.modules before this one.

    Raises what `import sitecustomize` raises without this folder, mostly that there is none.
    """
    for name in sys.modules.keys() - modules:
        del sys.modules[name]
    for path in [path for path in sys.path_importer_cache if path.startswith(folder)]:
        del sys.path_importer_cache[path]
    # A worker leads a session. Its children do, too, but have none of these variables.
    is_worker = os.getsid(0) == os.getpid()
    if "DDPRUN_STANDBY" in os.environ:
        if not is_worker:
            os._exit(1)  # A wrapper's own program: nothing tells it from the wrapped one.
        standby.wait()
        return
    if os.environ.get("DDPRUN_PAGE") and is_worker:
        life.hold()
    learner = imports.prepare() if "DDPRUN_IMPORTS" in os.environ else None
    try:
        import sitecustomize  # noqa: F401
    finally:
        if learner is not None and is_worker:
            learner.begin()
