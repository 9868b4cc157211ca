"""The part of ddprun-checkpoint.so that keeps checkpoints in the memory of a node."""

from __future__ import annotations

import ctypes
import os
from typing import Any, NamedTuple

from ddprun._library import File, OpenCheckpoint, _Error, _File, _file, _Info, _Manifest, \
    _Tensor, _tensors, _text, manifest_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from ddprun._library import Library, Manifest, Part


class MemoryPlace(NamedTuple):
    """A rank, and its node's ddprun-memory; `socket` is empty if there is none."""

    socket: str
    series: str
    generation: int
    rank: int
    local_rank: int
    local_world_size: int
    group_rank: int


class Agreement(NamedTuple):
    """Whether all ranks have a connection, whether this node has a partner; a line for people."""

    is_kept: bool
    has_partner: bool
    line: str


class Candidate(NamedTuple):
    """A step that may be whole in the nodes' memory; the rank that can read its manifest."""

    step: int
    manifest_rank: int


class _Place(ctypes.Structure):
    _fields_ = [("socket", ctypes.c_char_p), ("series", ctypes.c_char_p),
                ("generation", ctypes.c_uint64), ("rank", ctypes.c_int32),
                ("local_rank", ctypes.c_int32), ("local_world_size", ctypes.c_int32),
                ("group_rank", ctypes.c_int32)]


class _TensorFile(ctypes.Structure):
    _fields_ = [("prefix", ctypes.c_char_p), ("tensors", ctypes.POINTER(_Tensor)),
                ("count", ctypes.c_uint64), ("file", _File)]


class _Candidate(ctypes.Structure):
    _fields_ = [("step", ctypes.c_int64), ("manifest_rank", ctypes.c_int32)]


_Handle = ctypes.c_void_p
_Text = ctypes.POINTER(ctypes.c_char_p)
_Flag = ctypes.POINTER(ctypes.c_int32)
_ARGUMENTS: dict[str, list[Any]] = {
    "memory_connect": [ctypes.POINTER(_Place), ctypes.POINTER(_Handle), _Text],
    "memory_agree": [_Handle, _Text, ctypes.c_uint64, ctypes.c_int32, _Flag, _Flag,
                     ctypes.POINTER(_Error)],
    "memory_begin_save": [_Handle, ctypes.c_int64, ctypes.c_uint64],
    "memory_write": [_Handle, ctypes.POINTER(_TensorFile), ctypes.c_uint64,
                     ctypes.POINTER(_Error)],
    "memory_manifest": [_Handle, ctypes.c_int64, ctypes.POINTER(_Manifest), _Text],
    "memory_write_manifest": [_Handle, ctypes.c_char_p, ctypes.c_int32],
    "memory_seal": [_Handle],
    "memory_copies": [_Handle, _Text],
    "memory_candidates": [_Handle, _Text, ctypes.c_uint64, ctypes.c_int64, ctypes.c_uint64,
                          ctypes.POINTER(ctypes.c_uint64), _Text],
    "memory_read_manifest": [_Handle, ctypes.c_uint64, _Text],
    "memory_fetch": [_Handle, ctypes.c_uint64, ctypes.c_char_p],
    "memory_open": [_Handle, ctypes.POINTER(ctypes.c_void_p), ctypes.POINTER(_Info)],
    "memory_keep": [_Handle, _Text],
}


class NodeMemory:
    """A rank's connection to its node's ddprun-memory, or the reason why it has none.

    Calls block without Python's lock, and raise CheckpointError. One thread at a time.
    """

    def __init__(self, library: Library, place: MemoryPlace) -> None:
        """A connection that fails raises nothing: `text` says so to the other ranks."""
        library.declare(_ARGUMENTS)
        self._library = library
        c = library._c
        c.ddprun_checkpoint_memory_candidate.argtypes = [_Handle, ctypes.c_uint64,
                                                         ctypes.POINTER(_Candidate)]
        c.ddprun_checkpoint_memory_close.argtypes = [_Handle]
        self._handle = _Handle()
        text = ctypes.c_char_p()
        given = _Place(_text(place.socket), os.fsencode(place.series), *place[2:])
        library.call("memory_connect", given, self._handle, text)
        #: For the other ranks.
        self.text = _str(text)

    def close(self) -> None:
        """Ends the connection."""
        handle, self._handle = self._handle, _Handle()
        self._library._c.ddprun_checkpoint_memory_close(handle)

    def agree(self, texts: Sequence[str], partner: int | None) -> Agreement:
        """texts: of all ranks, by rank. partner: the group rank of this node's partner."""
        is_kept, has_partner, line = ctypes.c_int32(), ctypes.c_int32(), _Error()
        self._call("agree", _list(texts), len(texts), -1 if partner is None else partner, is_kept,
                   has_partner, line)
        return Agreement(bool(is_kept.value), bool(has_partner.value),
                         line.text.decode(errors="replace"))

    def begin_save(self, step: int, save: int) -> None:
        """From now on files are written and sealed for this save of `step`."""
        self._call("begin_save", step, save)

    def write(self, files: Sequence[tuple[str, str, Sequence[Part]]]) -> tuple[list[File], str]:
        """Writes files, each with name, prefix of names and tensors. Returns also why the partner
        has no copy of them; empty: it has, or there is none."""
        given = (_TensorFile * len(files))()
        for one, (name, prefix, parts) in zip(given, files):
            one.prefix, one.count = _text(prefix), len(parts)
            one.tensors = _tensors(parts)
            one.file.name = _text(name)
        note = _Error()
        self._call("write", given, len(files), note)
        return [_file(one.file) for one in given], note.text.decode(errors="replace")

    def manifest(self, step: int, manifest: Manifest) -> str:
        """Its text."""
        text = ctypes.c_char_p()
        self._call("manifest", step, manifest_of(manifest), text)
        return _str(text)

    def write_manifest(self, manifest: str, is_isolated: bool) -> None:
        """The first rank of a node writes it; other ranks do nothing."""
        self._call("write_manifest", manifest.encode(), int(is_isolated))

    def seal(self) -> None:
        """The first rank of a node makes the step count there; other ranks do nothing."""
        self._call("seal")

    def copies(self) -> str:
        """The node's files, for the other ranks; no files unless this is the first one."""
        text = ctypes.c_char_p()
        self._call("copies", text)
        return _str(text)

    def candidates(self, texts: Sequence[str],
                   at_least: tuple[int, int]) -> tuple[list[Candidate], str]:
        """The steps that may be whole; the newest first. A line for people about a node whose files
        are not known. texts: copies() of all ranks. at_least: a step, and which save of it. The
        next calls take an index of the list."""
        count, candidate, line = ctypes.c_uint64(), _Candidate(), ctypes.c_char_p()
        self._call("candidates", _list(texts), len(texts), *at_least, count, line)
        found = []
        for index in range(count.value):
            self._library._c.ddprun_checkpoint_memory_candidate(self._handle, index, candidate)
            found.append(Candidate(candidate.step, candidate.manifest_rank))
        return found, _str(line)

    def read_manifest(self, index: int) -> str:
        """Its text on the rank that can read it; empty on others."""
        text = ctypes.c_char_p()
        self._call("read_manifest", index, text)
        return _str(text)

    def fetch(self, index: int, manifest: str) -> None:
        """Copies this rank's share of the files that the node lacks."""
        self._call("fetch", index, manifest.encode())

    def open(self) -> OpenCheckpoint:
        """Maps the step that was fetched last, and verifies this rank's share."""
        handle, info = ctypes.c_void_p(), _Info()
        self._call("open", handle, info)
        return OpenCheckpoint(self._library._c, handle, info)

    def keep(self) -> str:
        """The first rank of a node makes the step that was fetched last count there. The text is a
        line for people, if it is not empty."""
        line = ctypes.c_char_p()
        self._call("keep", line)
        return _str(line)

    def _call(self, name: str, *arguments: Any) -> None:
        self._library.call("memory_" + name, self._handle, *arguments)


def _list(texts: Sequence[str]) -> Any:
    return (ctypes.c_char_p * len(texts))(*(text.encode() for text in texts))


def _str(text: Any) -> str:
    return str(text.value.decode())
