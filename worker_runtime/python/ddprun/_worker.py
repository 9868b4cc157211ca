"""Worker: its place, its reports to its agent, and its orderly end."""

from __future__ import annotations

import sys
from time import monotonic_ns

from ddprun._page import Page, open_page

TYPE_CHECKING = False
if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Mapping
    from typing import NoReturn

    from ddprun._ballot import Ballot
    from ddprun._scalars import Scalars
    from ddprun._waits import Waits

#: The exit code of a worker that saved and left because it was asked to.
EXIT_LEFT_WHEN_ASKED = 75

_NUMBER_MAX = 1 << 24


class Worker:
    """A worker of a job. Made by `ddprun.worker()`; used on one thread, except progress().

    All attributes are constant while the process lives.
    """

    #: Place among all workers of the generation, from 0.
    rank: int
    #: Number of all workers.
    world_size: int
    #: Number of all workers when the job has the largest size that --nnodes allows, which the
    #: global batch is meant for; at least world_size. The same where only one size is allowed.
    target_world_size: int
    #: Place among this node's workers, from 0.
    local_rank: int
    #: Number of this node's workers.
    local_world_size: int
    #: Place of this node among the nodes, from 0.
    group_rank: int
    #: Number of nodes.
    group_world_size: int
    #: Number of the attempt of the whole job, from 1; it only grows.
    generation: int
    #: Worker failures that have restarted the job so far.
    restart_count: int
    #: Why the last generation ended, for people; empty: this is the first.
    start_reason: str
    #: The job's id; empty: not told.
    job: str
    #: Whether ddprun started this process.
    is_under_ddprun: bool

    def __init__(self, environment: Mapping[str, str]) -> None:
        """Reads the place from `environment`; see ddprun.worker() for what else and the errors."""
        self.is_under_ddprun = "DDPRUN_GENERATION" in environment
        read = _Reader(environment, self.is_under_ddprun)
        self.rank = read.number("RANK", 0)
        self.world_size = read.number("WORLD_SIZE", 1)
        self.target_world_size = read.number_if_told("DDPRUN_TARGET_WORLD_SIZE", self.world_size)
        self.local_rank = read.number("LOCAL_RANK", 0)
        self.local_world_size = read.number("LOCAL_WORLD_SIZE", 1)
        self.group_rank = read.number("GROUP_RANK", 0)
        self.group_world_size = read.number("GROUP_WORLD_SIZE", 1)
        self.restart_count = read.number("TORCHELASTIC_RESTART_COUNT", 0)
        self.generation = read.number("DDPRUN_GENERATION", self.restart_count + 1, (1 << 64) - 1)
        self.start_reason = read.text("DDPRUN_START_REASON")
        self.job = read.text("TORCHELASTIC_RUN_ID")
        #: As local_rank, but never made 0 by --virtual-local-rank.
        self._slot = read.number("DDPRUN_SLOT", self.local_rank)
        # The socket of this node's ddprun-memory, and the group rank of the node with copies.
        self._memory_socket = environment.get("DDPRUN_MEMORY_CHECKPOINTS", "")
        partner = environment.get("DDPRUN_MEMORY_PARTNER")
        self._memory_partner = read.number("DDPRUN_MEMORY_PARTNER", 0) if partner else None
        self._page = self._open_page(read)
        self._page.tell_main(monotonic_ns())
        self._scalars_folder = (environment.get("DDPRUN_TENSORBOARD_DIR") or
                                f"runs/{self.job or 'local'}")
        self._scalars: Scalars | None = None
        self._writes_scalars = self.rank == 0
        self._waits: Waits | None = None
        if self.is_under_ddprun and self.world_size > 1 and "torch" in sys.modules:
            from ddprun._group_end import hold_no_group
            from ddprun._waits import Waits

            hold_no_group()
            self._waits = Waits(self._page.tell_waited)
        self._samples = 0
        self._has_first_step = False
        self._has_agreed = False
        self._looks = False
        self._ballot: Ballot | None = None

    def progress(self, step: int, *, samples: int = 0, loss: float | None = None) -> None:
        """Reports to the agent that `step` is done.

        step: number of the step, 0 to 2**64 - 2. Failure reports show the last one.
        samples: what this rank has trained on since the last call, in samples; they are added up.
        loss: its loss, in the program's own unit. A number: to make one of a tensor on a GPU
            waits for the GPU.

        A few words in memory, and a read of the clock: about 2 microseconds. Any thread. Raises
        TypeError or ValueError for what is no such number.
        """
        page = self._page
        page.tell_progress(step)
        if samples:
            self._samples += samples
            page.tell_samples(self._samples)
        if loss is not None:
            page.tell_loss(loss)
        now_ns = monotonic_ns()
        if self._waits is not None:
            self._waits.look(now_ns)
        is_first = not self._has_first_step
        page.tell_pace(step, now_ns, is_first)
        if is_first:
            self._has_first_step = True
            page.tell_first_step(step, now_ns)

    def waited(self, seconds: float) -> None:
        """Tells the agent that this rank has waited so long for other ranks, since the last call.

        ddprun then knows how much of a step is a rank's own, and names the one that all others
        wait for. Not needed for what torch.distributed waits for on CPUs, nor in the backward
        passes of DistributedDataParallel: that is told without it, until this is called.
        """
        if self._waits is not None:
            self._waits.is_wanted = False
        self._page.tell_waited(int(seconds * 1e9))

    def checkpointing(self) -> Checkpointing:
        """`with worker.checkpointing():` around what stops the training to save a checkpoint.

        ddprun then knows how much of the job's time checkpoints cost. Writing while the next
        steps are done does not count.
        """
        return Checkpointing(self._tell_checkpointing)

    def _tell_checkpointing(self, time_ns: int) -> None:
        """Before the first step it is a part of the start."""
        if self._has_first_step:
            self._page.tell_checkpointing(time_ns)

    def total_steps(self, steps: int) -> None:
        """Tells how many steps the run will have in all, counted as progress() does."""
        self._page.tell_total_steps(steps)

    def scalar(self, name: str, value: float, step: int) -> None:
        """Adds `value` at `step` to the curve `name`, for TensorBoard.

        Rank 0 writes, on other ranks nothing happens. The folder is DDPRUN_TENSORBOARD_DIR, else
        runs/<job> in the working directory, the same for all generations: after a resume the
        curves go on from its step, and what came later is dropped. Needs the package tensorboard.
        Without it, or where the folder cannot be written, one line on stderr says so, and the
        training goes on. The curve "loss" is also what ddprun shows as the loss.
        """
        if name == "loss":
            self._page.tell_loss(value)
        if not self._writes_scalars:
            return
        try:
            if self._scalars is None:
                from ddprun._scalars import Scalars

                self._scalars = Scalars(self._scalars_folder, self.generation, step)
            self._scalars.add(name, value, step)
        except (ImportError, OSError) as error:
            self._writes_scalars = False
            self._warn(f"{error}; no curve is written from now on" + (
                "; pip install tensorboard" if isinstance(error, ImportError) else ""))

    def group_ready(self) -> None:
        """Notes the time at which all ranks were connected; for how long a start takes."""
        self._page.tell_group_ready(monotonic_ns())

    def resumed(self) -> None:
        """Notes the time at which the checkpoint was loaded; for how long a start takes."""
        self._page.tell_resumed(monotonic_ns())

    def checkpoints_in(self, path: str | os.PathLike[str]) -> None:
        """Tells the agent where the checkpoints are, which it reads ahead when a failure is known.

        path: a file, or a folder with the newest one in it. Told at the start, or when it changes;
        the last one counts. A file system that other processes of this node see.
        """
        import os

        self._page.tell_checkpoints(os.fsencode(os.path.abspath(path)))

    def stop_requested(self) -> bool:
        """Whether the job is asked to save and leave: the same answer on every rank.

        Every rank calls it equally often, after each step. One word travels over a Gloo group of
        its own while the next step is computed, so a request is answered one call later. The
        first call makes that group, and lets the agent ask here where it would have sent SIGTERM;
        before it, SIGTERM ends this process as ever. Without ddprun it is False. Once True it
        stays so.

        Raises RuntimeError in a job of several workers while torch.distributed is not
        initialised. When a peer has died it is False after one line on stderr: the program's next
        collective says why.
        """
        if self._has_agreed or not self.is_under_ddprun:
            return self._has_agreed
        if self.world_size == 1:
            self._look()
            self._has_agreed = self._page.is_stop_wanted()
            return self._has_agreed
        ballot = self._made_ballot()
        self._look()
        self._has_agreed = ballot.exchange(self._page.is_stop_wanted())
        return self._has_agreed

    def stop_deadline(self) -> float | None:
        """When a worker that was asked and still runs is killed, in seconds on time.monotonic().

        Returns None if this node's agent has asked for nothing; another node's may have.
        """
        return self._page.stop_deadline_ns() / 1e9 if self._page.is_stop_wanted() else None

    def is_isolated(self) -> bool:
        """True while nothing may be published: this node may have been replaced already.

        Ask immediately before a checkpoint is put in place.
        """
        return monotonic_ns() >= self._page.publish_until_ns()

    def leave(self) -> NoReturn:
        """Ends this program with exit code 75, "left when asked", once every rank is here.

        Every rank calls it after stop_requested() said True and its checkpoint is written. It
        raises SystemExit, so `finally` and atexit run; the process group is left to the program.
        """
        if self._ballot is not None:
            self._ballot.wait_for_all()
        sys.exit(EXIT_LEFT_WHEN_ASKED)

    def _agree(self, problem: int) -> int:
        """The largest that any rank says, on every rank; every rank calls it equally often.

        Raises RuntimeError as stop_requested() does, and when a peer is gone.
        """
        if self.world_size == 1 or not self.is_under_ddprun:
            return problem
        return self._made_ballot().worst(problem)

    def _made_ballot(self) -> Ballot:
        if self._ballot is None:
            from ddprun._ballot import Ballot

            self._ballot = Ballot(self.rank, self.world_size)
        return self._ballot

    def _look(self) -> None:
        if not self._looks:
            self._looks = True
            self._page.tell_that_it_looks()

    def _open_page(self, read: _Reader) -> Page:
        path = read.text("DDPRUN_PAGE")
        if not self.is_under_ddprun or not path:
            return Page()
        try:
            return open_page(path, self.generation, self._slot, self.local_world_size)
        except (OSError, ValueError) as error:
            self._warn(f"{error}; a request to stop will come as a signal")
            return Page()

    def _warn(self, what: str) -> None:
        print(f"ddprun: rank {self.rank}: {what}", file=sys.stderr, flush=True)


class Checkpointing:
    """Times what is done inside of it, however that ends."""

    def __init__(self, tell: Callable[[int], None]) -> None:
        self._tell = tell
        self._begin_ns = 0

    def __enter__(self) -> None:
        self._begin_ns = monotonic_ns()

    def __exit__(self, *error: object) -> None:
        self._tell(monotonic_ns() - self._begin_ns)


class _Reader:
    """Reads variables. Started by ddprun, every one must be there."""

    def __init__(self, environment: Mapping[str, str], is_under_ddprun: bool) -> None:
        self._environment = environment
        self._is_under_ddprun = is_under_ddprun

    def text(self, key: str) -> str:
        value = self._environment.get(key)
        if value is None and self._is_under_ddprun:
            raise ValueError(
                f"worker environment: {key} is not set, but DDPRUN_GENERATION is; give this "
                "program its whole environment, or start it without ddprun's")
        return value or ""

    def number_if_told(self, key: str, otherwise: int) -> int:
        """As number(), but an older ddprun may leave the variable out, too."""
        return self.number(key, otherwise) if key in self._environment else otherwise

    def number(self, key: str, otherwise: int, largest: int = _NUMBER_MAX) -> int:
        text = self.text(key)
        if key not in self._environment:
            return otherwise
        if not (text.isascii() and text.isdigit()) or int(text) > largest:
            raise ValueError(
                f"worker environment: {key}={text} is no number from 0 to {largest}")
        return int(text)
