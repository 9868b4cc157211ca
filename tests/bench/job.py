"""One job under a launcher: starts it, hears its workers, kills, measures, cleans up."""

import os
import platform
import pty
import re
import resource
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from typing import NamedTuple


PATIENCE_S = 300
RECVMSG = {"x86_64": 47, "aarch64": 212}[platform.machine()]


class Stamp(NamedTuple):
    """A worker's report when it came into main."""
    at_ns: int
    rank: int
    world: int
    group_rank: int
    pid: int


class Peer(NamedTuple):
    """A column of the table: a launcher and how it is called, or what a launcher starts."""
    name: str
    command: list
    is_on_terminal: bool = False


def say(text):
    print(f"bench: {text}", file=sys.stderr, flush=True)


def alternate(title, peers, measure, runs, log):
    """Runs `measure` for every peer in turn; a peer for which it fails or says False is measured no
    more."""
    given_up = set()
    for run in range(runs):
        for peer in peers:
            if peer.name in given_up:
                continue
            say(f"{title}: run {run + 1} of {runs}: {peer.name}")
            try:
                goes_on = measure(peer) is not False
            except RuntimeError as error:
                say(f"FAILED: {error}; its console is in {log}")
                goes_on = False
            if not goes_on:
                given_up.add(peer.name)


def free_port():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return taken.getsockname()[1]


def start_ranks(command, world, **options):
    """One process per rank, as torchrun's workers find their places; a world of 1 has none.

    options: subprocess.Popen's. One thread per rank.
    """
    environment = {key: value for key, value in os.environ.items()
                   if not key.startswith(("PET_", "TORCHELASTIC_", "DDPRUN_"))}
    environment["OMP_NUM_THREADS"] = "1"
    if world > 1:
        environment.update({
            "WORLD_SIZE": str(world), "LOCAL_WORLD_SIZE": str(world), "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(free_port()), "TORCHELASTIC_USE_AGENT_STORE": "False"})
    ranks = []
    for rank in range(world):
        if world > 1:
            environment.update({"RANK": str(rank), "LOCAL_RANK": str(rank)})
        ranks.append(subprocess.Popen(command, env=environment, **options))
    return ranks


def allow_cores():
    hard = resource.getrlimit(resource.RLIMIT_CORE)[1]
    resource.setrlimit(resource.RLIMIT_CORE, (hard, hard))


class Job:
    """A context: whatever the job left behind is gone at its end."""

    def __init__(self, peer, worker, keep_log_at=None):
        self.peer = peer
        self.worker = worker
        self.keep_log_at = keep_log_at
        self.folder = tempfile.mkdtemp(prefix="ddprun-bench-")
        self.launchers = []
        self.lines = None
        self.stamps = []
        self.unread = b""
        self.fifo_path = os.path.join(self.folder, "stamps")
        os.mkfifo(self.fifo_path)
        self.fifo = os.open(self.fifo_path, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
        self.log = open(os.path.join(self.folder, "console"), "wb")
        self.endpoint = f"127.0.0.1:{free_port()}"
        self.id = "bench"

    def __enter__(self):
        return self

    def __exit__(self, *error):
        for launcher in self.launchers:
            if launcher.poll() is None:
                launcher.terminate()
        for launcher in self.launchers:
            try:
                launcher.wait(20)
            except subprocess.TimeoutExpired:
                launcher.kill()
                launcher.wait()
        for stamp in self.stamps:  # torchrun leaves them behind when it is killed
            if self.is_worker(stamp.pid):
                os.kill(stamp.pid, signal.SIGKILL)
        os.close(self.fifo)
        if self.lines:
            self.lines.pipe.close()
        self.log.close()
        if any(error) and self.keep_log_at:
            shutil.copy(self.log.name, self.keep_log_at)
        shutil.rmtree(self.folder, ignore_errors=True)

    def is_worker(self, pid):
        """Still our worker: pids are reused, command lines name our own folder."""
        try:
            with open(f"/proc/{pid}/cmdline", "rb") as file:
                return self.fifo_path.encode() in file.read()
        except OSError:
            return False

    def start(self, mode, slots, **options):
        """Starts one node of stamp workers; returns the launcher and the moment just before."""
        program = ["--no-python", self.worker, self.fifo_path, mode]
        return self.launch(self.peer.command, program, slots, **options)

    def launch(self, command, program, slots, nnodes="1", restarts=0, conf="", hears_lines=False,
               variables=None, folder=None):
        """Starts one node of `program`; returns the launcher and the moment just before. With
        `hears_lines` what its workers print is in `self.lines`, that of all such nodes in one; with
        `folder` they work there and may leave cores."""
        arguments = [*command, "--nproc-per-node", str(slots),
                     "--max-restarts", str(restarts), "--log-dir",
                     os.path.join(self.folder, "logs")]
        if nnodes != "1":
            arguments += ["--nnodes", nnodes, "--rdzv-backend", "c10d", "--rdzv-id", self.id,
                          "--rdzv-endpoint", self.endpoint]
            if self.endpoint.startswith("127."):
                arguments += ["--local-addr", "127.0.0.1"]
        if conf:
            arguments += ["--rdzv-conf", conf]
        arguments += program
        environment = {name: value for name, value in os.environ.items()
                       if not name.startswith(("PET_", "TORCHELASTIC_", "DDPRUN_"))}
        environment["OMP_NUM_THREADS"] = "1"
        environment["DDPRUN_STATE_DIR"] = os.path.join(self.folder, "state")
        os.makedirs(environment["DDPRUN_STATE_DIR"], mode=0o700, exist_ok=True)
        environment.update(variables or {})
        console = self.terminal(environment) if self.peer.is_on_terminal else self.log
        heard = self.one_more_speaker() if hears_lines else None
        before = time.monotonic_ns()
        launcher = subprocess.Popen(arguments, stdin=subprocess.DEVNULL,
                                    stdout=heard if hears_lines else console,
                                    stderr=console, env=environment, cwd=folder,
                                    preexec_fn=allow_cores if folder else None)
        if self.peer.is_on_terminal:
            os.close(console)
        if hears_lines:
            os.close(heard)
        self.launchers.append(launcher)
        return launcher, before

    def one_more_speaker(self):
        """A descriptor: what is written there comes into `self.lines`."""
        if self.lines is None:
            read, write = os.pipe()
            self.lines = Lines(os.fdopen(read, "rb"), self.log)
            return write
        return os.open(f"/proc/self/fd/{self.lines.pipe.fileno()}", os.O_WRONLY | os.O_CLOEXEC)

    def terminal(self, environment):
        """A launcher's terminal; its text goes into the log until no process has it open."""
        environment["TERM"] = "xterm"
        ours, theirs = pty.openpty()
        log = os.dup(self.log.fileno())

        def copy():
            try:
                while text := os.read(ours, 65536):
                    os.write(log, text)
            except OSError:
                pass
            os.close(ours)
            os.close(log)
        threading.Thread(target=copy, daemon=True).start()
        return theirs

    def await_stamps(self, count, timeout_s=90.0):
        """Returns the next `count` stamps, or None when they do not come in time."""
        deadline = time.monotonic() + timeout_s
        fresh = []
        while len(fresh) < count:
            left = deadline - time.monotonic()
            if left <= 0 or not select.select([self.fifo], [], [], left)[0]:
                return None
            *lines, self.unread = (self.unread + os.read(self.fifo, 65536)).split(b"\n")
            fresh += [Stamp(*map(int, line.split())) for line in lines]
        self.stamps += fresh
        return fresh

    def must_await(self, count):
        fresh = self.await_stamps(count)
        if fresh is None:
            raise RuntimeError(f"{self.peer.name}: {count} workers did not come into main")
        return fresh

    def helpers(self):
        """Pids of the launchers and all their descendants, workers left out."""
        return self.descendants(lambda pid, workers={stamp.pid for stamp in self.stamps}:
                                pid not in workers)

    def descendants(self, is_wanted, launchers=None):
        """Pids of the launchers and their descendants, without the trees of those not wanted."""
        found, queue = [], [launcher.pid for launcher in launchers or self.launchers]
        while queue:
            pid = queue.pop()
            if not is_wanted(pid):
                continue
            found.append(pid)
            for task in os.listdir(f"/proc/{pid}/task"):
                with open(f"/proc/{pid}/task/{task}/children", encoding="ascii") as file:
                    queue += map(int, file.read().split())
        return found


class Lines:
    """The lines of a pipe, each with the moment of its arrival; a copy of all goes into `log`."""

    def __init__(self, pipe, log):
        self.pipe = pipe
        self.log = log
        self.unread = b""
        self.ready = []

    def drop(self):
        """Passes over all lines printed until now."""
        while select.select([self.pipe], [], [], 0)[0]:
            fresh = os.read(self.pipe.fileno(), 65536)
            if not fresh:
                break
            self.log.write(fresh)
            self.unread = (self.unread + fresh).rpartition(b"\n")[2]
        self.ready.clear()

    def await_line(self, pattern, timeout_s=90.0):
        """The first line not yet read in which `pattern` is found, as (nanoseconds, match); what
        stands before it is passed over. Fails at the end of the pipe."""
        deadline = time.monotonic() + timeout_s
        while True:
            while self.ready:
                at_ns, line = self.ready.pop(0)
                match = re.search(pattern, line)
                if match:
                    return at_ns, match
            left = deadline - time.monotonic()
            if left <= 0 or not select.select([self.pipe], [], [], left)[0]:
                raise RuntimeError(f"no line with '{pattern}' within {timeout_s:.0f} s")
            fresh = os.read(self.pipe.fileno(), 65536)
            at_ns = time.monotonic_ns()
            if not fresh:
                raise RuntimeError(f"the job ended without a line with '{pattern}'")
            self.log.write(fresh)
            *lines, self.unread = (self.unread + fresh).split(b"\n")
            self.ready += [(at_ns, line.decode(errors="replace")) for line in lines]


def memory_kib(pid):
    """(VmRSS, Pss) of one process."""
    values = {}
    for path in (f"/proc/{pid}/status", f"/proc/{pid}/smaps_rollup"):
        with open(path, encoding="ascii", errors="replace") as file:
            for line in file:
                name, _, rest = line.partition(":")
                if name in ("VmRSS", "Pss"):
                    values[name] = int(rest.split()[0])
    return values["VmRSS"], values["Pss"]


def cpu_seconds(pids):
    """User and system time so far, without children."""
    ticks = 0
    for pid in pids:
        with open(f"/proc/{pid}/stat", encoding="ascii", errors="replace") as file:
            ticks += sum(map(int, file.read().rpartition(")")[2].split()[11:13]))
    return ticks / os.sysconf("SC_CLK_TCK")


def wake_ups(pids):
    """Voluntary context switches so far, of all threads."""
    total = 0
    for pid in pids:
        for task in os.listdir(f"/proc/{pid}/task"):
            with open(f"/proc/{pid}/task/{task}/status", encoding="ascii",
                      errors="replace") as file:
                total += sum(int(line.split()[1]) for line in file
                             if line.startswith("voluntary_ctxt_switches"))
    return total


def environment_of(pid):
    try:
        with open(f"/proc/{pid}/environ", "rb") as file:
            return file.read().split(b"\0")
    except OSError:
        return []


def is_waiting(pid):
    """A standby that waits for its place: it is in recvmsg()."""
    try:
        with open(f"/proc/{pid}/syscall", encoding="ascii") as file:
            return file.read().split()[0] == str(RECVMSG) and any(
                variable.startswith(b"DDPRUN_STANDBY=") for variable in environment_of(pid))
    except OSError:
        return False


def workers_of(job, launcher):
    """The pids of this node's workers by local rank; standbys are none."""
    found = {}
    for pid in job.descendants(lambda pid: True, [launcher]):
        for variable in environment_of(pid):
            if variable.startswith(b"LOCAL_RANK=") and not is_waiting(pid):
                found[int(variable[11:])] = pid
    return [found[local_rank] for local_rank in sorted(found)]


def await_standbys(job, launcher, count):
    deadline = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline:
        found = [pid for pid in job.descendants(lambda pid: True, [launcher]) if is_waiting(pid)]
        if len(found) == count:
            return found
        time.sleep(0.1)  # No event reports standbys to the bench.
    raise RuntimeError(f"{job.peer.name}: not {count} standbys within {PATIENCE_S} s")
