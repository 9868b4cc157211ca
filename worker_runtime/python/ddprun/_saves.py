"""Checkpoints of a training in PyTorch, as the C++ runtime writes and reads them."""

from __future__ import annotations

import hashlib
import json
import operator
import os
import socket
import weakref
from typing import Any

import torch

from ddprun import _memory, _trees, worker
from ddprun._exchange import Exchange, place
from ddprun._library import CheckpointError, Library, Manifest, Partial, find_library, text_of
from ddprun._memory_tier import MemoryTier, NotKept, connect
from ddprun._page import ON_DISK
from ddprun._restore import Plan, Source
from ddprun._save_numbers import SaveNumbers
from ddprun._save_report import SaveReport
from ddprun._saving import Saving
from ddprun._shares import Shares
from ddprun._staging import Buffers, mark
from ddprun._states import Snapshot, is_optimizer, take
from ddprun._tensors import FIRST, Item
from ddprun._write import Write

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from ddprun._library import OpenCheckpoint

_LINES_MAX = 20


class Checkpoints:
    """The checkpoints of one training in a folder that all ranks see.

    Every rank makes each call, with the same things; the first one makes Gloo groups of their own.
    One thread.
    """

    #: Numbers, texts, lists and dicts of the checkpoint that resume() has loaded, by name.
    values: dict[str, Any]

    def __init__(self, dir: str | os.PathLike[str], keep: int = 3, keep_every: int = 0,
                 disk_every: int = 1) -> None:
        """keep: the newest ones that stay. keep_every: those whose step is a multiple of it stay,
        too; 0: none. disk_every: of the saves by save_async() only those whose step is a multiple
        of it go to the disk. The others go to the memory of the nodes (ddprun's
        --memory-checkpoints), and are not made without that.

        Raises CheckpointError if the library is missing, with how to get it, and ValueError for
        other numbers.
        """
        self._keep = _number("keep", keep, 1, (1 << 31) - 1)
        self._keep_every = _number("keep_every", keep_every, 0, (1 << 63) - 1)
        self._disk_every = _number("disk_every", disk_every, 1, (1 << 63) - 1)
        self.dir = os.path.abspath(os.fsdecode(dir))
        self.values = {}
        self._library = Library(find_library())
        self._worker = worker()
        self._report = SaveReport(self._worker._page, self._library.ring)
        self._tell_folder()
        self._front: Exchange | None = None
        self._back: Exchange | None = None  # the thread's
        self._last: Saving | None = None
        self._has_looked_for_memory = False
        self._tier: MemoryTier | None = None
        self._buffers = Buffers()
        self._hooked: weakref.WeakKeyDictionary[Any, Any] = weakref.WeakKeyDictionary()
        self._described = ""
        self._numbers = SaveNumbers()
        self._shares: Shares | None = None

    def save(self, step: int, *, rng: bool = True, **things: Any) -> bool:
        """Writes a checkpoint of `things` and returns once it survives a loss of power.

        things: `model` and `optimizer`; anything with state_dict() and load_state_dict(); tensors,
        arrays, numbers, texts, lists and dicts. rng: random states, too.

        Returns False on every rank, after one line on stderr, if it could not be written; nothing
        of it is left then. Raises CheckpointError on every rank if something is no state or no
        name, and once a peer is gone.
        """
        with self._report.call(), self._worker.checkpointing():
            exchange = self._exchange()
            self._report.asked(exchange.rank == 0, self._is_busy())
            self._wait_for_last()
            self._report.begun(step)
            write, manifest = self._prepared(exchange, step, things, rng)
            try:
                write.write(exchange, manifest, self._worker.is_isolated, self._worker._warn)
            except CheckpointError as error:
                self._report.failed(str(error))
                self._say(str(error))
                return False
            self._report.saved(write.size_of_all(), ON_DISK)
        return True

    def save_async(self, step: int, *, while_saving: str = "wait", rng: bool = True,
                   **things: Any) -> Saving:
        """As save(), but returns once the things that the next forward pass changes are copied.

        A thread copies parameters and the optimizers' state, and writes. An optimizer's step waits
        for these copies; call before_step() before anything else that changes parameters.
        while_saving: a second save waits until the first is written ("wait"), or is refused with
        one line ("refuse"). Too little memory for the copies is one line, too. wait() of such a
        save raises CheckpointError. Raises as save() does.
        """
        if while_saving not in ("wait", "refuse"):
            raise ValueError(f"while_saving={while_saving!r}: it is 'wait' or 'refuse'")
        with self._report.call(), self._worker.checkpointing():
            exchange = self._exchange()
            saving = Saving(step)
            tier = self._memory(exchange)
            has_disk = self._goes_to_disk(step)
            if not has_disk and tier is None:
                saving._end_at_once()
                return saving
            is_busy = self._is_busy()
            self._report.asked(exchange.rank == 0, is_busy)
            if while_saving == "refuse" and any(exchange.gather(is_busy)):
                return self._refused(saving, "an earlier one is being written")
            self._wait_for_last()
            self._report.begun(step)
            write, manifest = self._prepared(exchange, step, things, rng)
            short = self._shortage(exchange, write)
            if short is not None:
                self._report.failed(short)
                return self._refused(saving, short)
            self._start(saving, write, manifest, things, tier, has_disk)
            self._report.goes_on()
        return saving

    def before_step(self) -> None:
        """Returns once the save under way has copied what an optimizer's step changes."""
        if self._last is not None:
            self._last._wait_for_copies()

    def resume(self, *, strict: bool = True, rename: Callable[[str], str] | None = None,
               rng: bool = True, **things: Any) -> int | None:
        """Loads the newest checkpoint that is valid on every rank, and returns its step.

        One in the nodes' memory is taken unless the folder has a newer one, or a later save of the
        same step. Returns None if there is no checkpoint. things: those that save() was given;
        numbers, texts, lists and dicts come as `values`. In another world size each rank reads
        its parts. rename: gives stored names new ones. Without strict, things that the checkpoint
        lacks stay as they are, and one line names each that is new or gone.

        Raises CheckpointError on every rank, before anything is changed, if the folder cannot be
        used, if no checkpoint is valid, or if one does not fit.
        """
        self._wait_for_last()
        exchange = self._exchange()
        steps, newest_save = self._steps(exchange)
        found = self._newest(exchange, steps, newest_save)
        if found is not None:
            step, opened = found
            try:
                self._load(exchange, step, opened, strict, rename, rng, things)
            finally:
                opened.close()
            self._numbers.resumed(step, opened.save)
            self._tell_resumed()
            return step
        if steps:
            raise CheckpointError(f"none of the {len(steps)} checkpoints in {self.dir} is valid; "
                                  "repair or remove them, or name another folder")
        return None

    def _tell_folder(self) -> None:
        self._worker.checkpoints_in(self.dir)

    def _tell_resumed(self) -> None:
        self._worker.resumed()

    def _exchange(self) -> Exchange:
        if self._front is None:
            here = place()
            self._front, self._back = Exchange(*here), Exchange(*here)
        return self._front

    def _memory(self, exchange: Exchange) -> MemoryTier | None:
        """The nodes' memory, if they keep checkpoints; the same answer on every rank."""
        if not self._has_looked_for_memory:
            self._has_looked_for_memory = True
            self._tier = connect(self._library, exchange, self._worker, self.dir)
        return self._tier

    def _goes_to_disk(self, step: Any) -> bool:
        try:
            return operator.index(step) % self._disk_every == 0
        except TypeError:  # no step: the ranks raise together
            return True

    def _is_busy(self) -> bool:
        return self._last is not None and not self._last.done()

    def _wait_for_last(self) -> None:
        if self._last is not None:
            self._last._is_done.wait()

    def _refused(self, saving: Saving, why: str) -> Saving:
        text = f"checkpoint of step {saving.step} is not saved: {why}"
        self._say(text)
        saving._fail(text)
        return saving

    def _shortage(self, exchange: Exchange, write: Write) -> str | None:
        """Why a node has no room for the copies of its ranks; the same on every rank."""
        problem, own = None, ["", 0, 0]
        try:
            self._buffers.keep_only(write.items)
            own = [socket.gethostname(), self._buffers.missing(write.items), _memory.available()]
        except Exception as error:  # as no more open files: the other ranks must know
            problem = text_of(error)
        said = exchange.gather([*own, problem])
        for rank, (_, _, _, problem) in enumerate(said):
            if problem is not None:
                return f"rank {rank}: {problem}"
        for host in sorted({rank_said[0] for rank_said in said}):
            needed = sum(size for name, size, _, _ in said if name == host)
            room = min(room for name, _, room, _ in said if name == host)
            if needed > room:
                return (f"the copies of {host}'s ranks need {needed} bytes of memory and {room} "
                        "are available; save() needs none for tensors on the CPU")
        return None

    def _start(self, saving: Saving, write: Write, manifest: Manifest, things: Mapping[str, Any],
               tier: MemoryTier | None, has_disk: bool) -> None:
        late = [item for item in write.items if item.is_late]
        problem: Exception | None = None
        after: Mapping[Any, Any] = {}
        try:
            self._buffers.copy([item for item in write.items if not item.is_late])
            after = mark(late)
        except Exception as error:  # as no memory: the thread tells the other ranks
            problem = error
        for thing in things.values():
            if is_optimizer(thing) and thing not in self._hooked:
                self._hooked[thing] = thing.register_step_pre_hook(
                    lambda *_: self.before_step())

        def copy() -> None:
            if problem is not None:
                raise problem
            self._buffers.copy(late, after)

        def work(copy_problem: str | None) -> None:
            assert self._back is not None
            try:
                write.agree(self._back, copy_problem)
                places = self._write(self._back, write, manifest, tier, has_disk)
            except CheckpointError as error:
                self._report.failed(str(error))
                goes_on = "; the training goes on" if isinstance(error, NotKept) else ""
                self._say(str(error) + goes_on)
                raise
            self._report.saved(write.size_of_all(), places)

        self._last = saving
        saving._start(copy, work)

    def _write(self, exchange: Exchange, write: Write, manifest: Manifest,
               tier: MemoryTier | None, has_disk: bool) -> int:
        """Returns where the checkpoint is. Raises CheckpointError if the disk, or, without it, the
        memory has it not."""
        places = 0
        if tier is not None:
            try:
                places = tier.save(exchange, write, manifest)
            except NotKept as error:
                if not has_disk:
                    raise
                self._say(str(error))
        if has_disk:
            write.write(exchange, manifest, self._worker.is_isolated, self._worker._warn)
            places |= ON_DISK
        return places

    def _say(self, what: str) -> None:
        if self._front is None or self._front.rank == 0:
            self._worker._warn(what)

    def _prepared(self, exchange: Exchange, step: int, things: Mapping[str, Any],
                  with_random: bool) -> tuple[Write, Manifest]:
        """This rank's part of a checkpoint. Rank 0's manifest has the values of all ranks."""
        problem, snapshot = None, Snapshot()
        try:
            step = operator.index(step)
            if not 0 <= step < 1 << 63:
                raise CheckpointError(f"step {step} is no number from 0 to 2^63 - 1")
            snapshot = take(things, with_random)
        except Exception as error:  # a state_dict() may raise anything; the others must know
            problem = text_of(error)
        random = {name: state.numel() for name, state in sorted(snapshot.random.items())}
        if exchange.rank == 0:
            for name, size in random.items():
                states = torch.empty(exchange.world_size, size, dtype=torch.uint8, device="cpu")
                snapshot.add(Item(name, states, FIRST, False))
        mine = [item.description() for item in snapshot.items.values() if not item.is_void()]
        described = _digest(mine)
        said = exchange.gather([problem, step if problem is None else 0, random,
                                described == self._described, _digest(snapshot.values)])
        _raise_first(step, [rank_said[0] for rank_said in said])
        if any(rank_said[1:3] != said[0][1:3] for rank_said in said):
            raise CheckpointError(f"the ranks save different steps or random states: "
                                  f"{[rank_said[1:3] for rank_said in said]}")
        if not all(rank_said[3] for rank_said in said) or self._shares is None:
            try:
                self._shares = Shares(self._library, exchange.gather(mine))
            except CheckpointError as error:
                raise CheckpointError(f"checkpoint of step {step} is not saved: {error}") from None
            self._described = described
        if len({rank_said[4] for rank_said in said}) > 1:
            snapshot.values = _merged(exchange.gather(snapshot.values))
        for name in random:
            states = exchange.gather_at_first(snapshot.random[name])
            if states is not None:
                snapshot.items[name].tensor.copy_(states)
        names = self._shares.names[exchange.rank]
        items = [item for name, item in snapshot.items.items() if name in names]
        generation = self._worker.generation if self._worker.is_under_ddprun else 0
        manifest = Manifest(generation, exchange.world_size, self._keep, self._keep_every,
                            snapshot.values, [], self._numbers.next(step))
        return Write(self._library, self.dir, step, self._shares, items), manifest

    def _steps(self, exchange: Exchange) -> tuple[list[int], int]:
        """Rank 0's, newest first, once every node can write a file where rank 0 sees it; and which
        save of its step the newest one is."""
        node = f"node {socket.gethostname()}: "
        probe: Partial | None = None
        problem, name, steps, save = None, "", [], 0
        if exchange.rank == 0:
            try:
                self._library.remove_leftovers(self.dir)
                steps = self._library.steps(self.dir)
                save = self._library.save_of(self.dir, steps[0]) if steps else 0
                probe = self._library.begin_probe(self.dir)
                name = probe.name
            except Exception as error:  # whatever it is, the other ranks must know
                problem = node + text_of(error)
        problem, name, steps, save = exchange.gather([problem, name, steps, save])[0]
        if problem is None:
            place = Partial(self.dir, 0, name)
            # One rank of each node, if these are all ranks.
            if self._worker._slot == 0 or exchange.world_size != self._worker.world_size:
                try:
                    self._library.probe(place, f"rank-{exchange.rank}")
                except Exception as error:
                    problem = node + text_of(error)
            problem = _first(exchange.gather(problem))
        if probe is not None:
            self._library.abandon(probe)
        if problem is not None:
            raise CheckpointError(problem)
        return steps, save

    def _newest(self, exchange: Exchange, steps: list[int],
                save: int) -> tuple[int, OpenCheckpoint] | None:
        """That of the nodes' memory, unless the disk, which has `steps`, has a newer one.

        save: which save of its step the newest one is.
        """
        tier = self._memory(exchange)
        newest = (steps[0], save) if steps else (0, 0)
        found = tier.load(exchange, newest) if tier is not None else None
        if found is not None:
            return found
        for step in steps:
            opened = self._opened(exchange, step)
            if opened is not None:
                return step, opened
            # Memory may have an earlier save of this step.
            if tier is not None and save > 0 and step == steps[0]:
                found = tier.load(exchange, (step, 0))
                if found is not None:
                    return found
        return None

    def _opened(self, exchange: Exchange, step: int) -> OpenCheckpoint | None:
        """Opens it; on every rank it is None if one rank finds it invalid."""
        problem, opened = None, None
        try:
            opened = self._library.open(self.dir, step, exchange.rank, exchange.world_size)
        except Exception as error:
            problem = text_of(error)
        for rank, said in enumerate(exchange.gather(problem)):
            if said is not None:
                self._say(f"{said} (rank {rank}); an older one is tried")
                if opened is not None:
                    opened.close()
                return None
        return opened

    def _load(self, exchange: Exchange, step: int, opened: OpenCheckpoint, strict: bool,
              rename: Callable[[str], str] | None, rng: bool, things: Mapping[str, Any]) -> None:
        problems: list[str] = []
        new: list[str] = []
        gone: list[str] = []
        plan = None
        try:
            source = Source(opened.tensors, opened.values, rename, exchange.rank,
                            exchange.world_size)
            plan = Plan(source, exchange.rank, exchange.world_size)
            plan.add(things, rng)
            values = {name: source.node(name) for name in sorted(source.values)
                      if "." not in name and name not in source.used}
            problems, new, gone = plan.problems, plan.new, source.unused()
        except Exception as error:  # a state_dict() or rename() may raise anything
            problems = [text_of(error)]
        said = exchange.gather([_joined(problems), new, gone])
        _raise_first(step, [problem for problem, _, _ in said], "does not fit")
        assert plan is not None
        new = sorted({name for _, rank_new, _ in said for name in rank_new})
        # One rank's tensor may be unknown to another, as in pipelines.
        gone = sorted(set(gone).intersection(*(rank_gone for _, _, rank_gone in said)))
        if strict and (new or gone):
            differences = [*(f"{name} is missing" for name in new),
                           *(f"{name} is unknown to this program" for name in gone)]
            raise CheckpointError(f"checkpoint of step {step} does not fit: "
                                  f"{_joined(differences)}")
        problem = None
        try:
            plan.carry_out()
        except Exception as error:  # a load_state_dict() may raise anything
            problem = repr(error)
        _raise_first(step, exchange.gather(problem), "cannot be loaded")
        self.values = values
        self._tell(new, "is new: it keeps its value")
        self._tell(gone, "of the checkpoint is gone: the program has nothing of that name")
        self._tell(source.foreign, "differed from rank to rank in another world size: rank 0's "
                                   "is taken")

    def _tell(self, names: list[str], what: str) -> None:
        for name in names[:_LINES_MAX]:
            self._say(f"{name} {what}")
        if len(names) > _LINES_MAX:
            self._say(f"{len(names) - _LINES_MAX} more, from {names[_LINES_MAX]}: {what}")


def _number(name: str, number: Any, least: int, most: int) -> int:
    try:
        if least <= operator.index(number) <= most:
            return operator.index(number)
    except TypeError:
        pass
    raise ValueError(f"{name}={number!r} is no number from {least} to {most}")


def _digest(said: Any) -> str:
    return hashlib.blake2b(json.dumps(said, sort_keys=True).encode(), digest_size=16).hexdigest()


def _merged(values: list[dict[str, str]]) -> dict[str, str]:
    """The values of all ranks; one that differs holds each rank's."""
    merged = {}
    for name in sorted(set().union(*values)):
        texts = [rank_values.get(name) for rank_values in values]
        same = {text for text in texts if text is not None}
        merged[name] = same.pop() if len(same) == 1 else _trees.ranks_of(texts)
    return merged


def _joined(problems: list[str]) -> str | None:
    if not problems:
        return None
    more = f"; and {len(problems) - 5} more" if len(problems) > 5 else ""
    return "; ".join(problems[:5]) + more


def _first(problems: list[str | None]) -> str | None:
    """The first problem, and whose it is."""
    return next((f"rank {rank}: {problem}" for rank, problem in enumerate(problems)
                 if problem is not None), None)


def _raise_first(step: int, problems: list[str | None], what: str = "is not saved") -> None:
    problem = _first(problems)
    if problem is not None:
        raise CheckpointError(f"checkpoint of step {step} {what}: {problem}")
