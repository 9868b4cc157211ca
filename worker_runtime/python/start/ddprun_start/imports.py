"""A cold worker reports to the agent what its program imports, for the standbys of the next one.

A module is told if it is installed and something else than an installed module that is being
imported asks for it. With it goes the State in which the import began, if the program has changed
something since the last one that was told. A change that a standby cannot make ends it, with a
reason. The lines are in worker_runtime/python/INTERNALS.md.
"""

from __future__ import annotations

import os
import sys

# The program may put others into `os`.
from posix import O_CLOEXEC, O_NONBLOCK, O_WRONLY, close, getpid, open, write

import _frozen_importlib
import _imp
import _thread
from _io import open as io_open

from ddprun_start.state import (MAIN, SEEDED_BY_ITSELF, Conditions, Modules, NoText, State,
                                changed_numbers, drawn_numbers, is_of, spec_of)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_VARIABLE = "DDPRUN_IMPORTS"
_LINE_BYTES_MAX = 4096  # PIPE_BUF: a line comes in one piece
_HIDDEN: frozenset[bytes] = frozenset()
_HASH_KEY = 1
_REASON_MAX = 400


class _Stop(Exception):
    """A standby cannot take this on: a text for people."""


def prepare() -> Learner | None:
    """Takes the variable out of the environment. Returns None if nothing can be told."""
    path = os.environ.pop(_VARIABLE)
    try:
        import_own()
    except ImportError:
        return None  # A Python without these can be no standby.
    return Learner(path) if path else None


class Learner:
    """Stands before importlib's _find_and_load(), which each import calls that finds no module.

    So neither sys.meta_path nor a module differs from those of a worker that reports nothing.
    """

    def __init__(self, path: str) -> None:
        self.path = path
        self.pid = getpid()
        self.thread = _thread.get_ident()
        self.within = False  # an installed module that is told, when its import is over
        self.find_and_load = _frozen_importlib._find_and_load
        self.stand_in = self._find_and_load

    def begin(self) -> None:
        """The program comes next, or usercustomize and then the program."""
        try:
            self._start()
            _frozen_importlib._find_and_load = self.stand_in
        except Exception:
            pass  # Nothing is told, and workers start cold.

    def _start(self) -> None:
        self.installed = installed_folders()
        self.start = self.last = State(_HIDDEN)
        self.conditions = Conditions({})
        self.modules: Any = Modules(self.installed)
        self.numbers = drawn_numbers({}, SEEDED_BY_ITSELF)
        self.seeded: set[str] = set()  # by the program, or it has drawn from them
        self.ignored = ""

    def end(self, why: str = "") -> None:
        if _frozen_importlib._find_and_load is self.stand_in:
            _frozen_importlib._find_and_load = self.find_and_load
        if why and self.path:
            self._write("stops " + why[:_REASON_MAX])
        self.path = ""
        self.modules = None  # it holds what the program may have replaced

    def _find_and_load(self, name: str, import_: Any) -> Any:
        try:
            if (self.within or not self.path or getpid() != self.pid or
                    _thread.get_ident() != self.thread):
                return self.find_and_load(name, import_)
            if name == "usercustomize" and "usercustomize" not in sys.modules:
                self.within = True  # Its imports and changes are not the program's.
                try:
                    return self.find_and_load(name, import_)
                finally:
                    self.within = False
                    self._start()
            return self._look_and_load(name, import_)
        except BaseException as error:
            leave_out_of_traceback(error)
            raise

    def _look_and_load(self, name: str, import_: Any) -> Any:
        """Imports, and reports it if it is installed. Its own failures end the reports alone."""
        # Of a part of a program's package it would be the whole import that is checked.
        top = name.partition(".")[0]
        if top not in sys.modules and not self._knows_finders():
            # The program's finder is asked once, as in a worker that reports nothing.
            module = self.find_and_load(name, import_)
            if is_of(spec_of(sys.modules.get(top)), self.installed):
                self.end("{} the program has changed sys.meta_path".format(name))
            return module
        try:
            spec = _frozen_importlib._find_spec(top, None) if top not in sys.modules else (
                spec_of(sys.modules[top]))
            is_installed = is_of(spec, self.installed)
        except Exception:
            is_installed = False
        if not is_installed:
            return self.find_and_load(name, import_)
        look: Any = None
        self.within = True
        try:
            try:
                look = _Look(self, name)
                self._tell_begin(name)
            except _Stop as stop:
                self.end("{} {}".format(name, stop))
            except Exception as error:
                self.end("{} {}".format(name, type(error).__name__))
            module = self.find_and_load(name, import_)
        except BaseException as error:
            self._tell_begin("-")
            # Else nothing is left of it, as of a library that a program can do without.
            if look is not None and sys.modules.keys() - look.modules:
                # The text of an error may hold a secret.
                self.end("{} it cannot be imported: {}".format(name, type(error).__name__))
            raise
        finally:
            self.within = False
        if look is not None and self.path:
            try:
                self._write(look.line())
            except _Stop as stop:
                self.end("{} {}".format(name, stop))
            except Exception as error:
                self.end("{} {}".format(name, type(error).__name__))
        return module

    def _knows_finders(self) -> bool:
        return {id(one) for one in sys.meta_path or ()} <= {id(one) for one in self.last.finders}

    def _tell_begin(self, name: str) -> None:
        """So that no standby is prepared meanwhile; "-": it has failed. The rest does without."""
        path = self.path
        if path:
            self._write("begins " + name)
            self.path = path

    def _write(self, line: str) -> None:
        text = line.encode("utf-8", "replace").replace(b"\n", b" ") + b"\n"
        if len(text) > _LINE_BYTES_MAX:
            raise _Stop("what it is to find takes more than {} bytes".format(_LINE_BYTES_MAX))
        try:
            # Nothing stays open: a program may close all descriptors, and then use their numbers.
            file = open(self.path, O_WRONLY | O_NONBLOCK | O_CLOEXEC)
            try:
                write(file, text)
            finally:
                close(file)
        except OSError:
            self.path = ""


class _Look:
    """One import that is told: the state in which it began, and what it has done."""

    def __init__(self, learner: Learner, name: str) -> None:
        self.learner = learner
        self.name = name
        self.text = ""
        before = State(_HIDDEN)
        self._judge_conditions(is_by_library(learner.installed))
        if learner.last is learner.start or before.difference(learner.last):
            self._refuse_hooks(before, learner.last)
            try:
                self.text = before.text(learner.start)
            except NoText as why:
                raise _Stop("the program has changed {}".format(why)) from None
        self.modules = set(sys.modules)
        self.libraries = mapped_libraries()
        self.numbers = drawn_numbers({}, SEEDED_BY_ITSELF)
        learner.seeded |= {name for name, position in self.numbers.items()
                           if learner.numbers.get(name) != position}

    def _judge_conditions(self, is_of_library: bool) -> None:
        learner, now = self.learner, Conditions({})

        def change(is_lenient: bool) -> str:
            return now.change_since(learner.conditions, is_lenient) or (
                learner.modules.change(is_lenient))

        found = change(False)
        changed = found and change(True) if is_of_library else found or learner.ignored
        if changed:
            raise _Stop("the program has changed {}".format(changed))
        learner.ignored = learner.ignored or found
        self.conditions = now

    @staticmethod
    def _refuse_hooks(before: State, last: State) -> None:
        for name in ("finders", "path_hooks"):
            if getattr(before, name) != getattr(last, name):
                raise _Stop("the program has changed {}".format(
                    {"finders": "sys.meta_path", "path_hooks": "sys.path_hooks"}[name]))

    def line(self) -> str:
        learner = self.learner
        drawn = learner.seeded & changed_numbers(
            self.numbers, drawn_numbers({}, SEEDED_BY_ITSELF))
        if drawn:
            raise _Stop("it draws random numbers of {}".format(min(drawn)))
        now = Conditions({})
        changed = now.changes_by_import(self.conditions)
        if changed:
            raise _Stop("it changes {}".format(changed[0]))
        new = sys.modules.keys() - self.modules - MAIN
        own = own_modules(new, learner.installed)
        if own:
            raise _Stop("it imports {}, which is not in site-packages".format(min(own)))
        found = digest_of(new, mapped_libraries() - self.libraries)
        learner.last = State(_HIDDEN)
        learner.conditions = now
        learner.modules.update(list(sys.modules.values()))
        learner.numbers = drawn_numbers({}, SEEDED_BY_ITSELF)
        return "{} {}".format(self.name, found) + (" " + self.text if self.text else "")


def is_by_library(installed: tuple[str, ...]) -> bool:
    """Whether it is an installed module whose code has led to this import."""
    frame: Any = sys._getframe(1)
    while frame is not None:
        code = frame.f_code.co_filename
        name = str(frame.f_globals.get("__name__"))
        if not code.startswith("<frozen importlib") and name not in ("importlib", "runpy") and (
                not name.startswith("ddprun_start")):
            spec = frame.f_globals.get("__spec__")
            return name != "__main__" and spec is not None and is_of(spec, installed)
        frame = frame.f_back
    return False


def own_modules(names: Any, installed: tuple[str, ...]) -> set[str]:
    """Those of `names` that are of the program."""
    specs = {name: spec_of(sys.modules.get(name)) for name in names}
    return {name for name, spec in specs.items() if spec is not None and not is_of(spec, installed)}


def digest_of(names: set[str], libraries: set[str]) -> str:
    """The digest of one import: its modules with their files, and the libraries that they map."""
    lines = ["{}={}".format(name, getattr(spec_of(sys.modules.get(name)), "origin", None))
             for name in sorted(names)]
    text = "\n".join(lines + sorted(libraries))
    return _imp.source_hash(_HASH_KEY, text.encode("utf-8", "surrogateescape")).hex()


def mapped_libraries() -> set[str]:
    """The paths of the shared libraries of this process."""
    with io_open("/proc/self/maps", "rb") as maps:
        # The kernel adds that a file is gone from there. Another one may be in its place.
        return {os.fsdecode(line.rstrip(b"\n").split(None, 5)[5].partition(b" (deleted)")[0])
                for line in maps if b".so" in line}


def import_own() -> None:
    """Has the libraries mapped that a standby uses, in its worker too: both find the same then."""
    modules = set(sys.modules)
    import _ctypes  # noqa: F401
    import _socket  # noqa: F401

    for name in sys.modules.keys() - modules:
        del sys.modules[name]  # The program imports them, or does not.


def installed_folders() -> tuple[str, ...]:
    """The folders that are no part of a program: the standard library and site-packages.

    A folder of that name in sys.path is one, too: clusters' modules name theirs in PYTHONPATH.
    """
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


def look_like_importlib(function: Any) -> None:
    """importlib's frames count neither as levels of a warning's stack nor in most tracebacks."""
    function.__code__ = function.__code__.replace(
        co_filename=_frozen_importlib._find_and_load.__code__.co_filename)
    _CODES.add(function.__code__)


def leave_out_of_traceback(error: BaseException) -> None:
    """Takes the frames of ddprun's functions off the top of the traceback.

    importlib.import_module() shows importlib's frames. Before Python 3.11 `raise` puts them back.
    """
    entry = error.__traceback__
    while entry is not None and entry.tb_frame.f_code in _CODES:
        entry = entry.tb_next
    error.__traceback__ = entry


_CODES: set[Any] = set()
look_like_importlib(Learner._find_and_load)
look_like_importlib(Learner._look_and_load)
