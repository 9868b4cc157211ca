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
from _io import open as io_open

from ddprun_start.imports import installed_folders, is_by_library, leave_out_of_tracebacks
from ddprun_start.state import Conditions, State, functions, replaced

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any


class Group:
    """What one import has brought, between two States."""

    def __init__(self, name: str, is_chosen: bool, hidden: frozenset[bytes]) -> None:
        """Before the import. `is_chosen`: by the user, whatever the program will have changed."""
        self.name = name
        self.is_chosen = is_chosen
        self.before = State(hidden)
        self.modules = dict.fromkeys(sys.modules)
        self.finders = dict.fromkeys(sys.path_importer_cache)
        self.functions = functions({})

    def hold(self, hidden: frozenset[bytes], when_given: Callable[[], None]) -> None:
        """After the import."""
        self.after = State(hidden)
        self.modules = {name: module for name, module in sys.modules.items()
                        if name not in self.modules}
        self.finders = {path: finder for path, finder in sys.path_importer_cache.items()
                        if path not in self.finders}
        self.replaced = replaced(self.functions, functions({}))
        self.when_given = when_given
        self.children = []
        for name, module in self.modules.items():
            parent, _, child = name.rpartition(".")
            if parent not in self.modules and parent in sys.modules and (
                    sys.modules[parent].__dict__.get(child) is module):
                self.children.append((sys.modules[parent], child, module))

    def hide(self) -> None:
        for name in self.modules:
            sys.modules.pop(name, None)
        for path in self.finders:
            sys.path_importer_cache.pop(path, None)
        for parent, child, _ in self.children:
            delattr(parent, child)
        for module, name, was, _ in self.replaced:
            setattr(module, name, was)

    def give(self) -> None:
        for name, module in self.modules.items():
            sys.modules.setdefault(name, module)
        for path, finder in self.finders.items():
            sys.path_importer_cache.setdefault(path, finder)
        for parent, child, module in self.children:
            setattr(parent, child, module)
        for module, name, _, instead in self.replaced:
            setattr(module, name, instead)
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

    def hide(self, groups: list[Group]) -> None:
        """All that these imports have brought, and changed. The program comes next."""
        self.groups = groups
        self.everything: dict[str, Any] = {}
        for position, group in enumerate(groups):
            for name, module in group.modules.items():
                self.everything[name] = module
                self.position[name] = position
        for group in reversed(groups):
            group.hide()
        self.start.set(self.variables)
        self.installed = installed_folders()
        self.pid = os.getpid()
        self.given = 0
        if self.position:
            _frozen_importlib._find_and_load = self.stand_in

    def program_begins(self, anew: dict[bytes, bytes]) -> None:
        """It has its place: what it changes from now on counts. With `anew` as its environment this
        process begins anew."""
        self.anew = anew
        self.conditions = Conditions(self.everything)

    def _find_and_load(self, name: str, import_: Any) -> Any:
        if name in self.position:
            self._give(name)
            if name in sys.modules:
                return sys.modules[name]
        return self.find_and_load(name, import_)

    def _give(self, name: str) -> None:
        _imp.acquire_lock()
        try:
            last = self.position.get(name)
            if last is None:
                return  # Another thread has just given it.
            groups = self.groups[self.given:last + 1]
            changed = self._changed(groups, is_by_library(self.installed))
            if changed and not groups[-1].is_chosen and os.getpid() == self.pid:
                self._begin_anew(name, changed)
            now = State(self.variables)
            for group in groups:
                group.give()
                for one in group.modules:
                    self.position.pop(one, None)
            if changed:
                for group in groups:
                    now.add(group.before, group.after, self.variables)
            else:
                groups[-1].after.set(self.variables)
            self.given = last + 1
            self.conditions.functions = functions(self.everything)
            if not self.position and _frozen_importlib._find_and_load is self.stand_in:
                _frozen_importlib._find_and_load = self.find_and_load
        finally:
            _imp.release_lock()

    def _changed(self, groups: list[Group], is_of_library: bool) -> str:
        """What these imports would find otherwise, for people; empty: nothing."""
        changed = State(self.variables).difference(groups[-1].before)
        if changed:
            return changed
        taken = [name for group in groups for name, module in group.modules.items()
                 if sys.modules.get(name, module) is not module]
        if taken:
            return "sys.modules['{}']".format(taken[0])
        return Conditions(self.everything).change_since(self.conditions, is_of_library)

    def _begin_anew(self, name: str, changed: str) -> None:
        for stream in (sys.stdout, sys.stderr):
            try:
                stream.flush()
            except Exception:
                pass
        text = ("ddprun: this worker begins anew and cold: when it imports {}, {} is not as it was "
                "when that was imported beforehand; --warm off has no standbys\n")
        os.write(2, text.format(name, changed).encode("utf-8", "replace"))
        self.start.set(frozenset())
        os.chdir(self.conditions.values["the working folder"])
        with io_open("/proc/self/cmdline", "rb") as file:
            command = file.read().split(b"\0")[:-1]
        os.execvpe(command[0], command, self.anew)


leave_out_of_tracebacks(HiddenModules._find_and_load)
