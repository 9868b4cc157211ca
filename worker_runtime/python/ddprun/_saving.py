"""A checkpoint that is written while the training goes on."""

from __future__ import annotations

import threading

from ddprun._library import CheckpointError, text_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable


class Saving:
    """A save under way, as save_async() returns it. Any thread."""

    def __init__(self, step: int) -> None:
        #: The checkpoint's step.
        self.step = step
        self._is_copied = threading.Event()
        self._is_done = threading.Event()
        self._problem: str | None = None

    def wait(self, timeout: float | None = None) -> None:
        """Returns once the checkpoint survives a loss of power, or, if it goes to the nodes' memory
        only, once it is kept there.

        timeout: in seconds; then it raises TimeoutError, and the save goes on. Raises
        CheckpointError if the checkpoint was not written.
        """
        if not self._is_done.wait(timeout):
            raise TimeoutError(f"checkpoint of step {self.step} is not written after {timeout} s")
        if self._problem is not None:
            raise CheckpointError(self._problem)

    def done(self) -> bool:
        """Whether wait() would return, or raise, at once."""
        return self._is_done.is_set()

    def _wait_for_copies(self) -> None:
        self._is_copied.wait()

    def _fail(self, problem: str) -> None:
        self._problem = problem
        self._end_at_once()

    def _end_at_once(self) -> None:
        self._is_copied.set()
        self._is_done.set()

    def _start(self, copy: Callable[[], None], write: Callable[[str | None], None]) -> None:
        """Copies and writes on a thread, for which the interpreter waits at its end. If no thread
        can start, the save has failed on return.

        write(problem): problem is why this rank has no copy.
        """
        try:
            threading.Thread(target=self._run, args=(copy, write),
                             name="ddprun checkpoint").start()
        except Exception as error:  # as no room for a thread: the other ranks must know
            self._end(f"no thread can copy its state: {error!r}", write)

    def _run(self, copy: Callable[[], None], write: Callable[[str | None], None]) -> None:
        problem = None
        try:
            copy()
        except Exception as error:  # as no memory: the other ranks must know
            problem = f"its state cannot be copied: {error!r}"
        self._end(problem, write)

    def _end(self, problem: str | None, write: Callable[[str | None], None]) -> None:
        self._is_copied.set()
        try:
            write(problem)
        except Exception as error:  # a thread has nobody to raise to; wait() does
            self._problem = text_of(error)
        self._is_done.set()
