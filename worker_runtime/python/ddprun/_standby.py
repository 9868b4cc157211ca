"""A worker before its time: what it will import is imported, then it waits for its place.

zz_ddprun.pth calls wait() while `site` runs, in a process that the agent has started as a standby.
The interpreter goes on from there by itself, so that the program finds what it would find cold.
What is said on the socket is in worker_runtime/python/README.md.
"""

from __future__ import annotations

import os
import sys

from ddprun import _life
from ddprun._imports import installed_folders

TYPE_CHECKING = False
if TYPE_CHECKING:
    from _socket import socket as _Agent
    from typing import Any

_VARIABLE = "DDPRUN_STANDBY"
_MESSAGE_BYTES_MAX = 64 << 10  # Limits::standby_message_bytes_max
_KILLED_FIRST = "1000"  # as oom_score_adj: nobody misses a standby
_CHECKED_S = 1.0  # what was looked at is not looked at again for so long
_DEVICES = ("/dev/nvidia", "/dev/kfd", "/dev/dri/", "/dev/accel")


class _Unfit(Exception):
    """A module cannot be imported before the worker has its place: its name, and why."""


class _Dropped(Exception):
    """A module of those that are only guessed cannot be imported: its name."""


class _Watched(dict):  # type: ignore[type-arg]
    """The data of os.environ, which notes the first of `placed` that somebody asks for."""

    def __init__(self, data: dict[bytes, bytes], placed: set[bytes]) -> None:
        super().__init__(data)
        self.placed = placed
        self.asked: bytes | None = None

    def __getitem__(self, key: bytes) -> bytes:
        if self.asked is None and key in self.placed:
            self.asked = key
        value: bytes = super().__getitem__(key)
        return value


def wait() -> None:
    """Returns once this process is a worker. Else it ends: nothing here may let the program run."""
    try:
        # The program's `import ddprun` is to be its first, or that of a module that is imported.
        for name in [name for name in sys.modules if name.partition(".")[0] == "ddprun"]:
            del sys.modules[name]
        before = set(sys.modules)
        _wait()
        for name in ("_socket", "gc", "time"):
            if name not in before and (name != "_socket" or "socket" not in sys.modules):
                del sys.modules[name]
    except BaseException:
        os._exit(1)


def _wait() -> None:
    import _socket
    import gc
    import time

    agent = _socket.socket(fileno=int(os.environ.pop(_VARIABLE)))
    os.set_inheritable(agent.fileno(), False)
    killed_as = _exchange_oom_score(_KILLED_FIRST)
    agent.send(b"here")
    order = agent.recv(_MESSAGE_BYTES_MAX)
    begun_ns = time.time_ns()
    if not order:
        os._exit(0)  # A question whether this hook is there, or the agent has gone.
    try:
        _import(order.decode().split("\n"), agent)
    except _Unfit as unfit:
        agent.send("\0".join(("unfit", *map(str, unfit.args))).encode()[:_MESSAGE_BYTES_MAX])
        os._exit(0)
    except _Dropped as dropped:
        agent.send("\0".join(("drops", *dropped.args)).encode())
        os._exit(0)
    files_before = _imported_files()
    for path in files_before:
        if os.path.exists(path) and os.stat(path).st_ctime_ns > begun_ns:
            # Nobody knows which of the two was imported.
            agent.send("\0".join(("unfit", path, "has changed")).encode())
            os._exit(0)
    # Else the first allocations of the program have all that was imported looked at.
    gc.collect()
    agent.send(f"ready\0{_memory_kib()}".encode())
    space = _socket.CMSG_SPACE(2 * 4)
    checked_at = None
    while True:
        place, ancillary, _, _ = agent.recvmsg(_MESSAGE_BYTES_MAX, space)
        if not place:
            os._exit(0)
        if checked_at is None or os.times().elapsed - checked_at > _CHECKED_S:
            _compare(files_before, agent)
            checked_at = os.times().elapsed
        if place != b"check":
            break
    if killed_as and not _exchange_oom_score(killed_as):
        os._exit(1)
    files = memoryview(b"".join(data for _, _, data in ancillary)).cast("i").tolist()
    for stream, file in enumerate(files, 1):
        os.dup2(file, stream)
        os.close(file)
    for variable in place.split(b"\0")[1:]:
        key, _, value = os.fsdecode(variable).partition("=")
        # In the order of a worker that is started with them.
        os.environ.pop(key, None)
        os.environ[key] = value
    agent.send(b"gone")
    agent.close()
    _life.hold()


def _compare(files_before: dict[str, tuple[int, int, int] | None], agent: _Agent) -> None:
    for path, before in files_before.items():
        if _fingerprint(path) != before:
            agent.send("\0".join(("unfit", path, "has changed")).encode())
            os._exit(0)  # Its worker starts cold, with what is there now.


def _import(lines: list[str], agent: _Agent) -> None:
    """Lines: `import NAME`, in this order, and `placed KEY`, variables that are not known yet.

    `guess NAME` is `import NAME` if that is there and no part of the program.
    """
    placed = {os.fsencode(line[7:]) for line in lines if line.startswith("placed ")}
    wanted = [line.split(" ", 1) for line in lines if not line.startswith("placed ")]
    for module in ("sitecustomize", "usercustomize"):
        # They come before the program's own imports; `site` will find them done.
        try:
            __import__(module)
        except ModuleNotFoundError:
            pass
    beside = _beside_program()
    installed = installed_folders()
    # Whoever copies the whole environment asks for no variable, and is to find no other job's.
    inherited = {os.fsdecode(key): os.environ.pop(os.fsdecode(key)) for key in placed
                 if os.fsdecode(key) in os.environ}
    watched = _Watched(dict(os.environ._data), placed)  # type: ignore[attr-defined]
    _set_data(watched)
    for how, name in wanted:
        is_guess = how == "guess"
        top = name.partition(".")[0]
        if name in sys.modules or is_guess and (
                top in beside or not _is_installed(_spec(top), installed)):
            continue
        agent.send(b"imports\0" + name.encode())
        if top in beside:
            raise _Unfit(name, "it is beside the program")
        before, files = set(sys.modules), _descriptors()
        try:
            __import__(name)
        except Exception as error:
            if not is_guess:
                raise _Unfit(name, f"{type(error).__name__}: {error}") from None
            if not isinstance(error, ModuleNotFoundError) or error.name != name:
                raise _Dropped(name) from None
        new = sys.modules.keys() - before
        own = beside.intersection(one.partition(".")[0] for one in new)
        if own:
            raise _Unfit(name, f"it imports {min(own)}, which is beside the program")
        if is_guess:
            specs = {one: getattr(sys.modules[one], "__spec__", None) for one in new}
            own = {one for one, spec in specs.items()
                   if spec is not None and not _is_installed(spec, installed)}
            if own:
                raise _Unfit(name, f"it imports {min(own)}, which is not in site-packages")
        _judge(name, files, watched)
    _set_data(dict(watched))
    os.environ.update(inherited)


def _spec(name: str) -> Any:
    """Of a module without a dot, whether it is imported or not; None: there is none."""
    if name in sys.modules:
        return getattr(sys.modules[name], "__spec__", None)
    try:
        return sys.modules["_frozen_importlib"]._find_spec(name, None)
    except Exception:
        return None


def _is_installed(spec: Any, folders: tuple[str, ...]) -> bool:
    """Whether it is of the standard library or site-packages. What has no file is no program's."""
    if spec is None:
        return False
    places = [spec.origin] if spec.has_location else spec.submodule_search_locations or ()
    return all(str(place).startswith(folders) for place in places)


def _judge(name: str, files: set[int], watched: _Watched) -> None:
    """After `name` was imported: has it done what must wait for the worker's place?"""
    if watched.asked is not None:
        raise _Unfit(name, f"it asks for {os.fsdecode(watched.asked)}")
    threads = len(os.listdir("/proc/self/task")) - 1
    if threads:
        raise _Unfit(name, f"it starts {threads} thread{'s' if threads > 1 else ''}")
    for file in sorted(_descriptors() - files):
        what = _held_by(file)
        if what:
            raise _Unfit(name, f"it opens {what}")
    for stream in (sys.stdout, sys.stderr):
        if stream is not None:
            stream.flush()  # The agent sees what comes.


def _imported_files() -> dict[str, tuple[int, int, int] | None]:
    """The interpreter, and the file of each module that was imported, as they are now."""
    paths = {sys.executable}
    for module in list(sys.modules.values()):
        path = getattr(getattr(module, "__spec__", None), "origin", None)
        if isinstance(path, str) and path.startswith("/"):
            paths.add(path)
    return {path: _fingerprint(path) for path in paths}


def _exchange_oom_score(score: str) -> str:
    """What it was; empty: it cannot be changed."""
    try:
        with open("/proc/self/oom_score_adj", "r+") as file:
            before = file.read().strip()
            file.seek(0)
            file.write(score)
        return before
    except OSError:
        return ""


def _memory_kib() -> int:
    """What this process adds to the memory in use, what is shared by others as its share."""
    try:
        with open("/proc/self/smaps_rollup", "rb") as file:
            return int(next(line for line in file if line.startswith(b"Pss:")).split()[1])
    except (OSError, StopIteration):
        return 0


def _fingerprint(path: str) -> tuple[int, int, int] | None:
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_ino, found.st_size, found.st_mtime_ns


def _beside_program() -> set[str]:
    """The names of modules that the program finds in sys.path[0], which is not there yet."""
    program = sys.argv[0] if sys.argv else ""
    folder = os.getcwd() if program in ("", "-c", "-m") else os.path.dirname(
        os.path.realpath(program))
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
    """What a worker without its place may not have open; empty: it may."""
    try:
        target = os.readlink(f"/proc/self/fd/{file}")
        with open(f"/proc/self/fdinfo/{file}") as info:
            flags = int(next(line for line in info if line.startswith("flags:")).split()[1], 8)
    except OSError:
        return ""  # It was the listing's own.
    if target.startswith("socket:"):
        return "a socket"
    if target.startswith(_DEVICES):
        return target
    if target.startswith("/") and flags & os.O_ACCMODE != os.O_RDONLY and target != "/dev/null":
        return f"{target} for writing"
    return ""


def _set_data(data: dict[bytes, bytes]) -> None:
    """os.environ and os.environb are two views of one dictionary."""
    os.environ._data = os.environb._data = data  # type: ignore[attr-defined]
