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
    """Path of the whole checkpoint of the highest step under `folder`, or None.

    For `trainer.fit(model, ckpt_path=newest_checkpoint(folder))`. Those of DdprunCallback and of
    Lightning itself, as by ModelCheckpoint, anywhere under `folder`, which is of one training. If
    several are of that step, it is the one that was written last. A file with weights alone does
    not count. Every rank must see `folder`; a URL is a ValueError.
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
    """Returns None unless the file is a whole checkpoint from which a training can go on."""
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
    may have been replaced writes no checkpoint, Lightning's own included, and removes none.
    """

    def __init__(self, folder: str) -> None:
        """folder: seen by every rank; it is made when the first checkpoint is written.

        Raises ValueError for a URL.
        """
        _checkpoints.check_is_path(folder)
        self._worker = ddprun.worker()
        self._folder = folder
        self._step = 0
        self._refused: set[str] = set()  # paths of Lightning's that were not written
        self._newest = ""  # the last path that Lightning has written, or was refused

    def setup(self, trainer: Any, pl_module: Any, stage: str) -> None:
        """Lightning's own checkpoints count as such in the job's time, whichever code saves them.

        No hook of Lightning reports when one is written.
        """
        if "save_checkpoint" in vars(trainer):
            return  # of an earlier stage
        save = trainer.save_checkpoint

        @functools.wraps(save)
        def save_checkpoint(*args: Any, **kwargs: Any) -> None:
            with self._worker.checkpointing():
                save(*args, **kwargs)

        trainer.save_checkpoint = save_checkpoint
        self._guard_writes(trainer.strategy)
        self._guard_removals(trainer.strategy)
        for callback in trainer.checkpoint_callbacks:
            self._guard_links(callback)

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        """Every rank is connected and the checkpoint is loaded; RuntimeError if by some another."""
        self._worker.group_ready()
        _checkpoints.check_same_step(self._worker, trainer.global_step)
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

    def _guard_writes(self, strategy: Any) -> None:
        """Has each checkpoint asked for, right before Lightning writes it in its place.

        Rank 0 alone is asked where it alone writes, for the others need not come then: a rank
        that fails may save what it has.
        """
        save = strategy.save_checkpoint
        is_written_by_one = type(strategy).save_checkpoint is Strategy.save_checkpoint

        def may_write(path: str) -> bool:
            if path.endswith(_checkpoints.PARTIAL):
                return True  # It is ours, and is asked for when it is whole.
            if is_written_by_one:
                return not (strategy.is_global_zero and
                            _checkpoints.is_isolated(self._worker, path))
            return _checkpoints.may_publish(self._worker, path)

        @functools.wraps(save)
        def save_checkpoint(checkpoint: Any, filepath: Any, *args: Any, **kwargs: Any) -> None:
            path = os.fspath(filepath)
            is_written = may_write(path)
            self._note(path, is_written)
            if is_written:
                save(checkpoint, filepath, *args, **kwargs)

        strategy.save_checkpoint = save_checkpoint

    def _guard_removals(self, strategy: Any) -> None:
        """Keeps what Lightning removes behind a write that was refused: it may be the last one.

        Rank 0 alone removes.
        """
        remove = strategy.remove_checkpoint

        @functools.wraps(remove)
        def remove_checkpoint(filepath: Any) -> None:
            if not (self._newest in self._refused or self._worker.is_isolated()):
                remove(filepath)

        strategy.remove_checkpoint = remove_checkpoint

    def _guard_links(self, callback: Any) -> None:
        """With save_last="link" ModelCheckpoint replaces its last checkpoint past the strategy.

        Rank 0 alone does, then all meet: that must stay.
        """
        link = getattr(callback, "_link_checkpoint", None)
        if link is None or "_link_checkpoint" in vars(callback):
            return

        @functools.wraps(link)
        def link_checkpoint(trainer: Any, filepath: str, linkpath: str) -> None:
            may_link = filepath not in self._refused and not (
                trainer.is_global_zero and _checkpoints.is_isolated(self._worker, linkpath))
            self._note(linkpath, may_link)
            if may_link:
                link(trainer, filepath, linkpath)
            else:
                trainer.strategy.barrier()

        callback._link_checkpoint = link_checkpoint

    def _note(self, path: str, is_written: bool) -> None:
        self._newest = path
        if is_written:
            self._refused.discard(path)
        else:
            self._refused.add(path)
