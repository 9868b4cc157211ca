"""Copies of tensors, from which a checkpoint is written while the training goes on."""

from __future__ import annotations

from typing import Any

import torch

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

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

    def copy(self, items: Sequence[Item], after: Mapping[Any, Any] = {}) -> None:
        """Replaces the tensor of each item by its copy.

        after: of GPUs, as mark() gives it: the copies wait for what was under way then, on
        streams of their own, and are done on return. Any thread, whose current device may be
        another.
        """
        by_device: dict[Any, list[Item]] = {}
        for item in items:
            by_device.setdefault(item.tensor.device, []).append(item)
        streams = []
        with torch.no_grad():
            for device, own in by_device.items():
                if device not in after:
                    self._copy(own, False)
                    continue
                stream = torch.cuda.Stream(device)
                with torch.cuda.device(device), torch.cuda.stream(stream):
                    stream.wait_event(after[device])
                    self._copy(own, True)
                streams.append(stream)
        for stream in streams:
            stream.synchronize()
        # Not sooner: the program may have let go of it, and its memory would be used anew.
        for item in items:
            item.tensor = self._by_name[item.name]

    def _copy(self, items: Iterable[Item], is_ordered_by_stream: bool) -> None:
        for item in items:
            self._made(item).copy_(item.tensor, non_blocking=is_ordered_by_stream)

    def _made(self, item: Item) -> Any:
        kept = self._fitting(item)
        if kept is None:
            kept = self._by_name[item.name] = torch.empty(
                item.tensor.shape, dtype=item.tensor.dtype, device="cpu",
                pin_memory=item.tensor.is_cuda)
        return kept

    def _fitting(self, item: Item) -> Any:
        kept = self._by_name.get(item.name)
        is_fit = kept is not None and kept.shape == item.tensor.shape and (
            kept.dtype == item.tensor.dtype and kept.is_pinned() == item.tensor.is_cuda)
        return kept if is_fit else None


def mark(items: Iterable[Item]) -> dict[Any, Any]:
    """By GPU that has items: the point that this thread's current stream of it has reached."""
    marks = {}
    for device in {item.tensor.device for item in items if item.tensor.is_cuda}:
        with torch.cuda.device(device):
            marks[device] = torch.cuda.Event()
            marks[device].record(torch.cuda.current_stream(device))
    return marks
