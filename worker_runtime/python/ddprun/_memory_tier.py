"""The checkpoints of a training in the memory of its nodes, as MemoryTier of the C++ runtime."""

from __future__ import annotations

from ddprun._library import CheckpointError, File
from ddprun._memory_library import MemoryPlace, NodeMemory
from ddprun._page import IN_MEMORY, ON_PARTNERS

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ddprun._exchange import Exchange
    from ddprun._library import Library, Manifest, OpenCheckpoint
    from ddprun._worker import Worker
    from ddprun._write import Write


class NotKept(CheckpointError):
    """A step is not kept in memory, on all ranks; the last kept one is still there."""


class MemoryTier:
    """Every rank makes each call, in the same order. One thread at a time."""

    def __init__(self, memory: NodeMemory, has_partner: bool, worker: Worker) -> None:
        self._memory = memory
        self._has_partner = has_partner
        self._worker = worker
        self._last_note = ""

    def save(self, exchange: Exchange, write: Write, manifest: Manifest) -> int:
        """Keeps the step, and returns where it is, as the page has it.

        manifest: without files. A step that is kept already is replaced. Raises NotKept on every
        rank if one cannot; the save before then still counts.
        """
        self._memory.begin_save(write.step, manifest.save)
        written, problem = exchange.attempt(lambda: self._write(exchange.rank, write))
        self._check(write.step, problem)
        said = exchange.gather(written)

        def text() -> str:
            files = [File(*file) for files, _ in said for file in files]
            whole = manifest._replace(files=files)
            return self._memory.manifest(write.step, whole) if exchange.rank == 0 else ""

        own, problem = exchange.attempt(text)
        self._check(write.step, problem)
        whole = exchange.from_rank(0, own)
        _, problem = exchange.attempt(
            lambda: self._memory.write_manifest(whole, self._worker.is_isolated()))
        self._check(write.step, problem)
        # A node forgets the step before when it seals: so all can seal before one does.
        _, problem = exchange.attempt(self._memory.seal)
        self._check(write.step, problem)
        return IN_MEMORY | (ON_PARTNERS if all(has_copy for _, has_copy in said) else 0)

    def load(self, exchange: Exchange,
             at_least: tuple[int, int]) -> tuple[int, OpenCheckpoint] | None:
        """The newest step of which the nodes together have all files.

        at_least: a step, and which save of it.
        """
        texts = exchange.gather(self._memory.copies())
        candidates, line = self._memory.candidates(texts, at_least)
        if line and exchange.rank == 0:
            self._worker._warn(line)
        for index, candidate in enumerate(candidates):
            opened, problem = self._opened(exchange, index, candidate.manifest_rank)
            if problem is None and opened is not None:
                if line := self._memory.keep():
                    self._worker._warn(line)
                return candidate.step, opened
            if opened is not None:
                opened.close()
            if exchange.rank == 0:
                self._worker._warn(f"step {candidate.step} in memory is passed over: {problem}")
        return None

    def _write(self, rank: int, write: Write) -> tuple[list[File], bool]:
        """The files of this rank, and whether another node has them, too."""
        kept = list(write.files(rank))
        files, note = self._memory.write([(name, prefix, [part for _, part in pairs])
                                          for name, prefix, pairs in kept])
        if note not in ("", self._last_note) and self._worker._slot == 0:
            self._worker._warn(f"rank {rank}: another node has no copy of the checkpoint in "
                               f"memory: {note}")
        self._last_note = note
        return files, self._has_partner and not note

    def _opened(self, exchange: Exchange, index: int,
                manifest_rank: int) -> tuple[OpenCheckpoint | None, str | None]:
        own, problem = exchange.attempt(lambda: self._memory.read_manifest(index))
        if problem is not None:
            return None, problem
        manifest = exchange.from_rank(manifest_rank, own)
        _, problem = exchange.attempt(lambda: self._memory.fetch(index, manifest))
        return (None, problem) if problem is not None else exchange.attempt(self._memory.open)

    @staticmethod
    def _check(step: int, problem: str | None) -> None:
        if problem is not None:
            raise NotKept(f"step {step} is not kept in memory: {problem}")


def connect(library: Library, exchange: Exchange, worker: Worker, series: str) -> MemoryTier | None:
    """Connects every rank with its node's ddprun-memory. If one cannot, all return None.

    series: names the training on all nodes alike.
    """
    # A group of some of the workers has checkpoints of its own, on the disk.
    if exchange.world_size != worker.world_size:
        return None
    # A program that numbers its ranks anew has them in no order of nodes.
    socket = worker._memory_socket if exchange.rank == worker.rank else ""
    memory, problem = exchange.attempt(lambda: NodeMemory(library, MemoryPlace(
        socket, series, worker.generation, worker.rank, worker._slot, worker.local_world_size,
        worker.group_rank)))
    if problem is not None:
        raise CheckpointError(problem)
    texts = exchange.gather(memory.text)
    agreement, problem = exchange.attempt(lambda: memory.agree(texts, worker._memory_partner))
    if problem is not None:
        raise CheckpointError(problem)
    if agreement.is_kept:
        return MemoryTier(memory, agreement.has_partner, worker)
    memory.close()
    if agreement.line and exchange.rank == 0:
        worker._warn(agreement.line)
    return None
