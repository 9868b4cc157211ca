"""The ranks of a training tell each other about a checkpoint."""

from __future__ import annotations

import atexit
import ctypes
import json
from typing import Any

import torch
import torch.distributed as dist

from ddprun._library import CheckpointError, text_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable


class Exchange:
    """A Gloo group of its own, so that the order of the program's collectives does not matter.

    Every rank makes each call, in the same order. For one thread. A call raises CheckpointError
    once a peer or the group is gone.
    """

    def __init__(self, rank: int, world_size: int) -> None:
        """Makes the group; returns once all ranks have."""
        self.rank = rank
        self.world_size = world_size
        self._group: Any = dist.new_group(backend="gloo") if world_size > 1 else None
        if self._group is not None:
            # Gloo's threads hold tensors of Python's, which must not outlive the interpreter.
            atexit.register(self._end)

    def gather(self, said: Any) -> list[Any]:
        """Returns on every rank, by rank, what each one says; anything that JSON has."""
        if self._group is None:
            return [said]
        text = json.dumps(said).encode()
        try:
            sizes = torch.zeros(self.world_size, dtype=torch.int64, device="cpu")
            sizes[self.rank] = len(text)
            dist.all_reduce(sizes, group=self._group)
            mine = torch.zeros(int(sizes.max()), dtype=torch.uint8, device="cpu")
            mine[:len(text)] = torch.frombuffer(bytearray(text), dtype=torch.uint8)
            texts = [torch.empty_like(mine) for _ in range(self.world_size)]
            dist.all_gather(texts, mine, group=self._group)
        except (RuntimeError, ValueError) as error:
            raise _gone(error) from None
        return [json.loads(ctypes.string_at(text.data_ptr(), size)) for text, size in
                zip(texts, sizes.tolist())]

    def attempt(self, act: Callable[[], Any]) -> tuple[Any, str | None]:
        """act() on every rank: its result, and, if it raised on a rank, why. The reason is that of
        the first such rank, which it names, and the same on every rank."""
        result = problem = None
        try:
            result = act()
        except Exception as error:  # whatever it is, the other ranks must know
            problem = text_of(error)
        for rank, said in enumerate(self.gather(problem)):
            if said is not None:
                return result, f"rank {rank}: {said}"
        return result, None

    def from_rank(self, root: int, text: str) -> str:
        """Returns the text of rank `root` on every rank."""
        if self._group is None:
            return text
        data = text.encode()
        try:
            size = torch.tensor([len(data)], dtype=torch.int64, device="cpu")
            dist.broadcast(size, root, group=self._group)
            whole = torch.zeros(int(size), dtype=torch.uint8, device="cpu")
            if self.rank == root and data:
                whole[:] = torch.frombuffer(bytearray(data), dtype=torch.uint8)
            if len(whole):
                dist.broadcast(whole, root, group=self._group)
        except (RuntimeError, ValueError) as error:
            raise _gone(error) from None
        return ctypes.string_at(whole.data_ptr(), len(whole)).decode()

    def gather_at_first(self, mine: Any) -> Any:
        """Returns on rank 0 [world, n], of uint8 tensors that all have n bytes; else None."""
        if self._group is None:
            return mine.unsqueeze(0)
        all_of_them = torch.empty(self.world_size if self.rank == 0 else 0, mine.numel(),
                                  dtype=torch.uint8, device="cpu")
        try:
            dist.gather(mine.contiguous(), list(all_of_them) if self.rank == 0 else None,
                        group=self._group)
        except (RuntimeError, ValueError) as error:
            raise _gone(error) from None
        return all_of_them if self.rank == 0 else None

    def _end(self) -> None:
        group, self._group = self._group, None
        if dist.is_initialized():
            try:
                dist.destroy_process_group(group)
            except (RuntimeError, ValueError):
                pass  # the program has destroyed it


def place() -> tuple[int, int]:
    """Rank and world size of the training. Raises CheckpointError if the ranks cannot agree."""
    from ddprun import worker

    if dist.is_available() and dist.is_initialized():
        return dist.get_rank(), dist.get_world_size()
    here = worker()
    if here.world_size > 1:
        raise CheckpointError(
            f"checkpoints: rank {here.rank} of {here.world_size} cannot agree with the others, "
            "torch.distributed is not initialised; call init_process_group() before")
    return 0, 1


def _gone(error: Exception) -> CheckpointError:
    return CheckpointError("the ranks cannot agree on a checkpoint, a peer or the process group "
                           "is gone: " + str(error).partition("\n")[0])
