"""For Lightning: `Trainer(..., callbacks=[DdprunCallback(folder)])`."""

from __future__ import annotations

import functools
import os
import re
from typing import Any

from lightning.pytorch import Callback

import ddprun

_NAME = re.compile(r"ddprun-step=(\d+)\.ckpt")


def newest_checkpoint(folder: str) -> str | None:
    """Path of the newest checkpoint that DdprunCallback wrote into `folder`; None: there is none.

    For `trainer.fit(model, ckpt_path=newest_checkpoint(folder))`. Every rank must see `folder`.
    """
    names = os.listdir(folder) if os.path.isdir(folder) else []
    found = [(int(match[1]), match[0]) for match in map(_NAME.fullmatch, names) if match]
    return os.path.join(folder, max(found)[1]) if found else None


class DdprunCallback(Callback):
    """Tells progress after every optimizer step; saves and leaves when the job is asked to.

    When asked, every rank saves Lightning's own checkpoint into `folder` after the same step and
    leaves with exit code 75: `fit()` does not return, its loggers are finished first.
    """

    def __init__(self, folder: str) -> None:
        """folder: seen by every rank; it is made when the first checkpoint is written."""
        self._worker = ddprun.worker()
        self._folder = folder
        self._step = 0

    def setup(self, trainer: Any, pl_module: Any, stage: str) -> None:
        """Lightning's own checkpoints count as such in the job's time, whoever saves them.

        No hook of Lightning tells when one is written.
        """
        if "save_checkpoint" in vars(trainer):
            return  # of an earlier stage
        save = trainer.save_checkpoint

        @functools.wraps(save)
        def save_checkpoint(*args: Any, **kwargs: Any) -> None:
            with self._worker.checkpointing():
                save(*args, **kwargs)

        trainer.save_checkpoint = save_checkpoint

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        """Every rank is connected and the checkpoint is loaded."""
        self._worker.group_ready()
        self._worker.checkpoints_in(self._folder)
        self._step = trainer.global_step
        if self._step > 0:
            self._worker.resumed()

    def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any,
                           batch_idx: int) -> None:
        """Asks only after optimizer steps: a checkpoint holds no half-gathered gradients."""
        if trainer.global_step == self._step:
            return
        self._step = trainer.global_step
        self._worker.progress(self._step)
        if self._worker.stop_requested():
            trainer.save_checkpoint(os.path.join(self._folder, f"ddprun-step={self._step}.ckpt"))
            for logger in trainer.loggers:
                logger.finalize("success")
            self._worker.leave()
