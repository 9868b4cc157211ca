"""Curves for TensorBoard, as worker_runtime/scalars writes them for trainings in C++."""

from __future__ import annotations

import os
import socket
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


class Scalars:
    """The curves that one worker writes, in an event file of its own; by the package tensorboard.

    Each value is in the file when add() returns, by one write: a process that is killed loses none.
    """

    def __init__(self, folder: str, generation: int, step: int) -> None:
        """Creates the folder and the file, which begins with the mark of a start at `step`.

        TensorBoard then drops what earlier files have at `step` and later. The curve
        ddprun/generation shows where restarts were. Raises ImportError without tensorboard, and
        OSError.
        """
        from tensorboard.compat.proto import event_pb2, summary_pb2
        from tensorboard.summary.writer.record_writer import RecordWriter

        self._event: Any = event_pb2.Event
        self._summary: Any = summary_pb2.Summary
        os.makedirs(folder, exist_ok=True)
        name = "events.out.tfevents.{}.{}.{}.{}".format(
            int(time.time()), socket.gethostname(), os.getpid(), generation)
        file = open(os.path.join(folder, name), "xb")  # noqa: SIM115 - open while the worker lives
        self._file = file
        self._records: Any = RecordWriter(file)
        start = event_pb2.SessionLog(status=event_pb2.SessionLog.START)
        self._write(self._event(wall_time=time.time(), file_version="brain.Event:2"))
        self._write(self._event(wall_time=time.time(), step=step, session_log=start))
        self.add("ddprun/generation", float(generation), step)

    def add(self, name: str, value: float, step: int) -> None:
        """Adds `value` at `step` to the curve `name`. Raises OSError."""
        one = self._summary.Value(tag=name, simple_value=value)
        self._write(self._event(wall_time=time.time(), step=step,
                                summary=self._summary(value=[one])))

    def _write(self, event: Any) -> None:
        self._records.write(event.SerializeToString())
        self._file.flush()
