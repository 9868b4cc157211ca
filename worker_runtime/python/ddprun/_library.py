"""The library ddprun-checkpoint.so, through ctypes: checkpoints as the C++ runtime writes them."""

from __future__ import annotations

import ctypes
import os
from typing import Any, NamedTuple

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

_NAME = "ddprun-checkpoint.so"
_VARIABLE = "DDPRUN_CHECKPOINT_LIBRARY"
_ABI = 4
_STEPS = 1000


class CheckpointError(RuntimeError):
    """A checkpoint was not written, or cannot be used; the text is one line for people."""


def text_of(error: Exception) -> str:
    """The error in one line, for the other ranks."""
    return str(error) if isinstance(error, CheckpointError) else repr(error)


class Part(NamedTuple):
    """A tensor in memory, or the part of one that lies at `offsets` of `global_shape`."""

    name: str
    dtype: str
    shape: Sequence[int]
    pointer: int
    size: int
    global_shape: Sequence[int] | None
    offsets: Sequence[int] | None
    mesh_dimension: str = ""  # along which the whole is sharded; empty: it has no name


class StoredPart(NamedTuple):
    """The part of a stored tensor from `offsets` on; `pointer` leads to its bytes."""

    offsets: tuple[int, ...]
    lengths: tuple[int, ...]
    pointer: int
    size: int


class Stored(NamedTuple):
    """A tensor of an open checkpoint; `shape` is of the whole."""

    dtype: str
    shape: tuple[int, ...]
    parts: list[StoredPart]


class File(NamedTuple):
    """A file of a checkpoint, for the manifest."""

    name: str
    size: int
    xxh3_128: str


class Partial(NamedTuple):
    """A checkpoint under way."""

    dir: str
    step: int
    name: str


class Manifest(NamedTuple):
    """The contents of a manifest beside the step, and which older checkpoints stay."""

    generation: int
    world_size: int
    keep: int
    keep_every: int
    values: Mapping[str, str]
    files: Sequence[File]
    save: int = 0  # of two saves of the step the later one has the larger number


class _Error(ctypes.Structure):
    _fields_ = [("text", ctypes.c_char * 4096)]


class _Partial(ctypes.Structure):
    _fields_ = [("dir", ctypes.c_char_p), ("step", ctypes.c_int64), ("name", ctypes.c_char * 128)]


_Numbers = ctypes.POINTER(ctypes.c_int64)


class _Tensor(ctypes.Structure):
    _fields_ = [("name", ctypes.c_char_p), ("dtype", ctypes.c_char_p),
                ("dimensions", ctypes.c_uint64), ("shape", _Numbers), ("global_shape", _Numbers),
                ("offsets", _Numbers), ("mesh_dimension", ctypes.c_char_p),
                ("bytes", ctypes.c_void_p), ("size", ctypes.c_uint64)]


class _File(ctypes.Structure):
    _fields_ = [("name", ctypes.c_char * 256), ("size", ctypes.c_uint64),
                ("xxh3_128", ctypes.c_char * 64)]


class _Text(ctypes.Structure):
    _fields_ = [("key", ctypes.c_char_p), ("text", ctypes.c_char_p)]


_IsIsolated = ctypes.CFUNCTYPE(ctypes.c_int32)
_OnWarning = ctypes.CFUNCTYPE(None, ctypes.c_char_p)


class _Manifest(ctypes.Structure):
    _fields_ = [("save", ctypes.c_uint64), ("generation", ctypes.c_uint64),
                ("world_size", ctypes.c_int32),
                ("keep", ctypes.c_int32), ("keep_every", ctypes.c_int64),
                ("values", ctypes.POINTER(_Text)), ("value_count", ctypes.c_uint64),
                ("files", ctypes.POINTER(_File)), ("file_count", ctypes.c_uint64),
                ("is_isolated", _IsIsolated), ("on_warning", _OnWarning)]


class _Info(ctypes.Structure):
    _fields_ = [("save", ctypes.c_uint64), ("generation", ctypes.c_uint64),
                ("world_size", ctypes.c_int32), ("value_count", ctypes.c_uint64),
                ("tensor_count", ctypes.c_uint64)]


class _Stored(ctypes.Structure):
    _fields_ = [("name", ctypes.c_char_p), ("dtype", ctypes.c_char_p),
                ("dimensions", ctypes.c_uint64), ("shape", _Numbers),
                ("part_count", ctypes.c_uint64)]


class _Part(ctypes.Structure):
    _fields_ = [("offsets", _Numbers), ("lengths", _Numbers), ("bytes", ctypes.c_void_p),
                ("size", ctypes.c_uint64)]


_ARGUMENTS: dict[str, list[Any]] = {
    "begin_probe": [ctypes.POINTER(_Partial)],
    "probe": [ctypes.POINTER(_Partial), ctypes.c_char_p],
    "begin": [ctypes.POINTER(_Partial), ctypes.c_uint64],
    "file_name": [ctypes.c_char_p, ctypes.c_int32, ctypes.c_int32, ctypes.POINTER(_File)],
    "write_tensors": [ctypes.POINTER(_Partial), ctypes.c_char_p, ctypes.POINTER(_Tensor),
                      ctypes.c_uint64, ctypes.POINTER(_File)],
    "write_model_index": [ctypes.POINTER(_Partial), ctypes.POINTER(_Text), ctypes.c_uint64,
                          ctypes.c_uint64, ctypes.POINTER(_File)],
    "publish": [ctypes.POINTER(_Partial), ctypes.POINTER(_Manifest)],
    "list": [ctypes.c_char_p, _Numbers, ctypes.c_uint64, ctypes.POINTER(ctypes.c_uint64)],
    "save_of": [ctypes.c_char_p, ctypes.c_int64, ctypes.POINTER(ctypes.c_uint64)],
    "verify": [ctypes.c_char_p, ctypes.c_int64],
    "share_out": [ctypes.POINTER(ctypes.c_uint64), ctypes.c_uint64, ctypes.c_int32,
                  ctypes.POINTER(ctypes.c_int32)],
    "check_parts": [ctypes.POINTER(_Tensor), ctypes.POINTER(ctypes.c_int32), ctypes.c_uint64],
    "open": [ctypes.c_char_p, ctypes.c_int64, ctypes.c_uint64, ctypes.c_uint64,
             ctypes.POINTER(ctypes.c_void_p), ctypes.POINTER(_Info)],
}


def find_library() -> str:
    """The library's path: named by the variable, beside this file, or built in this checkout.

    Raises CheckpointError, with how to get it, if there is none.
    """
    here = os.path.dirname(os.path.abspath(__file__))
    named = os.environ.get(_VARIABLE)
    if named:
        return named
    builds = os.path.join(here, "..", "..", "..", "build")
    places = [here, os.path.join(builds, "release", "bin"), os.path.join(builds, "dev", "bin")]
    for folder in places:
        path = os.path.realpath(os.path.join(folder, _NAME))
        if os.path.exists(path):
            return path
    raise CheckpointError(
        f"ddprun.Checkpoints needs {_NAME}, which this installation of the package lacks: install "
        f"ddprun's wheel, build it with scripts/build.sh, or name the file in {_VARIABLE}")


class Library:
    """The functions of ddprun-checkpoint.so. Each blocks without Python's lock; any thread."""

    def __init__(self, path: str) -> None:
        """Raises CheckpointError if `path` cannot be loaded or is of another version."""
        try:
            self._c = ctypes.CDLL(path)
            abi = self._c.ddprun_checkpoint_abi()
        except (OSError, AttributeError) as error:
            raise CheckpointError(f"{path} cannot be loaded: {error}") from None
        if abi != _ABI:
            raise CheckpointError(f"{path} has version {abi}, this package wants {_ABI}; install "
                                  "both from one wheel or checkout")
        self.declare(_ARGUMENTS)
        self._c.ddprun_checkpoint_abandon.argtypes = [ctypes.POINTER(_Partial)]
        self._c.ddprun_checkpoint_remove_leftovers.argtypes = [ctypes.c_char_p]
        for name, kind in (("value", _Text), ("tensor", _Stored)):
            getattr(self._c, "ddprun_checkpoint_" + name).argtypes = [
                ctypes.c_void_p, ctypes.c_uint64, ctypes.POINTER(kind)]
        self._c.ddprun_checkpoint_part.argtypes = [
            ctypes.c_void_p, ctypes.c_uint64, ctypes.c_uint64, ctypes.POINTER(_Part)]
        self._c.ddprun_checkpoint_close.argtypes = [ctypes.c_void_p]
        self._c.ddprun_checkpoint_ring.argtypes = [ctypes.POINTER(ctypes.c_uint32)]
        self._c.ddprun_checkpoint_ring.restype = None

    def declare(self, functions: Mapping[str, list[Any]]) -> None:
        """The types of the arguments of functions, but for the last one, the error."""
        for name, arguments in functions.items():
            function = getattr(self._c, "ddprun_checkpoint_" + name)
            function.argtypes = [*arguments, ctypes.POINTER(_Error)]

    def begin_probe(self, dir: str) -> Partial:
        """Makes a folder for probe() and abandon() alone.

        Raises CheckpointError unless checkpoints can be written into `dir`.
        """
        partial = _Partial(_path(dir))
        self.call("begin_probe", partial)
        return Partial(dir, partial.step, partial.name.decode())

    def probe(self, partial: Partial, name: str) -> None:
        """Raises CheckpointError unless this node sees the folder and can write a file there."""
        self.call("probe", _of(partial), _text(name))

    def begin(self, dir: str, step: int, size: int) -> Partial:
        """Makes the folder of a checkpoint of `size` bytes."""
        partial = _Partial(_path(dir), step)
        self.call("begin", partial, size)
        return Partial(dir, step, partial.name.decode())

    def file_name(self, kind: str, number: int, count: int) -> str:
        """The name of file `number` of `count`, from 1."""
        file = _File()
        self.call("file_name", _text(kind), number, count, file)
        return _file(file).name

    def write_tensors(self, partial: Partial, name: str, prefix: str,
                      parts: Sequence[Part]) -> File:
        """Writes `parts` as the file `name`; the names in it lack `prefix`."""
        file = _File(_text(name))
        self.call("write_tensors", _of(partial), _text(prefix), _tensors(parts), len(parts), file)
        return _file(file)

    def write_model_index(self, partial: Partial, files: Mapping[str, str], size: int) -> File:
        """files: the file of each tensor, by its name there; size: bytes of all tensors."""
        file = _File()
        self.call("write_model_index", _of(partial), _texts(files), len(files), size, file)
        return _file(file)

    def publish(self, partial: Partial, manifest: Manifest, is_isolated: Callable[[], bool],
                on_warning: Callable[[str], None]) -> None:
        """Puts the checkpoint in place; if that fails, nothing of it is left."""
        given = manifest_of(manifest)
        given.is_isolated = _IsIsolated(lambda: int(is_isolated()))
        given.on_warning = _OnWarning(lambda text: on_warning(text.decode(errors="replace")))
        self.call("publish", _of(partial), given)

    def ring(self, bell: memoryview) -> None:
        """Raises `bell`, a word of the page shared with the agent, and wakes the agent."""
        self._c.ddprun_checkpoint_ring(ctypes.byref(ctypes.c_uint32.from_buffer(bell)))

    def abandon(self, partial: Partial) -> None:
        """Removes a checkpoint under way."""
        self._c.ddprun_checkpoint_abandon(_of(partial))

    def steps(self, dir: str) -> list[int]:
        """The steps of the checkpoints in `dir`, newest first, valid or not."""
        capacity = _STEPS
        while True:
            steps, count = (ctypes.c_int64 * capacity)(), ctypes.c_uint64()
            self.call("list", _path(dir), steps, capacity, count)
            if count.value <= capacity:
                return steps[:count.value]
            capacity = count.value

    def save_of(self, dir: str, step: int) -> int:
        """Which save of `step` the checkpoint is; 0 if its manifest cannot be read."""
        save = ctypes.c_uint64()
        self.call("save_of", _path(dir), step, save)
        return save.value

    def remove_leftovers(self, dir: str) -> None:
        """Removes what writers that died have left in `dir`."""
        self._c.ddprun_checkpoint_remove_leftovers(_path(dir))

    def verify(self, dir: str, step: int) -> None:
        """Raises CheckpointError unless every byte is as it was written."""
        self.call("verify", _path(dir), step)

    def share_out(self, sizes: Sequence[int], world_size: int) -> list[int]:
        """The rank that writes each of the tensors that every rank has."""
        ranks = (ctypes.c_int32 * len(sizes))()
        self.call("share_out", (ctypes.c_uint64 * len(sizes))(*sizes), len(sizes), world_size,
                   ranks)
        return list(ranks)

    def check_parts(self, parts: Sequence[Part], ranks: Sequence[int]) -> None:
        """Raises CheckpointError unless `parts`, which ranks have of one tensor, are the whole."""
        self.call("check_parts", _tensors(parts), (ctypes.c_int32 * len(ranks))(*ranks),
                   len(parts))

    def open(self, dir: str, step: int, reader: int, readers: int) -> OpenCheckpoint:
        """Maps a checkpoint; verifies the files of one of so many readers."""
        handle, info = ctypes.c_void_p(), _Info()
        self.call("open", _path(dir), step, reader, readers, handle, info)
        return OpenCheckpoint(self._c, handle, info)

    def call(self, name: str, *arguments: Any) -> None:
        """Calls a function by its name without the prefix. Raises CheckpointError if it fails."""
        error = _Error()
        if getattr(self._c, "ddprun_checkpoint_" + name)(*arguments, error) != 0:
            raise CheckpointError(error.text.decode(errors="replace"))


class OpenCheckpoint:
    """A mapped checkpoint. Pointers of its parts are good until close()."""

    def __init__(self, library: Any, handle: Any, info: Any) -> None:
        self._c = library
        self._handle = handle
        self.save: int = info.save
        self.world_size: int = info.world_size
        self.values: dict[str, str] = {}
        self.tensors: dict[str, Stored] = {}
        try:
            self.values.update(self._values(info.value_count))
            self.tensors.update(self._tensors(info.tensor_count))
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Unmaps it."""
        self.tensors = {}
        handle, self._handle = self._handle, None
        self._c.ddprun_checkpoint_close(handle)

    def _values(self, count: int) -> Iterator[tuple[str, str]]:
        text = _Text()
        for index in range(count):
            self._c.ddprun_checkpoint_value(self._handle, index, text)
            yield text.key.decode(), text.text.decode()

    def _tensors(self, count: int) -> Iterator[tuple[str, Stored]]:
        tensor, part = _Stored(), _Part()
        for index in range(count):
            self._c.ddprun_checkpoint_tensor(self._handle, index, tensor)
            dimensions = tensor.dimensions
            parts = []
            for number in range(tensor.part_count):
                self._c.ddprun_checkpoint_part(self._handle, index, number, part)
                parts.append(StoredPart(tuple(part.offsets[:dimensions]),
                                        tuple(part.lengths[:dimensions]), part.bytes or 0,
                                        part.size))
            yield tensor.name.decode(), Stored(tensor.dtype.decode(),
                                               tuple(tensor.shape[:dimensions]), parts)


def _text(text: str) -> bytes:
    if "\0" in text:
        raise CheckpointError(f"{text!r} has a NUL byte, which no name or value may have")
    return text.encode()


def _path(path: str) -> bytes:
    if "\0" in path:
        raise CheckpointError(f"{path!r} has a NUL byte, which no folder's name may have")
    return os.fsencode(path)


def _numbers(numbers: Sequence[int]) -> Any:
    return (ctypes.c_int64 * max(1, len(numbers)))(*numbers)


def _tensors(parts: Sequence[Part]) -> Any:
    tensors = (_Tensor * len(parts))()
    for tensor, part in zip(tensors, parts):
        tensor.name, tensor.dtype = _text(part.name), _text(part.dtype)
        tensor.dimensions, tensor.shape = len(part.shape), _numbers(part.shape)
        if part.global_shape is not None and part.offsets is not None:
            tensor.global_shape = _numbers(part.global_shape)
            tensor.offsets = _numbers(part.offsets)
            tensor.mesh_dimension = _text(part.mesh_dimension)
        tensor.bytes, tensor.size = part.pointer, part.size
    return tensors


def _texts(texts: Mapping[str, str]) -> Any:
    return (_Text * len(texts))(*(_Text(_text(key), _text(text)) for key, text in texts.items()))


def manifest_of(manifest: Manifest) -> _Manifest:
    """The struct, without functions."""
    files = (_File * len(manifest.files))(*(
        _File(_text(file.name), file.size, _text(file.xxh3_128)) for file in manifest.files))
    return _Manifest(
        manifest.save, manifest.generation, manifest.world_size, manifest.keep, manifest.keep_every,
        _texts(manifest.values), len(manifest.values), files, len(files))


def _of(partial: Partial) -> _Partial:
    return _Partial(_path(partial.dir), partial.step, _text(partial.name))


def _file(file: _File) -> File:
    return File(file.name.decode(), file.size, file.xxh3_128.decode())
