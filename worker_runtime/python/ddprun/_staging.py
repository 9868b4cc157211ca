"""Copies of tensors, from which a checkpoint is written while the training goes on."""

from __future__ import annotations

from typing import Any

import torch

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from ddprun._tensors import Item


class Buffers:
    """Memory for copies, kept from save to save: its pages are there, and pinned for GPUs."""

    def __init__(self) -> None:
        self._by_name: dict[str, Any] = {}

    def missing(self, items: Iterable[Item]) -> int:
        """Bytes that copies of `items` take beside the memory that is kept."""
        return sum(item.size for item in items if self._fitting(item) is None)

    def keep_only(self, items: Iterable[Item]) -> None:
        """Gives back memory that fits none of `items`."""
        fitting = {item.name: self._fitting(item) for item in items}
        self._by_name = {name: kept for name, kept in fitting.items() if kept is not None}

    def copy(self, items: Sequence[Item], after: Any = None) -> None:
        """Replaces the tensor of each item by its copy.

        after: of GPUs, as mark() gives it: the copies wait for what was under way then, on a
        stream of their own, and are done on return.
        """
        stream = None
        if after is not None:
            stream = torch.cuda.Stream()
            stream.wait_event(after)
        with torch.no_grad(), torch.cuda.stream(stream):
            for item in items:
                kept = self._made(item)
                kept.copy_(item.tensor, non_blocking=stream is not None)
                item.tensor = kept
        if stream is not None:
            stream.synchronize()

    def _made(self, item: Item) -> Any:
        kept = self._fitting(item)
        if kept is None:
            kept = self._by_name[item.name] = torch.empty(
                item.tensor.shape, dtype=item.tensor.dtype, pin_memory=item.tensor.is_cuda)
        return kept

    def _fitting(self, item: Item) -> Any:
        kept = self._by_name.get(item.name)
        is_fit = kept is not None and kept.shape == item.tensor.shape and (
            kept.dtype == item.tensor.dtype and kept.is_pinned() == item.tensor.is_cuda)
        return kept if is_fit else None


def mark(items: Iterable[Item]) -> Any:
    """The point that the GPU's current stream has reached, if an item is on a GPU."""
    if not any(item.tensor.is_cuda for item in items):
        return None
    event = torch.cuda.Event()
    event.record()
    return event
