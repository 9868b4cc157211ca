"""Which modules a worker imports by itself: its node's standbys import them beforehand.

zz_ddprun.pth calls begin() while `site` runs, in one cold worker of a node. What is said is in
worker_runtime/python/README.md.
"""

from __future__ import annotations

import sys

# The program may put others into `os`.
from posix import O_CLOEXEC, O_NONBLOCK, O_WRONLY, close, getpid, open, write

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import ModuleType

_VARIABLE = "DDPRUN_IMPORTS"
_NAME_BYTES_MAX = 1024  # below PIPE_BUF: a name comes in one piece


class _Told:
    """A finder that finds nothing, but tells the agent the names that it is asked for.

    What an installed module imports in turn is left out, for whoever imports that gets it too.
    """

    def __init__(self, path: str, installed: tuple[str, ...]) -> None:
        self.path = path
        self.installed = installed
        self.pid = getpid()
        self.last = ""  # The module whose import was told last,
        self.is_installed: bool | None = None  # and whether it is no part of the program.

    def find_spec(self, name: str, path: object = None, target: ModuleType | None = None) -> None:
        spec = getattr(sys.modules.get(self.last), "__spec__", None)
        if getattr(spec, "_initializing", False):
            if self.is_installed is None:
                origin = str(getattr(spec, "origin", None))
                self.is_installed = origin.startswith(self.installed)
            if self.is_installed:
                return
        # Others only ask whether there is such a module, as importlib.util.find_spec() does.
        if sys._getframe(2).f_code.co_name != "_find_and_load_unlocked" or getpid() != self.pid:
            return
        self.last, self.is_installed = name, None
        text = name.encode("utf-8", "replace") + b"\n"
        if self.path and len(text) <= _NAME_BYTES_MAX:
            try:
                # Nothing stays open: a program may close all descriptors, and then use their
                # numbers.
                file = open(self.path, O_WRONLY | O_NONBLOCK | O_CLOEXEC)
                try:
                    write(file, text)
                finally:
                    close(file)
            except OSError:
                self.path = ""


def begin() -> None:
    """From now on what the program imports is told. Whatever goes wrong, it is not, and no more."""
    try:
        import os

        path = os.environ.pop(_VARIABLE)
        for name in [name for name in sys.modules if name.partition(".")[0] == "ddprun"]:
            del sys.modules[name]
        sys.meta_path.insert(0, _Told(path, installed_folders()))
    except Exception:
        pass


def installed_folders() -> tuple[str, ...]:
    """Where what is no part of a program lies: the standard library and site-packages.

    A folder of that name in sys.path is one, too: clusters' modules name theirs in PYTHONPATH.
    """
    import os

    site = sys.modules["site"]
    found = [os.path.dirname(os.__file__), *site.getsitepackages(
        list(dict.fromkeys((sys.prefix, sys.exec_prefix, sys.base_prefix, sys.base_exec_prefix))))]
    user = getattr(site, "USER_SITE", None)
    if user and site.ENABLE_USER_SITE:
        found.append(user)
    found += [folder for folder in sys.path
              if os.path.basename(folder) in ("site-packages", "dist-packages")]
    folders = [folder + os.sep for folder in found]
    return tuple(dict.fromkeys(
        ["built-in", "frozen", *folders, *(os.path.realpath(one) + os.sep for one in folders)]))
