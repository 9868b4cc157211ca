"""The things that an import can read; here they are read, compared, set, and written as text.

Two imports of one module do the same if both find the same State and the same Conditions. A State
can be set by a standby, Conditions can only be compared.
"""

from __future__ import annotations

import _warnings
import gc
import os
import sys

try:
    import _ctypes
except ImportError:
    pass  # A Python without it reports nothing, and is no standby.

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Any

# An import that a program's call of a library causes comes after these were set, as a rule.
_OF_PROGRAM = frozenset((
    "sys.argv", "sys.stdin", "sys.stdout", "sys.stderr", "logging", "logging's root",
    "the recursion limit", "the garbage collector", "sys.setswitchinterval()",
    "a limit (setrlimit)", "socket.setdefaulttimeout()", "sys.settrace()", "sys.setprofile()",
    "torch's grad mode", "torch's default device", "numpy.seterr()", "decimal.getcontext()"))
# No import computes with these of torch._C, as a rule: programs may set them, imports may not.
_SETTINGS = ("_get_float32_matmul_precision", "_get_cudnn_enabled", "_get_cudnn_benchmark",
             "_get_cudnn_deterministic", "_get_cudnn_allow_tf32", "_get_cublas_allow_tf32",
             "_get_cublas_allow_fp16_reduced_precision_reduction",
             "_get_cublas_allow_bf16_reduced_precision_reduction",
             "_get_deterministic_algorithms", "_get_mkldnn_enabled", "_get_flash_sdp_enabled",
             "_get_mem_efficient_sdp_enabled", "_get_math_sdp_enabled", "_get_cudnn_sdp_enabled")
MAIN = frozenset(("__main__", "__mp_main__"))  # multiprocessing has two names for it
# ddprun replaces parts of the first; they have other names in sys.modules than their own.
_UNCOUNTED = MAIN | {"_frozen_importlib", "importlib._bootstrap", "importlib._bootstrap_external"}
# The system seeds these. A draw from them before the program has seeded them changes nothing.
SEEDED_BY_SYSTEM = frozenset(("random", "numpy.random"))
SEEDED_BY_ITSELF = frozenset(("torch",))
_GENERATORS: tuple[Any, ...] = (
    ("random", "random", lambda module: module.getstate()),
    ("numpy.random", "numpy.random.mtrand",
     lambda module: [(key, getattr(value, "tobytes", lambda value=value: value)())
                     for key, value in module._rand._bit_generator.state["state"].items()]),
    ("torch", "torch._C", lambda module: module.default_generator.get_state().tolist()),
)
_NAME_AT, _NEXT_AT = 8, 24  # of a link_map
ABSENT = object()  # in the place of what is not there
_OPENMP: dict[str, Any] = {}  # by the file of torch._C
_ENVIRONMENT = os.environ  # A program may put something else there.


class NoText(Exception):
    """A State cannot be written as text: why."""


class State:
    """The things that an import can read and a standby can set."""

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
        self.program = _program()

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
        if self.program != other.program:
            return "__main__.__file__ or sys.argv[0]"
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
        if _program() != self.program:
            file, sys.argv[:1] = self.program[0], self.program[1:]
            put(sys.modules["__main__"].__dict__, "__file__", ABSENT if file is None else file)

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
        if self.program != start.program:
            usual = _usual_program(start.program)
            parts.append("program=" + ":".join(
                "*" if one == its else "" if one is None else os.fsencode(one).hex()
                for one, its in zip(self.program, usual)))
        return "|".join(parts)

    def set_text(self, text: str, hidden: frozenset[bytes]) -> None:
        """Sets what text() has written, relative to this state, as which the program begins.

        Things that `text` does not name are as in this state, but finders and hooks of imports
        stay. Raises ValueError or LookupError for a text that cannot be set here.
        """
        wanted = State(hidden)
        wanted.environment = dict(self.environment)
        wanted.filters = list(self.filters)
        wanted.cpus, wanted.dlopen_flags = self.cpus, self.dlopen_flags
        wanted.program = self.program
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
            elif what == "program":
                usual = _usual_program(self.program)
                wanted.program = tuple(its if word == "*" else _from_hex(word) or None
                                       for word, its in zip(words, usual))
            else:
                raise ValueError(part)
        wanted.set(hidden)


def _program() -> tuple[Any, ...]:
    """The program, as libraries see it: its file, or None, and sys.argv[0], if it exists."""
    try:
        file = object.__getattribute__(sys.modules["__main__"], "__dict__").get("__file__")
    except (AttributeError, KeyError):
        file = None  # The program has put something else there.
    return (file, *sys.argv[:1])


def _usual_program(start: tuple[Any, ...]) -> tuple[Any, ...]:
    """_program(), as Python sets it for a script: its absolute path, and its name as given."""
    return (os.path.join(os.getcwd(), *start[1:]), *start[1:])


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
    """The changes by programs to sys.modules and to installed modules, for all later imports.

    Functions and classes of modules count, by identity; what is within a class or a table does not.
    """

    def __init__(self, installed: tuple[str, ...]) -> None:
        """As it is now; `installed` are folders, as is_of() has them."""
        self.installed = installed
        self.members: dict[int, _Members] = {}  # by id of the module
        self.update(list(sys.modules.values()))

    def update(self, modules: Iterable[Any]) -> None:
        """As these and sys.modules are now is as they were; what changes from now on counts."""
        for module in {id(one): one for one in modules}.values():
            known = self.members.get(id(module))
            if known is None and self._is_installed(module) or known and known.may_have_changed():
                self.members[id(module)] = _Members(module)
        self.entries = dict(sys.modules)

    def _is_installed(self, module: Any) -> bool:
        kind = type(module)
        if not isinstance(module, type(sys)) or (
                kind.__getattribute__ is not type(sys).__getattribute__):
            return False  # To read its members may load it.
        spec = spec_of(module)
        try:
            # One that is being imported, as `site` is at first, gets its own functions yet.
            return is_of(spec, self.installed) and spec.name not in _UNCOUNTED and not getattr(
                spec, "_initializing", False)
        except Exception:
            return False  # A namespace whose parent is not in sys.modules does not know its place.

    def _is_own_entry(self, name: str, module: Any) -> bool:
        """Whether it is in sys.modules since, and no import has put it there."""
        before = self.entries.get(name, ABSENT)
        if before is module or name in _UNCOUNTED:
            return False
        spec = spec_of(module)
        return before is not ABSENT or spec is None or spec.name != name or (
            spec.loader is None and not spec.submodule_search_locations)

    def replaced(self) -> list[tuple[Any, str, Any, Any]]:
        """Module, name, the member before and the member now; ABSENT: none."""
        return [one for known in list(self.members.values()) for one in known.replaced()]

    def change(self, is_of_library: bool) -> str:
        """As Conditions.change_since()."""
        own = [name for name, module in dict(sys.modules).items()
               if self._is_own_entry(name, module)]
        if own:
            return "sys.modules['{}']".format(min(own))
        for module, name, _, _ in self.replaced():
            if not (is_of_library and module is sys and name == "excepthook"):
                return "{}.{}".format(names_of(module).get("__name__"), name)
        return ""


class _Members:
    """A module's members when they were read. Only functions and classes are held: a library
    lets go of others, as of large tensors, and they must be gone then."""

    __slots__ = ("module", "names", "version", "seen", "judged")

    def __init__(self, module: Any) -> None:
        self.module = module
        names = names_of(module)
        self.version = _version_of(names)
        # Before the members are read: other threads may change them.
        self.seen = self.judged = self.version.value
        self.names = {name: one if callable(one) else None for name, one in names.copy().items()}

    def may_have_changed(self) -> bool:
        return bool(self.version.value != self.seen)

    def replaced(self) -> list[tuple[Any, str, Any, Any]]:
        """As Modules.replaced()."""
        version = self.version.value
        if version == self.judged:
            return []
        module, now = self.module, names_of(self.module).copy()
        found = [(module, name, was, now.get(name, ABSENT)) for name, was in self.names.items()
                 if was is not None and now.get(name, ABSENT) is not was] + [
                     (module, name, ABSENT, one) for name, one in now.items()
                     if name not in self.names and callable(one) and
                     not _brings(module, name, one)]
        if not found:
            self.judged = version
        return found


# Asking a module for its __dict__ may load one that is lazy, or its class may have another.
names_of: Any = type(sys).__dict__["__dict__"].__get__


class _NoVersion:
    """In the place of a dict's version, where Python has none. It equals nothing, nor itself."""

    value = float("nan")


def _version_type() -> Any:
    """A ctypes' type that reads the version of a dict in place: a number that each change of the
    dict changes. Returns None if this Python has no version.

    It is PEP 509's, which Python 3.14 has taken out.
    """
    if sys.implementation.name != "cpython" or sys.version_info >= (3, 14):
        return None
    try:
        class Version(_ctypes._SimpleCData):  # type: ignore
            _type_ = "Q"
    except NameError:
        return None
    names = {"name": 0}
    version = Version.from_address(id(names) + _VERSION_OFFSET)
    before = version.value
    names["name"] = 1
    return Version if version.value != before else None


# It comes after the count of members, which comes after what all objects have.
_VERSION_OFFSET = object.__basicsize__ + 8
_VERSION = _version_type()


def _version_of(names: dict[str, Any]) -> Any:
    """Its `value` is the version of `names`, as long as `names` lives."""
    try:
        return _VERSION.from_address(id(names) + _VERSION_OFFSET)
    except Exception:
        return _NoVersion  # There is none, or an audit hook of the program has refused it.


def put(names: dict[str, Any], name: str, value: Any) -> None:
    """ABSENT: takes it out."""
    if value is ABSENT:
        names.pop(name, None)
    else:
        names[name] = value


def _brings(module: Any, name: str, member: Any) -> bool:
    """Whether a module gets a new member by itself: a module, or what a lazy package loads late."""
    names = names_of(module)
    is_lazy = type(module) is not type(sys) or "__getattr__" in names
    return issubclass(type(member), type(sys)) or is_lazy and (
        getattr(member, "__name__", name) == name and
        str(getattr(member, "__module__", "")).partition(".")[0] ==
        str(names.get("__name__")).partition(".")[0])


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
    """Whether it is of the standard library or site-packages, as are modules without a file."""
    if spec is None:
        return False
    places = [spec.origin] if spec.has_location else spec.submodule_search_locations or ()
    return all(str(place).startswith(folders) for place in places)


class Conditions:
    """The things that an import can read and no standby can set for it."""

    def __init__(self, hidden: dict[str, Any]) -> None:
        """As they are now; `hidden` are modules that are not in sys.modules."""
        with open("/proc/self/status", "rb") as file:
            umask = [line for line in file if line.startswith(b"Umask:")]
        with open("/proc/self/limits", "rb") as file:
            limits = file.read()
        self.values = {
            "the working folder": _working_folder(),
            "the umask": umask,
            "sys.argv": sys.argv[1:],
            "sys.stdin": _of_stream(sys.stdin),
            "sys.stdout": _of_stream(sys.stdout),
            "sys.stderr": _of_stream(sys.stderr),
            "os.environ": id(os.environ),
            "sys.settrace()": sys.gettrace() is None,
            "sys.setprofile()": sys.getprofile() is None,
            "the recursion limit": sys.getrecursionlimit(),
            "the garbage collector": (gc.isenabled(), gc.get_threshold()),
            "sys.setswitchinterval()": sys.getswitchinterval(),
            "a limit (setrlimit)": limits,
        }
        _note(self.values, "socket.setdefaulttimeout()",
              lambda: _member("_socket", "getdefaulttimeout", hidden)())
        _note(self.values, "time.tzset()", lambda: _member("time", "tzname", hidden))
        _note(self.values, "sys.set_int_max_str_digits()", lambda: sys.get_int_max_str_digits())
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
        self.settings: dict[str, Any] = {"multiprocessing's start method": _start_method(hidden)}
        core = sys.modules.get("torch._C") or hidden.get("torch._C")
        if core is not None:
            _note(self.values, "torch's grad mode", lambda: core.is_grad_enabled())
            _note(self.values, "torch's default device", lambda: _of_function_modes(core))
            for name in _SETTINGS:
                _note(self.settings, "torch's " + name[len("_get_"):], getattr(core, name, None))
            _note(self.settings, "torch.set_num_threads()", lambda: _openmp_threads(core))
        _note(self.values, "numpy.seterr()", lambda: _member("numpy", "geterr", hidden)())
        _note(self.values, "decimal.getcontext()", lambda: _of_decimal(hidden))

    def changes_by_import(self, before: Conditions) -> list[str]:
        """Names the things that an import has changed. Its own loggers are its own matter."""
        return [name for now, was in ((self.values, before.values),
                                      (self.settings, before.settings))
                for name, value in was.items()
                if name != "logging" and now.get(name, value) != value]

    def change_since(self, before: Conditions, is_of_library: bool) -> str:
        """Names a thing that both have and that differs, for people; empty: nothing.

        `is_of_library`: it is to lead to an import by a library, which a call of the program has
        caused: then what programs set up in their beginning does not count.
        """
        for name, value in before.values.items():
            if self.values.get(name, value) != value and not (
                    is_of_library and name in _OF_PROGRAM):
                return name
        return ""


def _of_stream(stream: Any) -> Any:
    return id(stream), *(getattr(stream, name, None)
                         for name in ("encoding", "errors", "line_buffering"))


def _start_method(hidden: dict[str, Any]) -> Any:
    """The type of multiprocessing's default context, or None if there is none yet: a program may
    set it, once."""
    context = sys.modules.get("multiprocessing.context") or hidden.get("multiprocessing.context")
    default = getattr(context, "_default_context", None)
    chosen = getattr(default, "_actual_context", None)
    return None if chosen is None else type(chosen)


def _note(values: dict[str, Any], name: str, read: Any) -> None:
    try:
        values[name] = read()
    except Exception:
        pass  # It is not there yet, or of another version.


def _of_function_modes(core: Any) -> Any:
    """torch.set_default_device() and `with torch.device()` put one there."""
    modes = [core._get_function_stack_at(i) for i in range(core._len_torch_function_stack())]
    return [(type(one).__name__, str(one.__dict__.get("device"))) for one in modes]


def _member(module: str, name: str, hidden: dict[str, Any]) -> Any:
    """Without loading a module that is lazy."""
    found = sys.modules.get(module) or hidden[module]
    return object.__getattribute__(found, "__dict__")[name]


def _of_decimal(hidden: dict[str, Any]) -> Any:
    """In a copy of the thread's context: to ask for decimal's makes one."""
    copy = _member("_contextvars", "copy_context", hidden)()
    found = copy.run(_member("decimal", "getcontext", hidden))
    return (found.prec, found.rounding, found.Emin, found.Emax, found.capitals, found.clamp,
            [signal.__name__ for signal, is_on in found.traps.items() if is_on])


def _openmp_threads(core: Any) -> Any:
    """How many threads the OpenMP of torch has. torch.get_num_threads() would have MKL read its
    variables, which a program may set later."""
    if core.__file__ not in _OPENMP:
        _OPENMP[core.__file__] = c_function(core.__file__, "omp_get_max_threads")
    return _OPENMP[core.__file__]()


def c_function(library: str, name: str) -> Any:
    """A function that returns a C int, or None if it is not there. The package ctypes would stay,
    and is slow.
    """

    class Number(_ctypes._SimpleCData):  # type: ignore
        _type_ = "i"

    class Function(_ctypes.CFuncPtr):
        _flags_ = _ctypes.FUNCFLAG_CDECL
        _restype_ = Number

    try:
        return Function(_ctypes.dlsym(_ctypes.dlopen(library, 0), name))
    except OSError:
        return None


def linked_names() -> set[str]:
    """The paths by which the C library has found the libraries of this process. A link among them
    may lead elsewhere by now."""

    class Pointer(_ctypes._SimpleCData):  # type: ignore
        _type_ = "P"

    class Text(_ctypes._SimpleCData):  # type: ignore
        _type_ = "z"

    found = set()
    try:
        entry = _ctypes.dlopen(None, 0)  # type: ignore  # It is the first link_map of them all.
        while entry:
            name = Text.from_address(entry + _NAME_AT).value
            found.add(os.fsdecode(name or b""))
            entry = Pointer.from_address(entry + _NEXT_AT).value
    except Exception:
        pass  # An audit hook of sitecustomize has refused it.
    return {name for name in found if name.startswith("/")}


def _of_loggers(logging: Any) -> Any:
    return sorted((name, *_of_logger(one)) for name, one in loggers(logging).items()
                  if hasattr(one, "handlers") and (one.level or one.handlers or one.disabled))


def loggers(logging: Any) -> dict[str, Any]:
    """All that are not the root, by name; some are only places of parents. The result is empty if
    `logging` is not there."""
    return dict(logging.root.manager.loggerDict) if hasattr(logging, "root") else {}


def _of_root(logging: Any) -> Any:
    return logging.root.manager.disable, _of_logger(logging.root)


def _of_logger(one: Any) -> Any:
    return one.level, len(one.handlers), one.propagate, one.disabled


def opened_as(file: int) -> Any:
    """Returns the file that this descriptor leads to, or None if it is closed."""
    try:
        found = os.fstat(file)
    except OSError:
        return None
    return found.st_dev, found.st_ino


def has_children() -> bool:
    try:
        with open("/proc/thread-self/children", "rb") as file:
            return file.read() != b""
    except OSError:
        return False  # A kernel that does not report it.


def drawn_numbers(hidden: dict[str, Any], left_out: frozenset[str] = frozenset()) -> dict[
        str, Any]:
    """The positions of the generators of random numbers that exist, but for `left_out`;
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
    """The generators that existed before and have another position."""
    return {name for name in before if now.get(name, before[name]) != before[name]}
