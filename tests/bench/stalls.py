"""How long nodes are without a daemon that decides, when the one that did is gone.

A stall begins just before the fault and ends when the last node's agent has been accepted by the
daemon that decides from then on. Its log says `node … reconnected` in the step that sends Accepted
to the agent; the stamp of that line counts (one machine, one clock). If agents lose no daemon,
because one of several etcds has died, the stall ends when a job asked for at the moment of the
fault has started, which needs etcd to take a record; the same without a fault is measured beside
it. Workers must not notice: one that starts or ends is an alarm.
"""

import collections
import datetime
import json
import os
import random
import re
import secrets
import signal
import subprocess
import tempfile
import time
import urllib.error
import urllib.request

from job import Job, Peer, free_port, say

NODES = 4
DAEMONS = 3
ETCDS = 3
MS = 1e3
PATIENCE_S = 60.0


class Log:
    """Reads one daemon's log file, with the moments that its lines state."""

    def __init__(self, path):
        self.path = path
        self.offset = 0

    def fresh(self):
        """(seconds since the epoch, text) of all lines not yet read."""
        if not os.path.exists(self.path):
            return
        with open(self.path, "rb") as file:
            file.seek(self.offset)
            text = file.read()
        text = text[:text.rfind(b"\n") + 1]
        self.offset += len(text)
        for line in text.decode(errors="replace").splitlines():
            stamp, _, said = line.partition(" ddprun-rendezvous: ")
            if said:
                yield datetime.datetime.fromisoformat(stamp).timestamp(), said


def wait_for(what, is_true):
    deadline = time.monotonic() + PATIENCE_S
    while not is_true():
        if time.monotonic() > deadline:
            raise RuntimeError(f"waited {PATIENCE_S:.0f} s for {what}")
        time.sleep(0.002)


def await_accepted(logs, since_s):
    """When the last of all nodes was accepted again after `since_s`."""
    accepted = {}

    def are_all():
        for log in logs:
            for at_s, said in log.fresh():
                node = re.search(r"stall: node (\S+) reconnected$", said)
                if node and at_s >= since_s - 0.001:
                    accepted.setdefault(node[1], at_s)
        return len(accepted) == NODES

    wait_for("all nodes to be accepted again", are_all)
    return max(accepted.values())


class Etcds:
    """A context: several of one cluster, on free ports."""

    def __init__(self, count):
        self.folder = tempfile.TemporaryDirectory(prefix="ddprun-bench-")
        self.urls = [f"http://127.0.0.1:{free_port()}" for _ in range(count)]
        self.peers = [f"http://127.0.0.1:{free_port()}" for _ in range(count)]
        self.processes = [self.spawn(index) for index in range(count)]
        self.await_health()

    def __enter__(self):
        return self

    def __exit__(self, *error):
        for process in self.processes:
            process.kill()
            process.wait()
        self.folder.cleanup()

    def spawn(self, index):
        cluster = ",".join(f"m{other}={peer}" for other, peer in enumerate(self.peers))
        url, peer = self.urls[index], self.peers[index]
        with open(os.path.join(self.folder.name, f"m{index}.log"), "ab") as log:
            return subprocess.Popen(
                ["etcd", "--name", f"m{index}", "--data-dir",
                 os.path.join(self.folder.name, f"m{index}"), "--listen-client-urls", url,
                 "--advertise-client-urls", url, "--listen-peer-urls", peer,
                 "--initial-advertise-peer-urls", peer, "--initial-cluster", cluster],
                stdin=subprocess.DEVNULL, stdout=log, stderr=log)

    def ask(self, index, path, body=None):
        try:
            with urllib.request.urlopen(self.urls[index] + path, body, 2) as answer:
                return json.load(answer)
        except (urllib.error.URLError, OSError):
            return {}

    def await_health(self):
        wait_for("etcd", lambda: all(self.ask(index, "/health").get("health") == "true"
                                     for index in range(len(self.urls))))

    def leader(self):
        for index in range(len(self.urls)):
            status = self.ask(index, "/v3/maintenance/status", b"{}")
            if status and status["leader"] == status["header"]["member_id"]:
                return index
        raise RuntimeError("no etcd leads")

    def kill(self, index):
        self.processes[index].kill()
        self.processes[index].wait()

    def restart(self, index):
        self.processes[index] = self.spawn(index)
        self.await_health()

    def hosts(self):
        return ",".join(url.removeprefix("http://") for url in self.urls)


class Daemons:
    """A context: several with one etcd cluster; which one leads is what they say."""

    def __init__(self, build, etcds):
        self.build = build
        self.etcds = etcds
        self.folder = tempfile.TemporaryDirectory(prefix="ddprun-bench-")
        self.secret_file = os.path.join(self.folder.name, "secret")
        with open(os.open(self.secret_file, os.O_WRONLY | os.O_CREAT, 0o600), "w",
                  encoding="ascii") as file:
            file.write(secrets.token_hex(32) + "\n")
        self.places = [f"127.0.0.1:{free_port()}" for _ in range(DAEMONS)]
        self.processes = [None] * DAEMONS
        # One reader for what they say of each other, others for what they say of nodes.
        self.states = [Log(self.log_path(index)) for index in range(DAEMONS)]
        self.said = ["nothing"] * DAEMONS  # last of leading
        self.losses = 0
        for index in range(DAEMONS):
            self.spawn(index)
        self.await_said("a leader and followers", lambda said: sorted(said) == [
            "follows"] * (DAEMONS - 1) + ["leads"])

    def __enter__(self):
        return self

    def __exit__(self, *error):
        for process in self.processes:
            process.send_signal(signal.SIGCONT)
            process.kill()
            process.wait()
        self.folder.cleanup()

    def log_path(self, index):
        return os.path.join(self.folder.name, f"log{index}")

    def logs(self):
        """For what is said from now on."""
        logs = [Log(self.log_path(index)) for index in range(DAEMONS)]
        for log in logs:
            collections.deque(log.fresh(), maxlen=0)
        return logs

    def spawn(self, index):
        with open(self.log_path(index), "ab") as log:
            self.processes[index] = subprocess.Popen(
                [os.path.join(self.build, "bin", "ddprun-rendezvous"), "--listen",
                 self.places[index], "--secret-file", self.secret_file, "--ha",
                 f"etcd://{self.etcds.hosts()}"],
                stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=log)

    def look(self):
        for index, log in enumerate(self.states):
            for _, said in log.fresh():
                for pattern, state in ((r"^leads from now on", "leads"),
                                       (r"^the daemon at \S+ leads$", "follows"),
                                       (r"^(leads no more|nobody leads)", "waits")):
                    if re.search(pattern, said):
                        self.said[index] = state
                self.losses += said.startswith("leads no more")
        return self.said

    def await_said(self, what, is_wanted):
        wait_for(what, lambda: is_wanted(self.look()))

    def leader(self):
        self.await_said("one leader", lambda said: said.count("leads") == 1)
        return self.said.index("leads")

    def restart(self, index):
        self.processes[index].wait()
        self.look()
        self.said[index] = "nothing"
        self.spawn(index)
        self.await_said("the daemon that was started again", lambda said: said[index] == "follows")


class Stalls:
    """The measures; `bench` is control_plane.py's."""

    def __init__(self, bench, runs):
        self.bench = bench
        self.runs = runs

    def job(self, endpoint):
        job = Job(Peer("ddprun", [os.path.join(self.bench.build, "bin", "ddprun")]),
                  self.bench.worker, self.bench.log)
        job.endpoint = endpoint
        job.id = "stall"
        return job

    @staticmethod
    def start_nodes(job, variables=None):
        for _ in range(NODES):
            job.start("hold", 1, nnodes=str(NODES), restarts=3, variables=variables)
        job.must_await(NODES)

    def check_workers(self, job):
        """Counts an alarm if a worker has ended or was started."""
        fresh = job.await_stamps(1, 0.05) or []
        gone = [stamp for stamp in job.stamps if not job.is_worker(stamp.pid)]
        if fresh or gone:
            say(f"WRONG: {len(fresh)} workers were started, {len(gone)} ended")
            self.bench.alarms += 1

    # ------------------------------------------------------------------------------- one daemon

    def daemon(self):
        """The daemon that the head node's ddprun started is killed; ddprun starts the next one."""
        samples = []
        for run in range(self.runs):
            say(f"daemon of a ddprun killed: {run} of {self.runs}")
            with self.job(f"127.0.0.1:{free_port()}") as job:
                self.start_nodes(job)
                log = Log(f"/var/tmp/ddprun-{os.geteuid()}/"
                          f"rendezvous-{job.endpoint.split(':')[1]}.log")
                victim = daemon_of(job)
                time.sleep(random.random() * 0.3)  # at any moment between two beats
                before = time.time()
                os.kill(victim, signal.SIGKILL)
                samples.append((await_accepted([log], before) - before) * MS)
                self.check_workers(job)
                for launcher in job.launchers:
                    launcher.terminate()
        self.bench.add("daemon of a ddprun killed to all nodes accepted", "ms", "max <= 2000",
                       samples)

    # -------------------------------------------------------------------------- several daemons

    def leader(self):
        """The leading one of three is killed; of three etcds none."""
        self.several("leading daemon killed to all nodes accepted", self.kill_leader)

    def paused(self):
        """The leading one is stopped; it goes on when another one leads."""
        self.several("leading daemon paused to all nodes accepted", self.pause_leader)

    def etcd(self):
        """The leading one of three etcds is killed."""
        quiet = []

        def measure(daemons, etcds, _job):
            quiet.append(self.durable_start(daemons, lambda: None))
            return self.kill_etcd(daemons, etcds)

        self.several("leading etcd of three killed to a durable start", measure)
        self.bench.add("the same without a fault", "ms", "", quiet)

    def several(self, what, measure):
        samples = []
        with Etcds(ETCDS) as etcds, Daemons(self.bench.build, etcds) as daemons, \
                self.job(",".join(daemons.places)) as job:
            self.start_nodes(job, {"DDPRUN_SECRET_FILE": daemons.secret_file})
            for run in range(self.runs):
                say(f"{what}: {run} of {self.runs}")
                time.sleep(random.random() * 0.5)
                samples.append(measure(daemons, etcds, job))
                self.check_workers(job)
        self.bench.add(what, "ms", "max <= 3000", samples)

    @staticmethod
    def kill_leader(daemons, _etcds, _job):
        victim, logs = daemons.leader(), daemons.logs()
        before = time.time()
        daemons.processes[victim].kill()
        accepted = await_accepted(logs, before)
        daemons.restart(victim)
        return (accepted - before) * MS

    @staticmethod
    def pause_leader(daemons, _etcds, _job):
        victim, logs = daemons.leader(), daemons.logs()
        before = time.time()
        daemons.processes[victim].send_signal(signal.SIGSTOP)
        accepted = await_accepted(logs, before)
        daemons.processes[victim].send_signal(signal.SIGCONT)
        daemons.await_said("the paused daemon", lambda said: said[victim] == "follows")
        return (accepted - before) * MS

    def kill_etcd(self, daemons, etcds):
        victim, logs = etcds.leader(), daemons.logs()
        losses = daemons.losses
        before = time.time()
        stall = self.durable_start(daemons, lambda: etcds.kill(victim))
        daemons.look()
        if daemons.losses > losses:  # its agents had to come back
            stall = max(stall, (await_accepted(logs, before) - before) * MS)
        etcds.restart(victim)
        return stall

    def durable_start(self, daemons, fault):
        """From `fault` to the start of a job of one node that is asked for just then."""
        with self.job(",".join(daemons.places)) as job:
            job.id = f"start-{secrets.token_hex(4)}"
            before = time.monotonic_ns()
            fault()
            job.start("exit", 1, nnodes="1:1",
                      variables={"DDPRUN_SECRET_FILE": daemons.secret_file})
            started, = job.must_await(1)
            job.launchers[0].wait(PATIENCE_S)
            return (started.at_ns - before) / 1e6


def daemon_of(job):
    """The rendezvous that one of the job's launchers has started."""
    for pid in job.helpers():
        with open(f"/proc/{pid}/cmdline", "rb") as file:
            if b"ddprun-rendezvous" in file.read().split(b"\0")[0]:
                return pid
    raise RuntimeError("no ddprun has started a rendezvous")
