"""What an import can look at: read, compared, set, and written as text.

Two imports of one module do the same if both find the same State and the same Conditions. A State
can be set by a standby, Conditions can only be compared.
"""

from __future__ import annotations

import _warnings
import os
import sys
from _operator import is_

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Any

# An import that a program's call of a library causes comes after these were set, as a rule.
_OF_PROGRAM = frozenset(("sys.argv", "sys.stdout", "sys.stderr", "logging", "logging's root",
                         "the recursion limit", "sys.settrace()", "sys.setprofile()"))
MAIN = frozenset(("__main__", "__mp_main__"))  # multiprocessing has two names for it
_UNCOUNTED = MAIN | {"_frozen_importlib", "importlib._bootstrap"}  # ddprun replaces parts of it
# The system seeds these. Who draws from them before the program has seeded them changes nothing.
SEEDED_BY_SYSTEM = frozenset(("random", "numpy.random"))
SEEDED_BY_ITSELF = frozenset(("torch",))
_GENERATORS: tuple[Any, ...] = (
    ("random", "random", lambda module: module.getstate()),
    ("numpy.random", "numpy.random.mtrand",
     lambda module: [(key, getattr(value, "tobytes", lambda value=value: value)())
                     for key, value in module._rand._bit_generator.state["state"].items()]),
    ("torch", "torch._C", lambda module: module.default_generator.get_state().tolist()),
)
_ENVIRONMENT = os.environ  # A program may put something else there.


class NoText(Exception):
    """A State cannot be written as text: why."""


class State:
    """What an import can look at and a standby can set."""

    def __init__(self, hidden: frozenset[bytes]) -> None:
        """As it is now; `hidden` are variables that no import may ask for."""
        data = dict(_ENVIRONMENT._data)  # type: ignore[attr-defined]
        self.path = list(sys.path)
        self.environment = {key: data[key] for key in data if key not in hidden}
        self.filters = list(_filters())
        self.cpus = frozenset(os.sched_getaffinity(os.getpid()))
        self.dlopen_flags = sys.getdlopenflags()
        self.finders = list(sys.meta_path)
        self.path_hooks = list(sys.path_hooks)

    def difference(self, other: State) -> str:
        """The first thing that differs, for people; empty: nothing."""
        if self.path != other.path:
            return "sys.path"
        if self.environment != other.environment:
            return "os.environ['{}']".format(
                os.fsdecode(min(key for key, _ in self.environment.items() ^
                                other.environment.items())))
        if _plain_filters(self.filters) != _plain_filters(other.filters):
            return "a filter of warnings"
        if self.cpus != other.cpus:
            return "the set of CPUs (sched_setaffinity)"
        if self.dlopen_flags != other.dlopen_flags:
            return "sys.setdlopenflags()"
        if not _are_same(self.finders, other.finders):
            return "sys.meta_path"
        if not _are_same(self.path_hooks, other.path_hooks):
            return "sys.path_hooks"
        return ""

    def set(self, hidden: frozenset[bytes]) -> None:
        """Makes it so; variables of `hidden` stay as they are."""
        if sys.path != self.path:
            sys.path[:] = self.path
        now = os.environb
        for key in [key for key in now if key not in hidden and key not in self.environment]:
            del now[key]
        for key, value in self.environment.items():
            if now.get(key) != value:
                now[key] = value
        filters = _filters()
        if not _are_same(filters, self.filters):
            _set_filters(filters, self.filters)
        if os.sched_getaffinity(0) != self.cpus:
            os.sched_setaffinity(0, self.cpus)
        if sys.getdlopenflags() != self.dlopen_flags:
            sys.setdlopenflags(self.dlopen_flags)
        sys.meta_path[:] = self.finders
        sys.path_hooks[:] = self.path_hooks

    def add(self, before: State, after: State, hidden: frozenset[bytes]) -> None:
        """Sets it with what one import has changed between `before` and `after`."""
        for name in ("path", "filters", "finders", "path_hooks"):
            was, became, own = (getattr(one, name) for one in (before, after, self))
            own[:0] = [one for one in became if one not in was and one not in own]
        for key in before.environment.keys() | after.environment.keys():
            value = after.environment.get(key)
            if value is None:
                self.environment.pop(key, None)
            elif value != before.environment.get(key):
                self.environment[key] = value
        self.set(hidden)

    def text(self, start: State) -> str:
        """Without blanks, and without finders and hooks of imports; relative to `start`, the state
        in which the program began."""
        parts = ["path=" + ":".join(_path_text(self.path, start.path))]
        for key in sorted(self.environment.keys() | start.environment.keys()):
            value = self.environment.get(key)
            if value is None:
                parts.append("unset=" + key.hex())
            elif value != start.environment.get(key):
                parts.append("set={}:{}".format(key.hex(), value.hex()))
        if _plain_filters(self.filters) != _plain_filters(start.filters):
            parts.append("filters=" + ":".join(map(_filter_text, self.filters)))
        if self.cpus != start.cpus:
            parts.append("cpus=" + ":".join(map(str, sorted(self.cpus))))
        if self.dlopen_flags != start.dlopen_flags:
            parts.append("dlopen={}".format(self.dlopen_flags))
        return "|".join(parts)

    def set_text(self, text: str, hidden: frozenset[bytes]) -> None:
        """Sets what text() has written, relative to this state, as which the program begins.

        What `text` does not name is as in this state, but for finders and hooks of imports, which
        stay. Raises ValueError or LookupError for a text that cannot be set here.
        """
        wanted = State(hidden)
        wanted.environment = dict(self.environment)
        wanted.filters = list(self.filters)
        wanted.cpus, wanted.dlopen_flags = self.cpus, self.dlopen_flags
        for part in text.split("|"):
            what, _, rest = part.partition("=")
            words = rest.split(":") if rest else []
            if what == "path":
                wanted.path = [one for word in words
                               for one in (self.path if word == "*" else [_from_hex(word)])]
            elif what == "unset":
                wanted.environment.pop(bytes.fromhex(rest), None)
            elif what == "set":
                key, value = map(bytes.fromhex, rest.split(":"))
                wanted.environment[key] = value
            elif what == "filters":
                wanted.filters = [_filter_of(word) for word in words]
            elif what == "cpus":
                wanted.cpus = frozenset(map(int, words))
            elif what == "dlopen":
                wanted.dlopen_flags = int(rest)
            else:
                raise ValueError(part)
        wanted.set(hidden)


def has_variables(text: str) -> bool:
    """Whether a text of a State holds values of variables, which may be secrets, or CPUs, which
    are one worker's."""
    return any(part.startswith(("set=", "cpus=")) for part in text.split("|"))


def _are_same(some: list[Any], others: list[Any]) -> bool:
    return len(some) == len(others) and all(a is b for a, b in zip(some, others))


def _plain_filters(filters: list[Any]) -> list[Any]:
    """Two patterns of the same text are the same object, as `re` keeps them, or may be."""
    return [(action, _pattern(message), category, _pattern(module), line)
            for action, message, category, module, line in filters]


def _pattern(one: Any) -> Any:
    return (one.pattern, one.flags) if hasattr(one, "pattern") else one


def _filters() -> list[Any]:
    """Those that count now: within warnings.catch_warnings() it is another list."""
    module: Any = sys.modules.get("warnings", _warnings)
    found: list[Any] = module._get_filters() if hasattr(module, "_get_filters") else module.filters
    return found


def _set_filters(filters: list[Any], wanted: list[Any]) -> None:
    if not hasattr(_warnings, "_filters_mutated_lock_held"):
        filters[:] = wanted
        _warnings._filters_mutated()  # type: ignore[attr-defined]
        return
    _warnings._acquire_lock()
    try:
        filters[:] = wanted
        _warnings._filters_mutated_lock_held()
    finally:
        _warnings._release_lock()


def _path_text(path: list[Any], start: list[str]) -> list[str]:
    for first in range(len(path) - len(start) + 1):
        if start and path[first:first + len(start)] == start:
            return (_path_text(path[:first], []) + ["*"] +
                    _path_text(path[first + len(start):], []))
    if not all(isinstance(one, str) for one in path):
        raise NoText("an entry of sys.path that is no string")
    return [os.fsencode(one).hex() or "-" for one in path]


def _from_hex(word: str) -> str:
    return "" if word == "-" else os.fsdecode(bytes.fromhex(word))


def _filter_text(one: Any) -> str:
    action, message, category, module, line = one
    if category.__module__ == "__main__" or getattr(
            sys.modules.get(category.__module__), category.__qualname__, None) is not category:
        raise NoText("a filter of warnings of a class of the program")
    words = [action, "{}.{}".format(category.__module__, category.__qualname__), str(line)]
    for pattern in (message, module):
        if pattern is None:
            words += ["", ""]
        elif isinstance(pattern, str):
            words += [pattern.encode().hex(), "s"]
        else:
            words += [pattern.pattern.encode().hex(), str(int(pattern.flags))]
    return ",".join(words)


def _filter_of(text: str) -> Any:
    action, category, line, *patterns = text.split(",")
    module, _, name = category.rpartition(".")
    found: list[Any] = []
    for word, flags in zip(patterns[::2], patterns[1::2]):
        pattern = bytes.fromhex(word).decode()
        found.append(None if not flags else pattern if flags == "s" else
                     sys.modules["re"].compile(pattern, int(flags)))
    return action, found[0], getattr(sys.modules[module], name), found[1], int(line)


class Modules:
    """What programs put into sys.modules and into installed modules, for all who import later.

    Functions and classes of modules count, by identity; what is within a class or a table does not.
    """

    def __init__(self, installed: tuple[str, ...]) -> None:
        """As it is now; `installed` are folders, as is_of() has them."""
        self.installed = installed
        self.members: dict[int, tuple[Any, list[str], list[Any]]] = {}  # by id of the module
        self.update(list(sys.modules.values()))

    def forget(self, modules: Iterable[Any]) -> None:
        """Nobody can change them: they are not in sys.modules."""
        for module in modules:
            self.members.pop(id(module), None)

    def update(self, modules: Iterable[Any]) -> None:
        """As these are now is as they were; what changes from now on counts."""
        for module in {id(one): one for one in modules}.values():
            known = self.members.get(id(module))
            if known is None and self._is_installed(module) or known and not _has_all(known):
                self.members[id(module)] = (module, list(module.__dict__),
                                            list(module.__dict__.values()))
        self.without_file = _without_file()

    def _is_installed(self, module: Any) -> bool:
        kind = type(module)
        if not isinstance(module, type(sys)) or (
                kind.__getattribute__ is not type(sys).__getattribute__):
            return False  # To look at it may load it.
        spec = spec_of(module)
        try:
            return is_of(spec, self.installed) and spec.name not in _UNCOUNTED
        except Exception:
            return False  # A namespace whose parent is not in sys.modules does not know its place.

    def replaced(self) -> list[tuple[Any, str, Any, Any]]:
        """Module, name, what was there and what is there instead."""
        return [(module, key, was, module.__dict__[key])
                for module, keys, values in list(self.members.values())
                if not _has_all((module, keys, values)) for key, was in zip(keys, values)
                if callable(was) and module.__dict__.get(key, was) is not was]

    def change(self, is_of_library: bool) -> str:
        """As Conditions.change_since()."""
        new = _without_file() - self.without_file
        if new:
            return "sys.modules['{}']".format(min(new))
        for module, name, _, _ in self.replaced():
            if not (is_of_library and module is sys and name == "excepthook"):
                return "{}.{}".format(module.__name__, name)
        return ""


def _has_all(known: tuple[Any, list[str], list[Any]]) -> bool:
    module, _, values = known
    now = module.__dict__.values()
    return len(now) == len(values) and all(map(is_, values, now))


def _without_file() -> set[str]:
    """Modules that nobody has found: made by hand, or None, which hides one."""
    return {name for name, module in list(sys.modules.items())
            if spec_of(module) is None and name not in _UNCOUNTED}


def spec_of(module: Any) -> Any:
    """Its __spec__, if it has one. Asking a module for it may load one that is lazy."""
    try:
        return object.__getattribute__(module, "__dict__").get("__spec__")
    except AttributeError:
        return None


def _working_folder() -> str:
    try:
        return os.getcwd()
    except OSError:
        return ""  # It was removed.


def is_of(spec: Any, folders: tuple[str, ...]) -> bool:
    """Whether it is of the standard library or site-packages. What has no file is no program's."""
    if spec is None:
        return False
    places = [spec.origin] if spec.has_location else spec.submodule_search_locations or ()
    return all(str(place).startswith(folders) for place in places)


class Conditions:
    """What an import can look at and nobody can set for it."""

    def __init__(self, hidden: dict[str, Any]) -> None:
        """As they are now; `hidden` are modules that are not in sys.modules."""
        with open("/proc/self/status", "rb") as file:
            umask = [line for line in file if line.startswith(b"Umask:")]
        self.values = {
            "the working folder": _working_folder(),
            "the umask": umask,
            "sys.argv": sys.argv[1:],
            "sys.stdout": id(sys.stdout),
            "sys.stderr": id(sys.stderr),
            "sys.settrace()": sys.gettrace() is None,
            "sys.setprofile()": sys.getprofile() is None,
            "the recursion limit": sys.getrecursionlimit(),
        }
        locale = sys.modules.get("_locale") or hidden.get("_locale")
        if locale is not None:
            self.values["the locale"] = locale.setlocale(locale.LC_ALL, None)
        logging = sys.modules.get("logging") or hidden.get("logging")
        if hasattr(logging, "root"):
            self.values["logging"] = _of_loggers(logging)
            self.values["logging's root"] = _of_root(logging)
        torch = sys.modules.get("torch") or hidden.get("torch")
        if hasattr(torch, "get_default_dtype"):
            self.values["torch.set_default_dtype()"] = torch.get_default_dtype()

    def changes_by_import(self, before: Conditions) -> list[str]:
        """What an import has changed. Its own loggers are its own matter."""
        return [name for name, value in before.values.items()
                if name != "logging" and self.values.get(name, value) != value]

    def change_since(self, before: Conditions, is_of_library: bool) -> str:
        """What differs of what both have, for people; empty: nothing.

        `is_of_library`: it is to lead to an import by a library, which a call of the program has
        caused: then what programs set up in their beginning does not count.
        """
        for name, value in before.values.items():
            if self.values.get(name, value) != value and not (
                    is_of_library and name in _OF_PROGRAM):
                return name
        return ""


def _of_loggers(logging: Any) -> Any:
    named = list(logging.root.manager.loggerDict.items())
    return sorted((name, *_of_logger(one)) for name, one in named
                  if hasattr(one, "handlers") and (one.level or one.handlers or one.disabled))


def _of_root(logging: Any) -> Any:
    return logging.root.manager.disable, _of_logger(logging.root)


def _of_logger(one: Any) -> Any:
    return one.level, len(one.handlers), one.propagate, one.disabled


def has_children() -> bool:
    try:
        with open("/proc/thread-self/children", "rb") as file:
            return file.read() != b""
    except OSError:
        return False  # A kernel that does not tell.


def drawn_numbers(hidden: dict[str, Any], left_out: frozenset[str] = frozenset()) -> dict[
        str, Any]:
    """The positions of the generators of random numbers that are there, but for `left_out`;
    `hidden` are modules that are not in sys.modules. Reading one of torch's may import more."""
    found: dict[str, Any] = {}
    for name, module, read in _GENERATORS:
        one = sys.modules.get(module) or hidden.get(module)
        if one is not None and name not in left_out:
            try:
                found[name] = read(one)
            except Exception:
                pass  # It is being imported, or of another version: it is as if it were not there.
    return found


def changed_numbers(before: dict[str, Any], now: dict[str, Any]) -> set[str]:
    """The generators that were there before and have another position."""
    return {name for name in before if now.get(name, before[name]) != before[name]}
