"""One checkpoint as all ranks write it: whole on all of them, or nowhere."""

from __future__ import annotations

from typing import Any

from ddprun._library import CheckpointError, File, Manifest, Partial, text_of
from ddprun._shares import MODEL, TRAINING, kind_of, prefix_of
from ddprun._tensors import in_memory

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from ddprun._exchange import Exchange
    from ddprun._library import Library, Part
    from ddprun._shares import Shares
    from ddprun._tensors import Item


class Write:
    """A checkpoint that is about to be written; `items` are what this rank writes."""

    def __init__(self, library: Library, dir: str, step: int, shares: Shares,
                 items: Sequence[Item]) -> None:
        self.dir = dir
        self.step = step
        self.items = items
        self._library = library
        self._shares = shares

    def size(self) -> int:
        """Bytes of this rank's tensors."""
        return sum(item.size for item in self.items)

    def size_of_all(self) -> int:
        """The same of all ranks'."""
        return self._shares.size

    def agree(self, exchange: Exchange, problem: str | None) -> None:
        """Raises CheckpointError on every rank if one has a problem: it cannot write."""
        self._raise_first(exchange.gather(problem))

    def files(self, rank: int) -> Iterator[tuple[str, str, list[tuple[Any, Part]]]]:
        """Name, prefix and tensors of each file that this rank, number `rank`, writes. Each tensor
        is in memory as long as the first of its pair exists."""
        for kind in (MODEL, TRAINING):
            pairs = [in_memory(item) for item in self.items if kind_of(item.name) == kind]
            if pairs:
                yield self._shares.file_name(kind, rank), prefix_of(kind), pairs

    def write(self, exchange: Exchange, manifest: Manifest, is_isolated: Callable[[], bool],
              on_warning: Callable[[str], None]) -> None:
        """Returns once the checkpoint is in place and on disk.

        manifest: without files. Raises CheckpointError on every rank with the problem of the first
        rank that has one; nothing of the checkpoint is left then.
        """
        partial = problem = None
        if exchange.rank == 0:
            try:
                partial = self._library.begin(self.dir, self.step, self._shares.size)
            except Exception as error:  # whatever it is, the other ranks must know
                problem = text_of(error)
        try:
            said = exchange.gather([problem, partial.name if partial else ""])
            self._raise_first([rank_problem for rank_problem, _ in said])
            files = self._write_files(exchange, Partial(self.dir, self.step, said[0][1]))
        except CheckpointError:
            if partial is not None:
                self._library.abandon(partial)
            raise
        problem = None
        if partial is not None:
            try:
                self._publish(partial, manifest._replace(files=files), is_isolated, on_warning)
            except Exception as error:
                self._library.abandon(partial)
                problem = text_of(error)
        self._raise_first(exchange.gather(problem))

    def _write_files(self, exchange: Exchange, partial: Partial) -> list[File]:
        """The files of all ranks."""
        problem, files = None, []
        try:
            for name, prefix, pairs in self.files(exchange.rank):
                files.append(self._library.write_tensors(partial, name, prefix,
                                                         [part for _, part in pairs]))
        except Exception as error:
            problem = f"{text_of(error)}; its tensors take {self.size()} bytes there"
        said: list[Any] = exchange.gather([problem, files])
        self._raise_first([rank_problem for rank_problem, _ in said])
        return [File(*file) for _, rank_files in said for file in rank_files]

    def _publish(self, partial: Partial, manifest: Manifest, is_isolated: Callable[[], bool],
                 on_warning: Callable[[str], None]) -> None:
        index = self._shares.model_index()
        if index is not None:
            files = [*manifest.files, self._library.write_model_index(partial, *index)]
            manifest = manifest._replace(files=files)
        self._library.publish(partial, manifest, is_isolated, on_warning)

    def _raise_first(self, problems: Sequence[str | None]) -> None:
        for rank, problem in enumerate(problems):
            if problem is not None:
                raise CheckpointError(f"checkpoint of step {self.step} is not saved to "
                                      f"{self.dir}: rank {rank}: {problem}")
