"""How long this rank waits for others, as torch.distributed knows it, without the program's help.

Two places know: DistributedDataParallel times its own backward pass, and code that waits for a
collective on CPUs calls Work.wait(). On a GPU Work.wait() returns at once, for the stream waits;
then only the first place is used, in one pass of a hundred, for reading a GPU's clock waits for
the GPU. Nothing else of torch is changed, and nothing of what it computes.
"""

from __future__ import annotations

import sys
import weakref
from time import monotonic_ns

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

_LOOK_EVERY_NS = 250_000_000  # a look takes some 50 microseconds


class Waits:
    """Gives `tell` the nanoseconds that this rank has waited since the last time.

    Made once, when torch is imported; a torch without these places is left as it is.
    """

    def __init__(self, tell: Callable[[int], None]) -> None:
        self.is_wanted = True
        self._tell = tell
        self._looked_ns = 0
        self._models: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()
        torch: Any = sys.modules["torch"]
        try:
            model = torch.nn.parallel.DistributedDataParallel
            self._listen_to_models(model)
            self._listen_to_collectives(torch.distributed.Work, torch.cuda.is_initialized)
        except (AttributeError, TypeError):
            pass

    def look(self, now_ns: int) -> None:
        """After a step: asks the models, if it was long ago."""
        if now_ns - self._looked_ns < _LOOK_EVERY_NS or not self.is_wanted:
            return
        self._looked_ns = now_ns
        for model, before in list(self._models.items()):
            try:
                told = model._get_ddp_logging_data()
                passes = told.get("iteration", 0)  # of none, nothing is told
                waited = (told.get("backward_comm_time", 0) -
                          told.get("backward_compute_comm_overlap_time", 0))
            except Exception:  # of whatever torch this is: then it is not known
                del self._models[model]
                continue
            # The last pass stands for all since the last look.
            if passes > before and waited > 0:
                self._tell(waited * (passes - before))
            self._models[model] = passes

    def _listen_to_models(self, kind: Any) -> None:
        made = kind.__init__

        def make(model: Any, *arguments: Any, **named: Any) -> None:
            made(model, *arguments, **named)
            try:
                if model.device_type == "cpu":
                    model._set_ddp_runtime_logging_sample_rate(1)
                self._models[model] = 0
            except Exception:  # as above
                pass

        make.__wrapped__ = made  # type: ignore[attr-defined]
        kind.__init__ = make

    def _listen_to_collectives(self, kind: Any, uses_gpu: Callable[[], bool]) -> None:
        wait = kind.wait

        def timed_wait(work: Any, *arguments: Any, **named: Any) -> Any:
            begun = monotonic_ns()
            done = wait(work, *arguments, **named)
            if self.is_wanted and not uses_gpu():
                self._tell(monotonic_ns() - begun)
            return done

        timed_wait.__doc__ = wait.__doc__
        kind.wait = timed_wait
