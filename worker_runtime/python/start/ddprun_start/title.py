"""Has `ps` and `top` show that a standby waits, in place of its worker's command line."""

from __future__ import annotations

import os

_NAME = b"ddprun: standby"  # the kernel takes 15 bytes
_COMMAND_LINE = slice(45, 47)  # of /proc/self/stat behind the name: where it begins and ends


class Title:
    """Is shown until end(). Code that is imported or run in between would find it, so none is.

    It takes the place of the command line, byte by byte, and end() puts that back. If /proc does
    not allow that, nothing is shown.
    """

    def __init__(self, local_rank: str) -> None:
        self.name = self.line = b""
        self.start = 0
        try:
            with open("/proc/self/stat", "rb") as stat:
                self.start, end = map(int, stat.read().rpartition(b")")[2].split()[_COMMAND_LINE])
            self.line = self._exchange_line(_title(local_rank, end - self.start))
            self.name = _exchange_name(_NAME)
        except (OSError, ValueError):
            pass

    def end(self) -> None:
        """Raises if it cannot be taken back."""
        if self.line:
            self._exchange_line(self.line)
        if self.name:
            _exchange_name(self.name)

    def _exchange_line(self, line: bytes) -> bytes:
        """Returns the bytes before."""
        memory = os.open("/proc/self/mem", os.O_RDWR | os.O_CLOEXEC)
        try:
            before = os.pread(memory, len(line), self.start)
            if len(before) != len(line) or os.pwrite(memory, line, self.start) != len(line):
                raise OSError
            return before
        finally:
            os.close(memory)


def _title(local_rank: str, size: int) -> bytes:
    """As long as the command line. A NUL at its end is the kernel's sign that it ends there."""
    rank = os.fsencode(local_rank)
    text = b"ddprun: standby of local rank " + rank
    if len(text) >= size:
        text = b"ddprun: standby " + rank
    return text[:max(size - 1, 0)].ljust(size, b"\0")


def _exchange_name(name: bytes) -> bytes:
    """Returns the name before."""
    with open("/proc/self/comm", "r+b", buffering=0) as file:
        before = file.read()[:-1]
        file.write(name)
    return before
