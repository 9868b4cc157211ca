"""A worker before its time: what it will import is imported, then it waits for its place.

sitecustomize.py has wait() called while `site` runs, in a process that the agent has started so.
The interpreter goes on from there by itself, so that the program finds what it would find cold.
The messages on the socket are in worker_runtime/python/INTERNALS.md.
"""

from __future__ import annotations

import os
import sys

from ddprun_start import life, openblas
from ddprun_start.hidden import Group, HiddenModules
from ddprun_start.imports import (digest_of, import_own, installed_folders, mapped_libraries,
                                  own_modules)
from ddprun_start.state import (MAIN, SEEDED_BY_SYSTEM, Conditions, Modules, State,
                                changed_numbers, drawn_numbers, has_children, has_variables,
                                is_of, linked_names, opened_as, spec_of)
from ddprun_start.title import Title

TYPE_CHECKING = False
if TYPE_CHECKING:
    from _socket import socket as _Agent
    from collections.abc import Iterator
    from typing import Any, NoReturn

_VARIABLE = "DDPRUN_STANDBY"
# The clock of file systems, which moves in ticks of some milliseconds; `time` has no name for it.
_CLOCK_REALTIME_COARSE = 5
_MESSAGE_BYTES_MAX = 64 << 10  # Limits::standby_message_bytes_max
_KILLED_FIRST = "1000"  # as oom_score_adj: a standby can be replaced
_KEPT_HEADER = "ddprun imports 3"
_KEPT_FILES_MAX = 64  # of as many programs; the oldest go
_CHECKED_S = 1.0  # what was checked is not checked again for so long
# These go through all variables, for names that begin with their own.
_SEEKERS = frozenset(("tqdm.utils", "fsspec.config"))
_DEVICES = ("/dev/nvidia", "/dev/kfd", "/dev/dri/", "/dev/accel")
# A rehearsal ends before each of these audit events of Python; threads have no event.
_DEEDS = {
    "socket.connect": "it connects to {1}",
    "socket.sendto": "it sends to {1}",
    "socket.sendmsg": "it sends to {1}",
    "subprocess.Popen": "it starts a process: {0}",
    "os.exec": "it starts a process: {0}",
    "os.fork": "it starts a process",
    "os.forkpty": "it starts a process",
    "os.posix_spawn": "it starts a process: {0}",
    "os.spawn": "it starts a process: {1}",
    "os.system": "it starts a process: {0}",
    "os.remove": "it removes {0}",
    "os.rename": "it renames {0}",
    "os.rmdir": "it removes {0}",
    "os.truncate": "it changes {0}",
    "os.mkdir": "it makes the folder {0}",
    "os.symlink": "it makes {1}",
    "os.link": "it makes {1}",
}


class _Unfit(Exception):
    """A module cannot be imported before the worker has its place: its name, and why."""


class _Dropped(Exception):
    """A module of those that are only guessed cannot be imported: its name."""


class _Guard:
    """An audit hook: ends a rehearsal before its module does what must wait for the place.

    It sees what is undone when the import is over: a thread that was joined, a file that was
    closed, a message that was sent. It cannot be taken out, each later event of the process would
    pass through it; so only a rehearsal has one, which never becomes a worker. It does not
    see what C code does by itself; _judge() checks what is left of that.
    """

    def __init__(self, agent: _Agent, lines: list[str]) -> None:
        self.agent = agent
        self.lines = lines
        self.module = ""  # whose import it is; empty: nothing is judged
        self.folders = {os.getcwd(), _program_folder()}

    def begin(self) -> None:
        sys.addaudithook(self)
        import _thread

        for module, name in ((_thread, "start_new"), (_thread, "start_new_thread"),
                             (_thread, "start_joinable_thread"),
                             (sys.modules.get("threading"), "_start_new_thread"),
                             (sys.modules.get("threading"), "_start_joinable_thread")):
            if hasattr(module, name):
                setattr(module, name, self.start_thread)

    def start_thread(self, *_: object, **__: object) -> None:
        self.end("it starts a thread")

    def end(self, deed: str) -> NoReturn:
        name, self.module = self.module, ""
        _keep(self.lines, before=name)
        _end(self.agent, "unfit", name, deed)

    def is_beside_program(self, path: Any) -> bool:
        if not isinstance(path, (str, bytes)):
            return False
        return os.path.dirname(os.path.abspath(os.fsdecode(path))) in self.folders and (
            os.path.isfile(path))

    def __call__(self, event: str, args: tuple[Any, ...]) -> None:
        if not self.module or event != "open" and event not in _DEEDS:
            return
        if event == "open":
            path, flags = args[0], args[-1]
            if not isinstance(flags, int) or path == os.devnull:
                return
            if flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT):
                deed = f"it opens {path} for writing"
            elif self.is_beside_program(path):
                deed = f"it reads {os.fsdecode(path)}, which may change"
            else:
                return
        elif event == "os.mkdir" and os.path.isdir(args[0]):
            return  # To make sure that the folder exists, which it does.
        else:
            deed = _DEEDS[event].format(*args)
        frame = sys._getframe(1)
        if frame.f_code.co_filename.startswith("<frozen importlib") or (
                frame.f_code.co_name == "_get_default_tempdir"):
            return  # Bytecode; a file in each folder for such files, to see whether it can be.
        if frame.f_back is not None and frame.f_back.f_globals.get("__name__") == "linecache":
            return  # For the text of a stack, as torch keeps some; it looks whether it is old.
        self.end(deed)


class _Watched(dict):  # type: ignore[type-arg]
    """The data of os.environ, which notes the first of `placed` that a module asks for, or a
    pass through all variables: a worker's place is not among them yet."""

    def __init__(self, data: dict[bytes, bytes], placed: frozenset[bytes]) -> None:
        super().__init__(data)
        self.placed = placed
        self.asked = ""

    def __iter__(self) -> Iterator[bytes]:
        frame: Any = sys._getframe(1)
        while frame is not None and frame.f_globals.get("__name__") in (
                "os", "collections.abc", "_collections_abc"):
            frame = frame.f_back
        name = "" if frame is None else str(frame.f_globals.get("__name__"))
        if not self.asked and name not in _SEEKERS and not name.startswith("ddprun_start"):
            self.asked = "all variables"
        return super().__iter__()

    def __getitem__(self, key: bytes) -> bytes:
        if not self.asked and key in self.placed:
            self.asked = os.fsdecode(key)
        value: bytes = super().__getitem__(key)
        return value


def wait() -> None:
    """Returns once this process is a worker. Else it ends: nothing here may let the program run.

    Then raises what importing the installed sitecustomize has raised, for `site`.
    """
    try:
        failure = _wait()
    except BaseException:
        os._exit(1)
    if failure is not None:
        raise failure


def _wait() -> Exception | None:
    import_own()
    modules = set(sys.modules)
    import _socket
    import gc
    import time

    for name in sys.modules.keys() - modules:
        del sys.modules[name]
    agent = _socket.socket(fileno=int(os.environ.pop(_VARIABLE)))
    os.set_inheritable(agent.fileno(), False)
    killed_as = _exchange_oom_score(_KILLED_FIRST)
    agent.send(b"here")
    order = agent.recv(_MESSAGE_BYTES_MAX)
    begun_ns = time.clock_gettime_ns(_CLOCK_REALTIME_COARSE)
    if not order:
        os._exit(0)  # A question whether this file runs, or the agent has gone.
    order_lines = order.decode().split("\n")
    rehearsal = None
    if "rehearse" in order_lines:
        order_lines.remove("rehearse")
        rehearsal = _Guard(agent, order_lines)
    placed = frozenset(line[7:].encode() for line in order_lines if line.startswith("placed "))
    failure = _customize()
    start = State(placed)
    hidden = HiddenModules(start, placed)
    try:
        groups, of_others = _import(order_lines, agent, rehearsal, start, placed)
    except _Unfit as unfit:
        if rehearsal is not None:
            _keep(order_lines, before=unfit.args[0])
        _end(agent, "unfit", *unfit.args)
    except _Dropped as dropped:
        _end(agent, "drops", *dropped.args)
    if rehearsal is not None:
        _keep(order_lines)
        _end(agent, "fit", _memory_kib())
    files_before = _files_as_imported(agent, begun_ns)
    for folder in _searched([start, *(group.before for group in groups)], of_others.installed):
        files_before[folder] = _fingerprint(folder)
    hidden.hide(groups, of_others)
    # Else the program's first allocations have the collector visit all that was imported.
    gc.collect()
    title = Title(os.environ.get("LOCAL_RANK", ""))
    agent.send("ready\0{}".format(_memory_kib()).encode())
    place, files = _await_place(agent, files_before, _socket.CMSG_SPACE(2 * 4))
    if len(files) != 2:
        os._exit(1)  # There was no room for them: a cold worker takes this place.
    if killed_as and not _exchange_oom_score(killed_as):
        os._exit(1)
    title.end()
    for stream, file in enumerate(files, 1):
        os.dup2(file, stream)
        os.close(file)
    cold = dict(os.environb)
    for variable in place.split(b"\0")[1:]:
        key, _, value = variable.partition(b"=")
        # In the order of a worker that is started with them.
        for environment in (os.environb, cold):
            if key != b"PYTHONPATH":
                environment.pop(key, None)
                environment[key] = value
            elif environment is cold:
                cold[key] = value  # It begins as any cold one; of ours this is no variable.
    agent.send(b"gone")
    agent.close()
    life.hold()
    hidden.program_begins(cold)
    return failure


def _files_as_imported(agent: _Agent, begun_ns: int) -> dict[str, Any]:
    """The files to check again when a place comes. Ends if a file is newer than the imports."""
    files = _used_files()
    for path in files:
        if os.path.isfile(path) and os.stat(path).st_ctime_ns >= begun_ns:
            # The import may have read the old file or the new one.
            _end(agent, "unfit", path, "has changed")
    return files


def _await_place(agent: _Agent, files_before: dict[str, Any], space: int) -> tuple[bytes, Any]:
    """The message, and its two descriptors."""
    checked_at = None
    while True:
        place, ancillary, _, _ = agent.recvmsg(_MESSAGE_BYTES_MAX, space)
        if not place:
            os._exit(0)
        if checked_at is None or os.times().elapsed - checked_at > _CHECKED_S:
            _compare(files_before, agent)
            checked_at = os.times().elapsed
        if place != b"check":
            return place, memoryview(b"".join(data for _, _, data in ancillary)).cast("i").tolist()


def _customize() -> Exception | None:
    """Imports what `site` imports before the program; returns the error of sitecustomize."""
    failure = None
    try:
        import sitecustomize  # noqa: F401
    except Exception as error:
        failure = error
    if sys.modules["site"].ENABLE_USER_SITE:
        try:
            import usercustomize  # noqa: F401
        except ImportError as error:
            if error.name != "usercustomize":
                raise
    return failure


def _keep(lines: list[str], before: str = "") -> None:
    """For later runs: what a worker of this one has imported, as far as it is fit.

    A failure is ignored: later runs do without it.
    """
    path = next((line[5:] for line in lines if line.startswith("keep ")), "")
    names: list[str] = []
    for how, name, _, text in _wanted(lines):
        if name == before or has_variables(text):
            break
        if how == "learned":
            names.append(f"{name} - {text}" if text else name)
    text = "".join(name + "\n" for name in (_KEPT_HEADER, *names)).encode()
    if not path or not names:
        return
    try:
        os.makedirs(os.path.dirname(path), mode=0o700, exist_ok=True)
        folder = os.open(os.path.dirname(path), os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            _keep_in(folder, os.path.basename(path), text)
        finally:
            os.close(folder)
    except OSError:
        pass


def _keep_in(folder: int, name: str, text: bytes) -> None:
    """`folder` may be another user's, or lead to one."""
    found = os.fstat(folder)
    if found.st_uid != os.geteuid() or found.st_mode & 0o022:
        return
    new = "{}.{}".format(name, os.urandom(8).hex())
    file = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600,
                   dir_fd=folder)
    try:
        is_whole = os.write(file, text) == len(text)
    finally:
        os.close(file)
    if is_whole:
        os.replace(new, name, src_dir_fd=folder, dst_dir_fd=folder)
    else:
        os.unlink(new, dir_fd=folder)
    kept = [entry for entry in os.scandir(folder) if len(entry.name) == len(name) and
            not entry.name.strip("0123456789abcdef")]
    kept.sort(key=lambda entry: -entry.stat(follow_symlinks=False).st_mtime_ns)
    for entry in kept[_KEPT_FILES_MAX:]:
        os.unlink(entry.name, dir_fd=folder)


def _compare(files_before: dict[str, Any], agent: _Agent) -> None:
    for path, before in files_before.items():
        if _fingerprint(path) != before:
            # Its worker starts cold, with the files as they are now.
            _end(agent, "unfit", path, "has changed")


def _end(agent: _Agent, *words: object) -> NoReturn:
    agent.send("\0".join(map(str, words)).encode("utf-8", "replace")[:_MESSAGE_BYTES_MAX])
    os._exit(0)


def _import(order_lines: list[str], agent: _Agent, guard: _Guard | None, start: State,
            placed: frozenset[bytes]) -> tuple[list[Group], Modules]:
    """Does what the lines say, in their order; returns a Group per import, and all modules.

    `import NAME`. `guess NAME [DIGEST [STATE]]` and `learned …`: if it exists and is no part of
    the program, in that State; it must find what the worker that told it has found.
    """
    if guard is not None:
        guard.begin()
    openblas.hold_back()
    beside = _importable(_program_folder())  # what it finds in sys.path[0], which is not there yet
    installed = installed_folders()
    # Code that copies the whole environment asks for no variable, and must find no other job's.
    inherited = {key: os.environb.pop(key) for key in placed if key in os.environb}
    data = os.environ._data  # type: ignore[attr-defined]
    watched = _Watched(dict(data), placed)
    _set_data(watched)
    of_others = Modules(installed)
    groups = []
    for how, name, digest, text in _wanted(order_lines):
        is_guess = how != "import"
        top = name.partition(".")[0]
        if text:
            try:
                start.set_text(text, placed)
            except Exception as error:
                raise _Unfit(name, f"what it is to find cannot be set: {error}") from None
            openblas.hold_back()
        if name in sys.modules or is_guess and not is_of(_spec(top), installed):
            continue
        agent.send(b"imports\0" + name.encode())
        if not is_guess and top in beside:
            raise _Unfit(name, "it is beside the program")
        groups.append(_import_one(name, None if not is_guess else digest, guard, beside, of_others,
                                  watched, placed))
    data.clear()
    data.update(dict.items(watched))
    _set_data(data)
    os.environb.update(inherited)
    openblas.end_hold()
    return groups, of_others


def _wanted(order_lines: list[str]) -> list[tuple[str, str, str, str]]:
    found = []
    for line in order_lines:
        how, name, *rest = line.split(" ")
        if how in ("import", "guess", "learned"):
            found.append((how, name, rest[0] if rest else "-", rest[1] if rest[1:] else ""))
    return found


def _import_one(name: str, digest: str | None, guard: _Guard | None, beside: set[str],
                of_others: Modules, watched: _Watched, placed: frozenset[bytes]) -> Group:
    """`digest`: what the worker has found, "-": not known, None: the user has named it."""
    files = _descriptors()
    libraries = mapped_libraries()
    numbers, before = drawn_numbers({}), Conditions({})
    group = Group(name, digest is None, placed)
    if guard is not None:
        guard.module = name
    try:
        _import_by_program(name)
    except _Unfit:
        raise
    except Exception as error:
        if digest is None:
            raise _Unfit(name, f"{type(error).__name__}: {error}") from None
        if not isinstance(error, ModuleNotFoundError) or error.name != name:
            raise _Dropped(name) from None
    finally:
        if guard is not None:
            guard.module = ""
    new_libraries = mapped_libraries() - libraries
    start_threads = openblas.starter(new_libraries)
    group.hold(placed, of_others, start_threads)
    if digest is None:
        own = beside.intersection(one.partition(".")[0] for one in group.modules)
        if own:
            raise _Unfit(name, f"it imports {min(own)}, which is beside the program")
    else:
        own = own_modules(group.modules.keys() - MAIN, of_others.installed)
        if own:
            raise _Unfit(name, f"it imports {min(own)}, which is not in site-packages")
        if digest not in ("-", digest_of(group.modules.keys() - MAIN, new_libraries)):
            raise _Unfit(name, "it finds other files than the worker that imported it")
    for variable in openblas.VARIABLES if start_threads is not None else ():
        key = variable.encode()
        if os.environb.get(key) != group.before.environment.get(key):
            # It may have done so before or after OpenBLAS looked for it.
            raise _Unfit(name, f"it sets {variable}, by which OpenBLAS starts its threads")
    if group.taken_out:
        raise _Unfit(name, f"it takes {group.taken_out[0]} out of sys.modules")
    _judge(name, files, watched)
    group.opened = {file: opened_as(file) for file in _descriptors() - files}
    group.drawn = changed_numbers(numbers, drawn_numbers({}))
    changed = [f"random numbers of {one}" for one in sorted(group.drawn - SEEDED_BY_SYSTEM)]
    changed += Conditions({}).changes_by_import(before)
    if changed:
        raise _Unfit(name, f"it changes {changed[0]}")
    return group


def _import_by_program(name: str) -> None:
    """From a frame that looks like the program's, as whom an import finds and warns."""
    main = sys.modules["__main__"].__dict__
    code = compile("__import__(name)", main.get("__file__") or "<string>", "eval")
    try:
        eval(code, main, {"name": name})
    finally:
        warned = main.pop("__warningregistry__", {})
    for key in warned:
        if key != "version":
            raise _Unfit(name, f"it warns: {key[0]}")


def _spec(name: str) -> Any:
    """The spec of a module without a dot, imported or not. Returns None if there is none."""
    if name in sys.modules:
        return spec_of(sys.modules[name])
    try:
        return sys.modules["_frozen_importlib"]._find_spec(name, None)
    except Exception:
        return None


def _judge(name: str, files: set[int], watched: _Watched) -> None:
    """After `name` was imported: is anything left that must wait for the worker's place?

    A module's other changes to its process (signals, folder, umask, limits, variables) are changes
    to the worker, as if that had imported it.
    """
    if watched.asked:
        raise _Unfit(name, f"it asks for {watched.asked}")
    threads = len(os.listdir("/proc/self/task")) - 1
    if threads:
        raise _Unfit(name, f"it starts {threads} thread{'s' if threads > 1 else ''}")
    if has_children():
        raise _Unfit(name, "it starts a process")
    for file in sorted(_descriptors() - files):
        what = _held_by(file)
        if what:
            raise _Unfit(name, f"it opens {what}")
    for stream in (sys.stdout, sys.stderr):
        if stream is not None:
            stream.flush()  # The agent sees what comes.


def _used_files() -> dict[str, Any]:
    """The interpreter, the file of each module that was imported, and all that is mapped."""
    paths = {sys.executable}
    for module in list(sys.modules.values()):
        path = getattr(spec_of(module), "origin", None)
        if isinstance(path, str) and path.startswith("/"):
            paths.add(path)
    return {path: _fingerprint(path) for path in paths | mapped_libraries() | linked_names()}


def _exchange_oom_score(score: str) -> str:
    """Returns the score before; empty if it cannot be changed."""
    try:
        with open("/proc/self/oom_score_adj", "r+", encoding="utf-8") as file:
            before = file.read().strip()
            file.seek(0)
            file.write(score)
        return before
    except OSError:
        return ""


def _memory_kib() -> int:
    """This process's part of the memory in use, with its share of what others share."""
    try:
        with open("/proc/self/smaps_rollup", "rb") as file:
            return int(next(line for line in file if line.startswith(b"Pss:")).split()[1])
    except (OSError, StopIteration):
        return 0


def _fingerprint(path: str) -> Any:
    """A folder with "/" at its end has the modules in it as its fingerprint."""
    try:
        if path.endswith("/"):
            return _importable(path)
        found = os.stat(path)
    except OSError:
        return None
    return found.st_ino, found.st_size, found.st_mtime_ns


def _searched(states: list[State], installed: tuple[str, ...]) -> set[str]:
    """The folders where imports have looked for modules, as _fingerprint() takes them. The program
    writes into its own folders, too; there only the modules count."""
    folders = {os.path.abspath(folder) for state in states for folder in state.path}
    return {folder + "/" if os.path.isdir(folder) and not (folder + "/").startswith(installed) else
            folder for folder in folders}


def _program_folder() -> str:
    program = sys.argv[0] if sys.argv else ""
    return os.getcwd() if program in ("", "-c", "-m") else os.path.dirname(
        os.path.realpath(program))


def _importable(folder: str) -> set[str]:
    """The names of the modules in it, but for folders without __init__.py."""
    found = set()
    for entry in os.scandir(folder):
        stem, _, ending = entry.name.partition(".")
        if ending in ("py", "pyc") or ending.endswith("so"):
            found.add(stem)
        elif not ending and os.path.exists(os.path.join(entry.path, "__init__.py")):
            found.add(stem)
    return found


def _descriptors() -> set[int]:
    folder = os.open("/proc/self/fd", os.O_RDONLY | os.O_CLOEXEC)
    try:
        return {int(name) for name in os.listdir(folder)} - {folder}
    finally:
        os.close(folder)


def _held_by(file: int) -> str:
    """Says what `file` is if a worker without its place may not have it open; empty: it may."""
    try:
        target = os.readlink(f"/proc/self/fd/{file}")
        with open(f"/proc/self/fdinfo/{file}", encoding="utf-8") as info:
            flags = int(next(line for line in info if line.startswith("flags:")).split()[1], 8)
    except OSError:
        return ""  # It was the listing's own.
    if target.startswith("socket:"):
        return "a socket"
    if target.startswith(_DEVICES):
        return target
    if flags & os.O_ACCMODE == os.O_RDONLY or target == "/dev/null":
        return ""
    for stream, name in ((1, "stdout"), (2, "stderr")):
        if opened_as(file) == opened_as(stream):
            return f"{name} a second time"  # The worker's will be another.
    return f"{target} for writing" if target.startswith("/") else ""


def _set_data(data: dict[bytes, bytes]) -> None:
    """os.environ and os.environb are two views of one dictionary."""
    os.environ._data = os.environb._data = data  # type: ignore[attr-defined]
