"""For loops written with Hugging Face Accelerate."""

from __future__ import annotations

import os
import re
from typing import Any

import ddprun

_NAME = re.compile(r"ddprun-step=(\d+)")


def newest_state(folder: str) -> str | None:
    """Path of the newest state that Steps wrote into `folder`; None: there is none.

    For `accelerator.load_state(...)`. Every rank must see `folder`.
    """
    names = os.listdir(folder) if os.path.isdir(folder) else []
    found = [(int(match[1]), match[0]) for match in map(_NAME.fullmatch, names) if match]
    return os.path.join(folder, max(found)[1]) if found else None


class Steps:
    """What a loop tells after each step; it saves and leaves when the job is asked to.

        steps = ddprun.accelerate.Steps(accelerator, folder)
        for step, batch in enumerate(loader, start):
            ...
            steps.done(step, samples=len(batch), loss=value)

    When asked, every rank saves the accelerator's state after the same step, ends its trackers
    and leaves with exit code 75. The state is a folder `ddprun-step=N` in `folder`, which has that
    name once it is whole. Go on with `accelerator.load_state(newest_state(folder))`; register
    what else must go on, as the step, with `accelerator.register_for_checkpointing()`.
    """

    def __init__(self, accelerator: Any, folder: str) -> None:
        """accelerator: an accelerate.Accelerator. folder: seen by every rank."""
        self._worker = ddprun.worker()
        self._accelerator = accelerator
        self._folder = folder
        self._worker.group_ready()
        self._worker.checkpoints_in(folder)

    def done(self, step: int, *, samples: int = 0, loss: float | None = None) -> None:
        """As Worker.progress(); does not return when the job is asked to save and leave."""
        self._worker.progress(step, samples=samples, loss=loss)
        if self._worker.stop_requested():
            self._save(step)
            self._accelerator.end_training()
            self._worker.leave()

    def _save(self, step: int) -> None:
        path = os.path.join(self._folder, f"ddprun-step={step}")
        with self._worker.checkpointing():
            self._accelerator.save_state(path + ".partial")
            self._accelerator.wait_for_everyone()
            if self._accelerator.is_main_process:
                os.replace(path + ".partial", path)
