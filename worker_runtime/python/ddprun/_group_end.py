"""So that destroy_process_group() ends the threads of the default group."""

from __future__ import annotations

import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


def hold_no_group() -> None:
    """Has torch import now what would hold the default group if it came later.

    Ten functions of torch.distributed.nn.functional have as default of an argument the default
    group that there is when the module is imported, and the first DistributedDataParallel imports
    it. That group lives on although it was destroyed, and so do Gloo's threads: one that lets go
    of a tensor while the interpreter is taken down aborts the process, at the end of a training
    that has succeeded. To be called when torch is imported; where there is a group already,
    nothing is done.
    """
    try:
        distributed: Any = sys.modules["torch"].distributed
        if distributed.is_available() and not distributed.is_initialized():
            import torch.distributed.nn.functional  # noqa: F401
    except Exception:  # of whatever torch this is: then it is as without us
        pass
