"""For Hugging Face's Trainer: `Trainer(..., callbacks=[DdprunCallback()])`."""

from __future__ import annotations

import json
import os
import re
from time import monotonic_ns
from typing import Any

from transformers import TrainerCallback

import ddprun
from ddprun import _checkpoints


_WRITTEN_LAST = "trainer_state.json"
_NUMBERED = re.compile(r"checkpoint-(\d+)")


def newest_checkpoint(folder: str) -> str | None:
    """Path of the Trainer's newest whole checkpoint in `folder`, or None.

    For `trainer.train(resume_from_checkpoint=...)`. The Trainer saves in place, so that a worker
    which is killed in it leaves a part of one; transformers' get_last_checkpoint() takes that, and
    every restart fails at it. Every rank must see `folder`; a URL is a ValueError.
    """
    worker = ddprun.worker()
    _checkpoints.check_is_path(folder)
    found = filter(None, map(_NUMBERED.fullmatch,
                             os.listdir(folder) if os.path.isdir(folder) else ()))
    for name in sorted(found, key=lambda one: -int(one[1])):
        path = os.path.join(folder, name[0])
        if _is_whole(path):
            return path
        _checkpoints.warn_of_torn(worker, path)
    return None


def _is_whole(path: str) -> bool:
    try:
        with open(os.path.join(path, _WRITTEN_LAST), encoding="utf-8") as file:
            json.load(file)
    except (OSError, ValueError):
        return False
    return _checkpoints.are_whole(path)


class DdprunCallback(TrainerCallback):
    """Tells progress after every optimizer step; saves and leaves when the job is asked to.

    When asked, every rank saves the Trainer's own checkpoint after the same step, whatever
    `save_strategy` says, ends the training without a last evaluation, and leaves with exit code
    75 from `on_train_end`. Go on from it with
    `trainer.train(resume_from_checkpoint=newest_checkpoint(args.output_dir))`.

    A node that may have been replaced saves no checkpoint, the Trainer's own included, with two
    exceptions: those of `save_strategy="best"`, and those that a callback behind this one asks
    for. So give this one last. A callback before it sets `control.should_save` on every rank or
    on none: the ranks agree on each save, and a rank that saves alone waits for the others.
    """

    def __init__(self) -> None:
        self._worker = ddprun.worker()
        self._is_leaving = False
        self._before_save_ns = 0

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Every rank is connected and the checkpoint is loaded; RuntimeError if by some another."""
        self._worker.group_ready()
        _checkpoints.check_same_step(self._worker, state.global_step)
        self._worker.checkpoints_in(args.output_dir)
        if state.global_step > 0:
            self._worker.resumed()

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """A training that is done with this step is not asked any more."""
        samples = args.train_batch_size * args.gradient_accumulation_steps
        self._worker.progress(state.global_step, samples=samples)
        if not control.should_training_stop and self._worker.stop_requested():
            if self._may_save(args, state):
                self._is_leaving = True
                control.should_save = True
                control.should_evaluate = False
                control.should_training_stop = True
            else:
                control.should_save = False  # and asked again after the next step
        else:
            self._ask_before_save(args, state, control)
        self._before_save_ns = monotonic_ns()

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None,
               **kwargs: Any) -> None:
        """The Trainer averages the loss over `logging_steps`; this reports no other."""
        if logs and "loss" in logs:
            self._worker.progress(state.global_step, loss=float(logs["loss"]))
        self._before_save_ns = monotonic_ns()

    def on_evaluate(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """The Trainer saves after it."""
        self._ask_before_save(args, state, control)
        self._before_save_ns = monotonic_ns()

    def on_save(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """The Trainer has saved, and done nothing else since the last of its other events."""
        self._worker._tell_checkpointing(monotonic_ns() - self._before_save_ns)

    def on_epoch_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """The checkpoint exists already, and the time until the deadline is short."""
        if self._is_leaving:
            control.should_save = False
            control.should_evaluate = False
        self._ask_before_save(args, state, control)
        self._before_save_ns = monotonic_ns()

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Exit code 75 if the training ended because it was asked to."""
        if self._is_leaving:
            self._worker.leave()

    def _ask_before_save(self, args: Any, state: Any, control: Any) -> None:
        """Runs at the last moment before a save for which the Trainer has a callback."""
        if control.should_save and not control.should_evaluate:
            control.should_save = self._may_save(args, state)

    def _may_save(self, args: Any, state: Any) -> bool:
        path = os.path.join(args.output_dir, f"checkpoint-{state.global_step}")
        return _checkpoints.may_publish(self._worker, path)
