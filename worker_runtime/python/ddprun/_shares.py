"""Which rank writes which tensor into which file: the same answer on every rank."""

from __future__ import annotations

from typing import Any

from ddprun._library import CheckpointError, Part
from ddprun._tensors import SHARED

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

    from ddprun._library import Library

MODEL, TRAINING = "model", "training"
_MODEL_PREFIX = "model."


def kind_of(name: str) -> str:
    """The kind of file that a tensor of this name is in."""
    return MODEL if name.startswith(_MODEL_PREFIX) else TRAINING


def prefix_of(kind: str) -> str:
    """The beginning of names that is left out in the file."""
    return _MODEL_PREFIX if kind == MODEL else ""


class Shares:
    """Made from what each rank has, as Item.description() says it, by rank.

    A tensor that all ranks have is written once: share_out() spreads them. A part is written by
    the one of its holders that has the fewest bytes so far. A tensor that only some ranks have is
    written by the first of these.
    """

    def __init__(self, library: Library, described: list[list[Any]]) -> None:
        """Raises CheckpointError if the ranks have different tensors under one name, or parts that
        are not the whole.
        """
        self._library = library
        self._world_size = len(described)
        #: Names of what each rank writes.
        self.names: list[set[str]] = [set() for _ in described]
        #: Bytes of tensors in all files.
        self.size = 0
        self._sizes = [0] * len(described)
        self._whole_model: dict[str, int] = {}  # the writer of each
        self._model_size = 0
        self._has_model_parts = False
        by_name: dict[str, list[tuple[int, Any]]] = {}
        for rank, entries in enumerate(described):
            for entry in entries:
                by_name.setdefault(entry[0], []).append((rank, entry))
        for holders in by_name.values():
            _check_alike(holders)
        self._share(by_name)

    def writers(self, kind: str) -> list[int]:
        """The ranks that write a file of that kind."""
        return [rank for rank, names in enumerate(self.names)
                if any(kind_of(name) == kind for name in names)]

    def file_name(self, kind: str, rank: int) -> str:
        """The file of one of the writers."""
        writers = self.writers(kind)
        return self._library.file_name(kind, writers.index(rank) + 1, len(writers))

    def model_index(self) -> tuple[dict[str, str], int] | None:
        """The file of each tensor of the model, and the bytes of all, if no tensor is in parts."""
        if self._has_model_parts or not self._whole_model:
            return None
        names = {rank: self.file_name(MODEL, rank) for rank in self.writers(MODEL)}
        return ({name[len(_MODEL_PREFIX):]: names[rank]
                 for name, rank in self._whole_model.items()}, self._model_size)

    def _share(self, by_name: dict[str, list[tuple[int, Any]]]) -> None:
        shared = []
        for name, holders in sorted(by_name.items()):
            _, entry = holders[0]
            global_shape, size, whose = entry[3], entry[5], entry[6]
            if global_shape is not None:
                self._share_parts(name, holders)
            elif whose == SHARED and len(holders) == self._world_size:
                shared.append((name, size))
            else:
                self._give(holders[0][0], name, size)
        ranks = self._library.share_out([size for _, size in shared], self._world_size)
        for (name, size), rank in zip(shared, ranks):
            self._give(rank, name, size)

    def _share_parts(self, name: str, holders: list[tuple[int, Any]]) -> None:
        self._has_model_parts |= kind_of(name) == MODEL
        by_place: dict[Any, list[tuple[int, Any]]] = {}
        for rank, entry in holders:
            by_place.setdefault((*entry[4], *entry[2]), []).append((rank, entry))
        firsts = [same[0] for same in by_place.values()]
        self._library.check_parts(
            [Part(name, entry[1], entry[2], 0, 0, entry[3], entry[4], entry[7])
             for _, entry in firsts],
            [rank for rank, _ in firsts])
        for same in by_place.values():
            # check_parts() has seen the first of them.
            _check_dimension(same)
            rank, entry = min(same, key=lambda holder: (self._sizes[holder[0]], holder[0]))
            self._give(rank, name, entry[5])

    def _give(self, rank: int, name: str, size: int) -> None:
        self.names[rank].add(name)
        self.size += size
        self._sizes[rank] += size
        if kind_of(name) == MODEL:
            self._whole_model[name] = rank
            self._model_size += size


def _check_dimension(holders: list[tuple[int, Any]]) -> None:
    first_rank, first = holders[0]
    for rank, entry in holders:
        if entry[7] != first[7]:
            raise CheckpointError(
                f"{entry[0]} is sharded along `{first[7]}` on rank {first_rank} and along "
                f"`{entry[7]}` on rank {rank}")


def _check_alike(holders: Iterable[tuple[int, Any]]) -> None:
    first_rank, first = next(iter(holders))
    for rank, entry in holders:
        own = (entry[1], entry[3] or entry[2], entry[3] is None)
        if own != (first[1], first[3] or first[2], first[3] is None):
            raise CheckpointError(
                f"{entry[0]} is {entry[1]} {entry[3] or entry[2]} on rank {rank} and {first[1]} "
                f"{first[3] or first[2]} on rank {first_rank}")
