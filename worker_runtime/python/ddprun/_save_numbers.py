"""Which of two saves of one step is the later one, as SaveNumbers of the C++ runtime."""

from __future__ import annotations


class SaveNumbers:
    """Numbers the saves of one training. Ranks that make the same calls count alike."""

    def __init__(self) -> None:
        self._newest = -1  # step of which there may be a save
        self._last = 0  # the largest number so far

    def next(self, step: int) -> int:
        """The number of a save of `step` that begins now: 0 if it is the first of the newest
        step, and larger than that of any save of this step before it."""
        if step > self._newest:
            self._newest = step
            return 0
        self._last += 1
        return self._last

    def resumed(self, step: int, save: int) -> None:
        """The training goes on from this save."""
        self._newest, self._last = max(self._newest, step), max(self._last, save)
