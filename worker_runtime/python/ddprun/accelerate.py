"""For loops written with Hugging Face Accelerate."""

from __future__ import annotations

import os
import re
from typing import Any

import ddprun
from ddprun import _checkpoints

_WRITTEN_BY_RANK_0 = "random_states_0.pkl"  # into each state, after all but the registered objects
_REGISTERED = re.compile(r"custom_checkpoint_\d+\.pkl")
_NUMBERED = re.compile(r"(.*?)(\d+)")


def newest_state(folder: str, accelerator: Any = None) -> str | None:
    """Path of the newest whole state under `folder`, which is of one training, or None.

    For `accelerator.load_state(...)`. Those of Steps and of `accelerator.save_state()` itself, with
    automatic_checkpoint_naming (`checkpoints/checkpoint_N`) or under any name. If names differ in
    their number alone, the highest is the newest, as for load_state(); among the newest of each
    kind it is the one that was written last. accelerator: a state that has more or fewer
    registered objects than it is passed over, it cannot be loaded. Every rank must see `folder`; a
    URL is a ValueError.
    """
    worker = ddprun.worker()
    kinds: dict[str, list[tuple[int, str]]] = {}
    for path in _checkpoints.paths_under(folder):
        where, name = os.path.split(path)
        if name == _WRITTEN_BY_RANK_0:
            numbered = _NUMBERED.fullmatch(where)
            kind, number = (numbered[1], int(numbered[2])) if numbered else (where, 0)
            kinds.setdefault(kind, []).append((number, where))
    found = []
    for states in kinds.values():
        for _, path in sorted(states, reverse=True):
            if _is_whole(path, accelerator):
                found.append((_checkpoints.time_of(os.path.join(path, _WRITTEN_BY_RANK_0)), path))
                break
            _checkpoints.warn_of_torn(worker, path)
    return max(found)[1] if found else None


def _is_whole(state: str, accelerator: Any) -> bool:
    if accelerator is not None:
        registered = len(list(filter(_REGISTERED.fullmatch, os.listdir(state))))
        if registered != len(accelerator._custom_objects):
            return False
    return _checkpoints.are_whole(state)


class Steps:
    """Reports each step of a loop; saves and leaves when the job is asked to.

        steps = ddprun.accelerate.Steps(accelerator, folder)
        for step, batch in enumerate(loader, start):
            ...
            steps.done(step, samples=len(batch), loss=value)

    When asked, every rank saves the accelerator's state after the same step, ends its trackers
    and leaves with exit code 75. The state is a folder `ddprun-step=N` in `folder`, which has that
    name once it is whole, with automatic_checkpoint_naming, too. Go on with
    `accelerator.load_state(newest_state(folder, accelerator))`; register what else must go on, as
    the step, with `accelerator.register_for_checkpointing()`.
    """

    def __init__(self, accelerator: Any, folder: str) -> None:
        """accelerator: an accelerate.Accelerator. folder: seen by every rank.

        Raises ValueError for a URL.
        """
        _checkpoints.check_is_path(folder)
        self._has_begun = False
        self._worker = ddprun.worker()
        self._accelerator = accelerator
        self._folder = folder
        self._worker.group_ready()
        self._worker.checkpoints_in(folder)

    def done(self, step: int, *, samples: int = 0, loss: float | None = None) -> None:
        """As Worker.progress(); does not return when the job is asked to save and leave.

        But if this node may have been replaced: then it is asked again after the next step. The
        first call raises RuntimeError if another rank's step is another one.
        """
        if not self._has_begun:
            self._has_begun = True
            _checkpoints.check_same_step(self._worker, step)
        self._worker.progress(step, samples=samples, loss=loss)
        if self._worker.stop_requested() and self._save(step):
            self._accelerator.end_training()
            self._worker.leave()

    def _save(self, step: int) -> bool:
        with self._worker.checkpointing():
            return _checkpoints.save(self._worker, _checkpoints.step_path(self._folder, step),
                                     self._write)

    def _write(self, partial: str) -> None:
        """Accelerate names it by itself otherwise, and counts it."""
        project = self._accelerator.project_configuration
        named, count = project.automatic_checkpoint_naming, project.iteration
        project.automatic_checkpoint_naming = False
        try:
            self._accelerator.save_state(partial)
        finally:
            project.automatic_checkpoint_naming, project.iteration = named, count
