"""Modules that were imported beforehand, given to the program when it imports them.

Until then they are not in sys.modules, and nothing shows that their imports have changed sys.path,
os.environ or filters of warnings. A module is given only if the program's import would find what
the import beforehand has found. Else this process begins anew, without any of them.
"""

from __future__ import annotations

import os
import sys

import _frozen_importlib
import _imp
import _signal
from _io import open as io_open

from ddprun_start.imports import is_by_library, leave_out_of_traceback, look_like_importlib
from ddprun_start.state import (SEEDED_BY_ITSELF, Conditions, Modules, State,
                                changed_numbers, drawn_numbers, has_children, loggers, opened_as,
                                put, spec_of)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any


class Group:
    """The changes that one import has made, between two States."""

    def __init__(self, name: str, is_chosen: bool, hidden: frozenset[bytes]) -> None:
        """Before the import. `is_chosen`: by the user, whatever the program will have changed."""
        self.name = name
        self.is_chosen = is_chosen
        self.before = State(hidden)
        self.drawn: set[str] = set()  # from these generators of random numbers
        self.opened: dict[int, Any] = {}  # descriptors that it has left open, as opened_as()
        self.modules = dict(sys.modules)
        self.finders = dict.fromkeys(sys.path_importer_cache)
        self.loggers: Any = loggers(sys.modules.get("logging"))

    def hold(self, hidden: frozenset[bytes], of_others: Modules,
             when_given: Callable[[], None] | None) -> None:
        """After the import. `of_others`: as it was before."""
        self.after = State(hidden)
        # Replaced modules of earlier imports: name, the module before and the module instead.
        self.exchanged = [(name, was, sys.modules[name]) for name, was in self.modules.items()
                          if name in sys.modules and sys.modules[name] is not was]
        self.taken_out = [name for name in self.modules if name not in sys.modules]
        self.modules = {name: module for name, module in sys.modules.items()
                        if name not in self.modules}
        self.finders = {path: finder for path, finder in sys.path_importer_cache.items()
                        if path not in self.finders}
        made = loggers(sys.modules.get("logging"))
        self.loggers = [one for name, one in made.items() if name not in self.loggers and
                        getattr(one, "disabled", None) is False]
        self.replaced = of_others.replaced()
        of_others.update(list(sys.modules.values()))
        self.when_given = when_given
        self.children = []
        for name, module in self.modules.items():
            parent, _, child = name.rpartition(".")
            if parent not in self.modules and parent in sys.modules and (
                    sys.modules[parent].__dict__.get(child) is module):
                self.children.append((sys.modules[parent], child, module))

    def is_more_than_python(self) -> bool:
        """Whether it has a module that is not of the standard library."""
        specs = map(spec_of, self.modules.values())
        return any(spec is not None and spec.has_location and
                   ("/site-packages/" in spec.origin or "/dist-packages/" in spec.origin)
                   for spec in specs)

    def hide(self) -> None:
        for name in self.modules:
            sys.modules.pop(name, None)
        for name, was, _ in self.exchanged:
            sys.modules[name] = was
        for path in self.finders:
            sys.path_importer_cache.pop(path, None)
        for parent, child, _ in self.children:
            delattr(parent, child)
        for module, name, was, _ in self.replaced:
            put(module.__dict__, name, was)

    def give(self) -> None:
        for name, module in self.modules.items():
            sys.modules.setdefault(name, module)
        for name, _, instead in self.exchanged:
            sys.modules[name] = instead
        for path, finder in self.finders.items():
            sys.path_importer_cache.setdefault(path, finder)
        for parent, child, module in self.children:
            setattr(parent, child, module)
        for module, name, _, instead in self.replaced:
            put(module.__dict__, name, instead)
        for logger in self.loggers:
            # logging.config.dictConfig() disables those that exist; these would not have existed.
            logger.disabled = False
        if self.when_given is not None:
            self.when_given()


class HiddenModules:
    """The groups that the program does not have yet, in the order of their imports."""

    def __init__(self, start: State, variables: frozenset[bytes]) -> None:
        """`start` is what the program finds first; no import may ask for `variables`."""
        self.start = start
        self.variables = variables
        self.groups: list[Group] = []
        self.position: dict[str, int] = {}  # of a module that is hidden, its group
        self.find_and_load = _frozen_importlib._find_and_load
        self.stand_in = self._find_and_load

    def hide(self, groups: list[Group], of_others: Modules) -> None:
        """All that these imports have brought, and changed. The program finds nothing of it."""
        self.groups = groups
        self.everything: dict[str, Any] = {}
        for position, group in enumerate(groups):
            for name, module in group.modules.items():
                self.everything[name] = module
                self.position[name] = position
        for group in reversed(groups):
            group.hide()
        self.start.set(self.variables)
        self.installed = of_others.installed
        self.of_others = of_others
        of_others.update([*sys.modules.values(), *self.everything.values()])
        self.numbers = drawn_numbers(self.everything, SEEDED_BY_ITSELF)
        self.begun_as = _Begun()
        self.given = 0
        self.goes_on = False  # whatever the program changes

    def program_begins(self, anew: dict[bytes, bytes]) -> None:
        """It has its place: what it changes from now on counts. With `anew` as its environment this
        process begins anew."""
        self.begun_as.environment = anew
        self.conditions = Conditions(self.everything)
        if self.position:
            _frozen_importlib._find_and_load = self.stand_in

    def _find_and_load(self, name: str, import_: Any) -> Any:
        try:
            if name in self.position:
                self._give(name)
                if name in sys.modules:
                    return sys.modules[name]
            return self.find_and_load(name, import_)
        except BaseException as error:
            leave_out_of_traceback(error)
            raise

    def _give(self, name: str) -> None:
        _imp.acquire_lock()
        try:
            last = self.position.get(name)
            if last is None:
                return  # Another thread has just given it.
            # All before it, too: it may depend on any of them.
            groups = self.groups[self.given:last + 1]
            changed = self._change(name, groups)
            if changed and not groups[-1].is_chosen and not self.goes_on and (
                    os.getpid() == self.begun_as.pid):
                self._begin_anew_or_say(name, changed)
            try:
                now = State(self.variables) if changed else None
            except Exception:
                now = None
            for group in groups:
                group.give()
                for one in group.modules:
                    self.position.pop(one, None)
            self.given = last + 1
            self._set_state(now, groups, changed)
            self._note_given(groups)
            if not self.position and _frozen_importlib._find_and_load is self.stand_in:
                _frozen_importlib._find_and_load = self.find_and_load
        finally:
            _imp.release_lock()

    def _note_given(self, groups: list[Group]) -> None:
        try:
            self.of_others.update([
                module for group in groups for module in (
                    *group.modules.values(), *(one for one, _, _, _ in group.replaced))])
        except Exception:
            pass  # Then it counts as changed by the program.

    def _change(self, name: str, groups: list[Group]) -> str:
        """As _changed(). An unreadable state has changed: no error of ours is the program's."""
        try:
            return self._changed(name, groups, is_by_library(self.installed))
        except Exception as error:
            return "what imports find ({})".format(type(error).__name__)

    def _set_state(self, now: State | None, groups: list[Group], changed: str) -> None:
        """`now`: as it was before the groups were given, where it was not as they have found it."""
        try:
            if not changed:
                groups[-1].after.set(self.variables)
            elif now is not None:
                for group in groups:
                    now.add(group.before, group.after, self.variables)
        except Exception:
            pass  # As of CPUs that this process may not have any more.

    def _changed(self, name: str, groups: list[Group], is_of_library: bool) -> str:
        """Says, for people, what the import of `name`, the last of `groups`, would find otherwise;
        empty: nothing.

        The program has passed over the others. It would not, if they are of an installed library;
        but what libraries import when they are called comes in any order.
        """
        changed = State(self.variables).difference(groups[-1].before)
        if changed:
            return changed
        unasked = [group.name for group in groups if group.is_more_than_python() and
                   not f"{name}.".startswith(f"{group.name}.")]
        taken = [one for group in groups for one, module in group.modules.items()
                 if sys.modules.get(one, module) is not module]
        if taken or unasked and not is_of_library:
            return "sys.modules['{}']".format([*taken, *unasked][0])
        for group in groups:
            for file, opened in group.opened.items():
                if opened_as(file) != opened:
                    return "a file that an import has open"
        drawn = {one for group in groups for one in group.drawn}
        seeded = drawn and drawn & changed_numbers(
            self.numbers, drawn_numbers(self.everything, SEEDED_BY_ITSELF))
        if seeded:
            return "the seed of {}".format(min(seeded))
        return (Conditions(self.everything).change_since(self.conditions, is_of_library) or
                self.of_others.change(is_of_library))

    def _begin_anew_or_say(self, name: str, changed: str) -> None:
        for stream in (sys.stdout, sys.stderr):
            try:
                stream.flush()
            except Exception:
                pass
        begins = not _is_connected()
        how = ("this worker begins anew and cold" if begins else
               "this worker goes on, as it is connected to others")
        text = ("ddprun: {}: when it imports {}, {} is not as it was when that was imported "
                "beforehand; --warm off has no standbys\n")
        self.goes_on = True  # Nothing is compared any more, unless it begins anew.
        try:
            os.write(2, text.format(how, name, changed).encode("utf-8", "replace"))
            if begins:
                self.start.set(frozenset())
                self.begun_as.begin_anew()
        except Exception:
            pass


def _is_connected() -> bool:
    """Whether others would miss what this process has been: its sockets' peers, its children."""
    for name in os.listdir("/proc/self/fd"):
        try:
            if os.readlink("/proc/self/fd/" + name).startswith("socket:") and int(name) > 2:
                return True
        except OSError:
            pass  # The listing's own.
    return has_children()


class _Begun:
    """As what the program of this process has begun. Beginning anew leaves its limits as they
    are."""

    def __init__(self) -> None:
        with io_open("/proc/self/cmdline", "rb") as file:
            self.command = file.read().split(b"\0")[:-1]
        self.environment: dict[bytes, bytes] = {}
        self.pid = os.getpid()
        self.folder = os.getcwd()
        self.umask = os.umask(0)
        os.umask(self.umask)
        self.blocked = _signal.pthread_sigmask(_signal.SIG_BLOCK, ())
        self.ignored = self._ignored()

    @staticmethod
    def _ignored() -> set[int]:
        return {number for number in _signal.valid_signals()
                if _signal.getsignal(number) == _signal.SIG_IGN}

    def begin_anew(self) -> None:
        for timer in (_signal.ITIMER_REAL, _signal.ITIMER_VIRTUAL, _signal.ITIMER_PROF):
            _signal.setitimer(timer, 0)
        for handler, numbers in ((_signal.SIG_DFL, self._ignored() - self.ignored),
                                 (_signal.SIG_IGN, self.ignored - self._ignored())):
            for number in numbers:
                try:
                    _signal.signal(number, handler)
                except ValueError:
                    pass  # Only the main thread may.
        _signal.pthread_sigmask(_signal.SIG_SETMASK, self.blocked)
        os.umask(self.umask)
        try:
            os.chdir(self.folder)
        except OSError:
            pass  # It is gone, and the program lives in one that exists.
        os.execvpe(self.command[0], self.command, self.environment)


look_like_importlib(HiddenModules._find_and_load)
