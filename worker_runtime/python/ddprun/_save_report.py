"""Tells the agent how the saves of one Checkpoints go: docs/events.md, checkpoint_saved."""

from __future__ import annotations

import contextlib
import operator
from time import monotonic_ns

from ddprun._library import text_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from ddprun._page import Page


class SaveReport:
    """Writes how saves go into the page, on the rank that leads them.

    saved() and failed() may be called on any thread; all else is called on the training's.
    """

    def __init__(self, page: Page, ring: Callable[[memoryview], None]) -> None:
        self._page = page
        self._leads = False
        self._is_in_call = False  # the save that this call has begun ends with it
        page.ring_with(ring)

    @contextlib.contextmanager
    def call(self) -> Iterator[None]:
        """Around a call that saves, in which the training stands still.

        A save that the call has begun, and that has not ended, has failed; unless it goes on.
        """
        begin_ns, why = monotonic_ns(), ""
        try:
            yield
        except Exception as error:
            why = text_of(error)
            raise
        finally:
            if self._is_in_call:
                self._is_in_call = False
                self.failed(why)
            if self._leads:
                self._page.tell_save_stalled(monotonic_ns() - begin_ns)

    def asked(self, leads: bool, is_late: bool) -> None:
        """leads: this is rank 0. is_late: the save before is under way."""
        self._leads = leads
        if leads:
            self._page.tell_save_asked(is_late)

    def begun(self, step: int) -> None:
        """No save is under way now but this one."""
        with contextlib.suppress(TypeError):
            if self._leads and 0 <= operator.index(step) < 1 << 63:
                self._is_in_call = True
                self._page.tell_save_begun(step)

    def goes_on(self) -> None:
        """A thread ends the save."""
        self._is_in_call = False

    def saved(self, size: int, places: int) -> None:
        """size: bytes of all ranks' tensors. places: where they are, as the page has it.

        Only the first call of this and failed() counts.
        """
        if self._leads:
            self._page.tell_save_ended(size, places)

    def failed(self, why: str) -> None:
        """why: one line."""
        if self._leads:
            self._page.tell_save_ended(None, 0, why)
