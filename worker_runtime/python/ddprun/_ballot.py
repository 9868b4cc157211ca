"""How ranks agree on a stop: one word per step, over a Gloo group of its own."""

from __future__ import annotations

import atexit
import ctypes
import sys
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

#: How long a program that ends without a failure waits for its last word to arrive, in seconds.
_END_S = 5.0


class Ballot:
    """The ranks' votes on one question. Every rank makes one and uses it equally often.

    A word is on its way while the program computes its next step. Gloo, on the CPU: the word
    neither waits for a GPU nor enters the order of the program's own collectives.

    A word may be on its way when the program ends. Gloo's thread that carries it lets go of a
    tensor at last, and to do that to one of Python's while the interpreter is taken down aborts
    the process. So at exit the group is destroyed, which waits for that thread; where a peer keeps
    it waiting, group and word are left to the end of the process instead.
    """

    def __init__(self, rank: int, world_size: int) -> None:
        """Makes the group; returns once all ranks have. Raises RuntimeError without
        torch.distributed."""
        if not (dist.is_available() and dist.is_initialized()):
            raise RuntimeError(
                f"stop_requested: rank {rank} of {world_size} cannot agree with the others, "
                "torch.distributed is not initialised; call init_process_group() before")
        self._rank = rank
        self._group: Any = dist.new_group(backend="gloo")
        self._word = torch.zeros(1, dtype=torch.int32, device="cpu")
        # A reference to the word that is not Python's.
        self._hold: Any = torch.utils.dlpack.to_dlpack(self._word)
        self._vote: Any = None
        atexit.register(self._end)

    def exchange(self, wish: bool) -> bool:
        """True if any rank wished for it in its call before this one; then nothing is on its way.

        False, after one line on stderr, once a peer or the group is gone.
        """
        if self._group is None:
            return False
        try:
            if self._vote is not None:
                self._vote.wait()
                self._vote = None
                if self._word.item():
                    return True
            self._word.fill_(int(wish))
            self._vote = dist.all_reduce(self._word, dist.ReduceOp.MAX, self._group, True)
        except (RuntimeError, ValueError) as error:
            self._warn("agreeing on a stop request", error)
            self._let_go()
        return False

    def worst(self, problem: int) -> int:
        """The largest that any rank says, 0 to 2**31 - 1; returns once every rank has said it.

        Raises RuntimeError once a peer or the group is gone.
        """
        if self._group is None:
            raise RuntimeError(f"rank {self._rank} cannot agree with the others: a peer, or the "
                               "process group, is gone")
        word = torch.tensor([problem], dtype=torch.int32, device="cpu")
        dist.all_reduce(word, dist.ReduceOp.MAX, self._group)
        return int(word.item())

    def wait_for_all(self) -> None:
        """Returns once every rank is here, or one line on stderr said that it cannot be known.

        A program that has destroyed its process groups has waited already, or does not care. Those
        that it has left are destroyed at exit.
        """
        if self._group is None or not dist.is_initialized():
            return
        atexit.register(_destroy_groups)
        try:
            if self._vote is not None:
                self._vote.wait()
            dist.barrier(self._group)
        except (RuntimeError, ValueError) as error:
            self._warn("waiting for all ranks to leave", error)
        self._let_go()

    def _let_go(self) -> None:
        group, self._group, self._vote = self._group, None, None
        if group is not None and dist.is_initialized():
            try:
                dist.destroy_process_group(group)
            except (RuntimeError, ValueError):
                pass  # the program has destroyed it and made others

    def _end(self) -> None:
        """At exit. A program that fails waits for no rank: a peer may hang."""
        if self._vote is None or self._is_done(0 if hasattr(sys, "last_value") else _END_S):
            self._let_go()
        else:
            _keep_for_ever(self._group, self._word, self._hold)

    def _is_done(self, seconds: float) -> bool:
        """Whether the word has arrived, or failed to, within that time."""
        try:
            if seconds > 0:
                self._vote.wait(timedelta(seconds=seconds))
        except (RuntimeError, ValueError):
            pass  # late, or a peer is gone
        return bool(self._vote.is_completed())

    def _warn(self, what: str, error: Exception) -> None:
        reason = str(error).partition("\n")[0]
        print(f"ddprun: rank {self._rank}: {what} failed: {reason}", file=sys.stderr, flush=True)


def _keep_for_ever(*objects: Any) -> None:
    """So that the interpreter, taken down, neither destroys them nor waits in doing so. Gloo's
    thread then lets go of a word that others hold, which needs no Python."""
    for kept in objects:
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(kept))


def _destroy_groups() -> None:
    if dist.is_initialized():
        dist.destroy_process_group()
