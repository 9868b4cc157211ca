"""Which checkpoint is whole, and how one is put in place: whole and durable, or not at all."""

from __future__ import annotations

import errno
import glob
import io
import json
import os
import pickle
import re
import shutil
from typing import Any

import torch

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from ddprun._worker import Worker

PARTIAL = ".partial"
_REPLACED = ".replaced"
_TORCH_ENDINGS = (".bin", ".ckpt", ".pkl", ".pt", ".pth")
_SAFETENSORS_HEADER_BYTES_MAX = 100_000_000  # as the format has it
_STEPS = 1 << 31  # The ranks compare steps in 32 bits.
_SYNCS_NO_FOLDER = (errno.EINVAL, errno.ENOTSUP)
_DONE, _ISOLATED, _FAILED = range(3)

_was_isolated = False
_has_told_unsynced = False


def step_path(folder: str, step: int, ending: str = "") -> str:
    """The checkpoint that is saved because the job was asked to leave after `step`."""
    return os.path.join(folder, f"ddprun-step={step}{ending}")


def save(worker: Worker, path: str, write: Callable[[str], None]) -> bool:
    """Has every rank write into one partial checkpoint, which then becomes `path` at once.

    Every rank calls it after the same step; write(partial) makes a file or a folder. An older
    partial one is removed first, an older `path` is replaced. True, on every rank: `path`
    exists, and survives a loss of power. False, on every rank: this generation may have been
    replaced, nothing was put in place. Raises on every rank what went wrong on one; an error of
    write() itself is its rank's alone; the others learn of it by that rank's death.
    """
    partial = path + PARTIAL
    if not _together(worker, path, lambda: worker.rank != 0 or _make_room(worker, path)):
        return False
    write(partial)
    _together(worker, path, lambda: True)  # No rank writes any more.
    _together(worker, path, lambda: worker.local_rank != 0 or _sync(worker, partial))
    if _together(worker, path, lambda: worker.rank != 0 or _put_in_place(worker, partial, path)):
        return True
    if worker.rank == 0:
        _try_to_remove(worker, partial)
    return False


def check_same_step(worker: Worker, step: int) -> None:
    """Raises RuntimeError on every rank if the ranks go on from different steps.

    Every rank calls it once, at its start: each rank has chosen its checkpoint by itself, and a
    network file system may show a new one to some of them later.
    """
    own = step % _STEPS
    highest, lowest = worker._agree(own), _STEPS - 1 - worker._agree(_STEPS - 1 - own)
    if highest != own or lowest != own:
        raise RuntimeError(f"rank {worker.rank} goes on from step {step}, the ranks' steps are "
                           f"{lowest} to {highest}: they have found different checkpoints; let "
                           "every rank see the same folder, and start again")


def may_publish(worker: Worker, path: str) -> bool:
    """Returns the answer of rank 0's node on every rank: False while it may have been replaced.

    Every rank calls it. To be asked right before a checkpoint is written in its place.
    """
    if not worker.is_under_ddprun:
        return True
    return _together(worker, path, lambda: worker.rank != 0 or not is_isolated(worker, path))


def is_isolated(worker: Worker, path: str) -> bool:
    """worker.is_isolated(); the first time that it is, after it was not, a line on stderr."""
    global _was_isolated
    isolated = worker.is_isolated()
    if isolated and not _was_isolated:
        worker._warn(f"checkpoint {path} is not saved: this node is isolated, another generation "
                     "may be running; nothing is to be done, the job goes on from the newest one")
    _was_isolated = isolated
    return isolated


def warn_of_torn(worker: Worker, path: str) -> None:
    """One line, of one rank."""
    if worker.rank == 0:
        worker._warn(f"checkpoint {path} is not whole; another one is looked for")


def check_is_path(folder: str | os.PathLike[str]) -> None:
    """Raises ValueError for a URL, also for one that went through pathlib ("s3:/bucket")."""
    if re.match("[A-Za-z][A-Za-z0-9+.-]+:/", os.fspath(folder)):
        raise ValueError(f"checkpoints in {os.fspath(folder)} are not found: it is a URL; name a "
                         "folder in a file system that every rank sees")


def paths_under(folder: str | os.PathLike[str]) -> Iterator[str]:
    """All files and folders under `folder`, but checkpoints that are not done or are replaced.

    Beside `X` an `X.replaced` is what a removal has left of the old one. Without `X` it is whole.
    Raises ValueError if `folder` is a URL.
    """
    check_is_path(folder)
    for where, folders, names in os.walk(folder):
        found = {*folders, *names}
        left_out = {name for name in found if name.endswith(PARTIAL) or (
            name.endswith(_REPLACED) and name.removesuffix(_REPLACED) in found)}
        folders[:] = [name for name in folders if name not in left_out]
        yield from (os.path.join(where, name) for name in (*folders, *names)
                    if name not in left_out)


def time_of(path: str) -> int:
    """When it was written, in nanoseconds; 0: it is gone."""
    try:
        return os.stat(path).st_mtime_ns
    except OSError:
        return 0


def is_whole(path: str) -> bool:
    """Whether this file has all that its own beginning, or its own end, says. Nothing is loaded.

    A file of a kind that says nothing about it is taken as whole.
    """
    try:
        if path.endswith(".safetensors"):
            return _is_whole_safetensors(path)
        if path.endswith(_TORCH_ENDINGS):
            with open(path, "rb") as file:
                begins = file.read(4)
            if begins == b"PK\3\4":
                torch._C.PyTorchFileReader(path)
            return len(begins) == 4
        return True
    except (OSError, RuntimeError, ValueError):
        return False


def are_whole(folder: str) -> bool:
    """The same of all files under `folder`."""
    return all(map(is_whole, filter(os.path.isfile, paths_under(folder))))


def contents(path: str) -> dict[Any, Any]:
    """The contents of a file of torch.save(): its numbers, its texts, and the containers of these.

    All else in it is an empty object here: no tensor is read and nothing of it is executed. Empty:
    it is not whole, or no dictionary.
    """
    try:
        record = torch._C.PyTorchFileReader(path).get_record("data.pkl")
        found = _Reader(record).load()
    except Exception:  # whatever a torn or foreign file makes of itself
        return {}
    return found if type(found) is dict else {}


class _Empty(dict):  # type: ignore[type-arg]
    """Stands for an object of any class, in what a pickle does to it."""

    def __new__(cls, *_: object, **__: object) -> _Empty:
        return super().__new__(cls)

    def __init__(self, *_: object, **__: object) -> None:
        super().__init__()

    def __call__(self, *_: object, **__: object) -> _Empty:
        return _Empty()

    def ignore(self, _: object) -> None:
        pass

    __setstate__ = append = extend = add = ignore
    __hash__ = object.__hash__  # type: ignore[assignment]


class _Reader(pickle.Unpickler):
    """Makes no object but Python's own plain ones, and calls nothing."""

    def __init__(self, record: bytes) -> None:
        super().__init__(io.BytesIO(record))

    def find_class(self, module: str, name: str) -> Any:
        return _Empty

    def persistent_load(self, pid: object) -> Any:
        return None


def _is_whole_safetensors(path: str) -> bool:
    with open(path, "rb") as file:
        length = int.from_bytes(file.read(8), "little")
        if not 0 < length <= _SAFETENSORS_HEADER_BYTES_MAX:
            return False
        header = json.loads(file.read(length))
    ends = [tensor["data_offsets"][1] for name, tensor in header.items() if name != "__metadata__"]
    return os.path.getsize(path) == 8 + length + max(ends, default=0)


def _together(worker: Worker, path: str, act: Callable[[], bool]) -> bool:
    """act() on this rank; whether it is True on all. Raises on all if it does on one."""
    error: Exception | None = None
    try:
        said = _DONE if act() else _ISOLATED
    except OSError as caught:
        error, said = caught, _FAILED
    worst = worker._agree(said)
    if error is not None:
        raise error
    if worst == _FAILED:
        raise RuntimeError(f"checkpoint {path} is not saved: another rank could not put it in "
                           "place, and says why")
    return worst == _DONE


def _make_room(worker: Worker, path: str) -> bool:
    if is_isolated(worker, path):
        return False
    folder = os.path.dirname(path)
    _make_folder(worker, folder)
    _remove(path + PARTIAL)
    # All of those that were under way in an earlier generation: no rank continues one.
    for left in glob.glob(os.path.join(glob.escape(folder), "ddprun-step=*" + PARTIAL)):
        _try_to_remove(worker, left)
    return True


def _make_folder(worker: Worker, folder: str) -> None:
    """As os.makedirs(), but each new name is on the disk."""
    if not folder or os.path.isdir(folder):
        return
    parent = os.path.dirname(folder.rstrip(os.sep))
    _make_folder(worker, parent)
    os.makedirs(folder, exist_ok=True)
    _sync_folder(worker, parent or ".")


def _sync(worker: Worker, path: str) -> bool:
    """All of it is on the disk. Another node's file may not be seen yet: that node syncs it."""
    if os.path.isdir(path):
        for where, _, names in os.walk(path, topdown=False):
            for name in names:
                _sync_one(os.path.join(where, name))
            _sync_folder(worker, where)
    elif os.path.exists(path):
        _sync_one(path)
    return True


def _sync_folder(worker: Worker, path: str) -> None:
    """One line, the first time, where the file system syncs no folders (9p, some of FUSE)."""
    global _has_told_unsynced
    try:
        _sync_one(path)
    except OSError as error:
        if error.errno not in _SYNCS_NO_FOLDER:
            raise
        if not _has_told_unsynced:
            worker._warn(f"folder {path} cannot be synced ({error.strerror}): its file system "
                         "syncs no folders; a checkpoint may be gone after a loss of power")
        _has_told_unsynced = True


def _sync_one(path: str) -> None:
    file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(file)
    finally:
        os.close(file)


def _put_in_place(worker: Worker, partial: str, path: str) -> bool:
    if is_isolated(worker, path):
        return False
    replaced = path + _REPLACED
    is_aside = os.path.lexists(path) and (os.path.isdir(path) or os.path.isdir(partial))
    if is_aside:
        # A folder cannot be replaced at once everywhere. The old one is whole all the time, and
        # is found under that name, too.
        _remove(replaced)
        os.rename(path, replaced)
    try:
        os.replace(partial, path)
    except OSError:
        if is_aside:
            os.rename(replaced, path)
        raise
    _sync_folder(worker, os.path.dirname(path) or ".")
    if os.path.lexists(replaced):
        _try_to_remove(worker, replaced)
    return True


def _try_to_remove(worker: Worker, path: str) -> None:
    """Under a name first that no finder takes. One line if it stays: the new checkpoint is good."""
    try:
        partial = path if path.endswith(PARTIAL) else path + PARTIAL
        if partial != path:
            os.rename(path, partial)
        _remove(partial)
    except OSError as error:
        worker._warn(f"{path} cannot be removed: {error.strerror}; the next checkpoint "
                     "of a leave tries again")


def _remove(path: str) -> None:
    if os.path.isdir(path) and not os.path.islink(path):
        shutil.rmtree(path)
    elif os.path.lexists(path):
        os.unlink(path)
