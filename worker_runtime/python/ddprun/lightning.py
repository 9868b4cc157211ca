"""For Lightning: `Trainer(..., callbacks=[DdprunCallback(folder)])`."""

from __future__ import annotations

import functools
import os
import re
from typing import Any

from lightning.pytorch import Callback
from lightning.pytorch.strategies import Strategy

import ddprun
from ddprun import _checkpoints

# A strategy that shards the model saves a folder.
_NAME_OF_FOLDER = re.compile(r"ddprun-step=(\d+)\.ckpt(?:\.replaced)?")
_WRITTEN_LAST = "meta.pt"  # into the folder


def newest_checkpoint(folder: str) -> str | None:
    """Path of the whole checkpoint of the highest step under `folder`; None: there is none.

    For `trainer.fit(model, ckpt_path=newest_checkpoint(folder))`. Those of DdprunCallback and of
    Lightning itself, as by ModelCheckpoint, anywhere under `folder`, which is of one training. Of
    the same step it is the one that was written last. A file with weights alone is none to go on
    from. Every rank must see `folder`.
    """
    worker = ddprun.worker()
    found = []
    for path in _checkpoints.paths_under(folder):
        if os.path.isdir(path):
            step = _step_of_folder(path)
        elif path.endswith(".ckpt"):
            step = _step_of_file(path)
            if step is None and not _checkpoints.is_whole(path):
                _checkpoints.warn_of_torn(worker, path)
        else:
            continue
        if step is not None:
            found.append((step, _checkpoints.time_of(path), path))
    return max(found)[2] if found else None


def _step_of_file(path: str) -> int | None:
    """None: it is no whole checkpoint of Lightning's with all that a training goes on from."""
    contents = _checkpoints.contents(path)
    step = contents.get("global_step")
    return step if isinstance(step, int) and "optimizer_states" in contents else None


def _step_of_folder(path: str) -> int | None:
    ours = _NAME_OF_FOLDER.fullmatch(os.path.basename(path))
    if ours:
        return int(ours[1])  # It had that name once it was whole.
    step = _checkpoints.contents(os.path.join(path, _WRITTEN_LAST)).get("global_step")
    return step if isinstance(step, int) else None


class DdprunCallback(Callback):
    """Tells progress after every optimizer step; saves and leaves when the job is asked to.

    When asked, every rank saves Lightning's own checkpoint into `folder` after the same step and
    leaves with exit code 75: `fit()` does not return, its loggers are finished first. A node that
    may have been replaced writes no checkpoint, Lightning's own included.
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
        self._guard(trainer.strategy)

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
        if self._worker.stop_requested() and self._save(trainer):
            for logger in trainer.loggers:
                logger.finalize("success")
            self._worker.leave()

    def _save(self, trainer: Any) -> bool:
        """False: it could not be published, and is tried again after the next step."""

        def write(partial: str) -> None:
            trainer.save_checkpoint(partial)
            trainer.strategy.checkpoint_io.teardown()  # Some write it on a thread.

        path = _checkpoints.step_path(self._folder, self._step, ".ckpt")
        return _checkpoints.save(self._worker, path, write)

    def _guard(self, strategy: Any) -> None:
        """Has each checkpoint asked for, right before Lightning writes it in its place.

        Rank 0 alone is asked where it alone writes, for the others need not come then: a rank
        that fails may save what it has.
        """
        save = strategy.save_checkpoint
        is_written_by_one = type(strategy).save_checkpoint is Strategy.save_checkpoint

        @functools.wraps(save)
        def save_checkpoint(checkpoint: Any, filepath: Any, *args: Any, **kwargs: Any) -> None:
            path = os.fspath(filepath)
            is_ours = path.endswith(_checkpoints.PARTIAL)  # asked for when it is whole
            if not is_ours:
                if is_written_by_one:
                    if strategy.is_global_zero and _checkpoints.is_isolated(self._worker, path):
                        return
                elif not _checkpoints.may_publish(self._worker, path):
                    return
            save(checkpoint, filepath, *args, **kwargs)

        strategy.save_checkpoint = save_checkpoint
