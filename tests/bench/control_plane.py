#!/usr/bin/env python3
"""The control plane: how fast failures are noticed and answered, at which scale, at what cost.

Nothing is asserted except that no living node is ever declared dead (false-alarms), that no worker
notices a lost daemon (stall-*), and what chaos.py lists: the table says what was measured in this
run on this machine. All nodes share its cores, the peer's too.
"""

import argparse
import json
import os
import random
import resource
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
import time

import chaos
import faulty_network
import stalls
from job import Job, Lines, Peer, say
from report import Table

MS = 1e6
HERE = os.path.dirname(os.path.abspath(__file__))
MEASURES = ["torchrun", "agents-128", "agents-1000", "agents-4000", "watchers", "signal",
            "stall-daemon", "stall-leader", "stall-paused", "stall-etcd", "silence",
            "false-alarms", "chaos", "chaos-daemons"]
NEED_NETWORK = ("silence", "false-alarms", "chaos", "chaos-daemons")
NEED_ETCD = ("stall-leader", "stall-paused", "stall-etcd", "chaos-daemons")
# Starts in a minute before ddprun pauses: 10.
LOSSES_PER_JOB = 6
THIRD_OF_LEASE_MS = 333
STALLS_MAX = 20


class Daemon:
    """A context: one ddprun-rendezvous with a secret of its own."""

    def __init__(self, build, address="127.0.0.1"):
        self.folder = tempfile.TemporaryDirectory(prefix="ddprun-bench-")
        self.secret_file = os.path.join(self.folder.name, "secret")
        with open(os.open(self.secret_file, os.O_WRONLY | os.O_CREAT, 0o600), "w",
                  encoding="ascii") as file:
            file.write(secrets.token_hex(32) + "\n")
        self.log = open(os.path.join(self.folder.name, "log"), "wb")
        self.process = subprocess.Popen(
            [os.path.join(build, "bin", "ddprun-rendezvous"), "--listen", f"{address}:0",
             "--secret-file", self.secret_file],
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        self.endpoint = self.process.stdout.readline().decode().split()[-1]
        self.lines = Lines(self.process.stderr, self.log)

    def __enter__(self):
        return self

    def __exit__(self, *error):
        self.process.terminate()
        self.process.wait(20)
        self.process.stdout.close()
        self.process.stderr.close()
        self.log.close()
        self.folder.cleanup()


class Bench:
    def __init__(self, arguments):
        self.arguments = arguments
        self.build = arguments.build
        self.runs = arguments.runs
        self.worker = os.path.join(self.build, "tests", "stamp_worker")
        self.log = os.path.join(os.path.dirname(os.path.abspath(arguments.json)),
                                "failed-console.log")
        self.table = Table(["ddprun", "torchrun"])
        self.details = {}
        self.alarms = 0

    def add(self, what, unit, goal, samples, name="ddprun"):
        self.table.add(what, unit, goal, name, samples)

    # ------------------------------------------------------------------------------------- scale

    def agents(self, count, restarts, idle_s=0.0):
        """Many agents of the real protocol in one process (agent_crowd.cpp)."""
        say(f"{count} agents: {restarts} restarts, {idle_s:.0f} s idle")
        with Daemon(self.build) as daemon:
            # Its log goes nowhere else: a full pipe would hold it up.
            drain = subprocess.Popen(["cat"], stdin=daemon.process.stderr,
                                     stdout=subprocess.DEVNULL)
            done = subprocess.run(
                [os.path.join(self.build, "tests", "agent_crowd"), "--endpoint", daemon.endpoint,
                 "--secret-file", daemon.secret_file, "--daemon-pid", str(daemon.process.pid),
                 "--agents", str(count), "--restarts", str(restarts), "--idle-s", str(idle_s)],
                stdout=subprocess.PIPE, check=False)
        drain.wait()
        if done.returncode != 0:
            say(f"FAILED: {count} agents")
            return
        result = json.loads(done.stdout)
        self.details[f"agents-{count}"] = result
        if result["lost_links"] or result["node_losses"]:
            say(f"WRONG: {count} agents: {result['lost_links']} links and "
                f"{result['node_losses']} nodes were lost while nobody had gone")
            self.alarms += 1
        # "goal" is for the percentile that its name says; JSON has them all.
        goals = {128: "<= 50", 1000: "p50 <= 100, p99 <= 250"}
        self.add(f"{count} agents formed", "ms", "", result["form_ms"]["samples"])
        if restarts:
            self.add(f"{count} agents: one failure to all have the next start", "ms",
                     goals.get(count, ""), result["restart_ms"]["samples"])
            self.add("the same, 99th percentile" + f" ({count})", "ms", "",
                     [result["restart_ms"]["p99"]])
            self.add(f"CPU time of the daemon in it ({count})", "ms", "",
                     [result["daemon_cpu_ms_per_restart"]])
        if idle_s:
            idle = result["idle"]
            is_goal = count == 4000
            self.add(f"{count} idle agents: daemon's memory", "MB", "<= 200" * is_goal,
                     [idle["daemon_resident_mb"]])
            self.add(f"{count} idle agents: daemon's share of a core", "%", "<= 25" * is_goal,
                     [idle["daemon_cpu_percent"]])
            self.add(f"{count} idle agents: share of a core of all agents", "%", "",
                     [idle["crowd_cpu_percent"]])

    def watchers(self):
        """1,000 nodes of 8 workers, whose progress no watcher, one and 1,000 watchers follow."""
        for count in (0, 1, 1000):
            say(f"1000 nodes of 8 workers, {count} watchers")
            with Daemon(self.build) as daemon:
                crowd = subprocess.Popen(
                    [os.path.join(self.build, "tests", "agent_crowd"), "--endpoint",
                     daemon.endpoint, "--secret-file", daemon.secret_file, "--daemon-pid",
                     str(daemon.process.pid), "--agents", "1000", "--workers", "8",
                     "--settle-s", "10", "--idle-s", "20"], stdout=subprocess.PIPE)
                daemon.lines.await_line("generation 1 started")
                drain = subprocess.Popen(["cat"], stdin=daemon.process.stderr,
                                         stdout=subprocess.DEVNULL)
                watchers = subprocess.Popen(
                    [sys.executable, os.path.join(HERE, "watchers.py"), "--endpoint",
                     daemon.endpoint, "--job", "crowd-1", "--count", str(count)],
                    stdin=subprocess.PIPE, stdout=subprocess.PIPE)
                watchers.stdout.readline()
                # When the crowd ends, the job and its watchers end.
                told = crowd.stdout.read()
                got = json.loads(watchers.communicate()[0])
                crowd.wait()
                result = json.loads(told)
            drain.wait()
            self.details[f"watchers-{count}"] = {**result, "watchers": got}
            if result["lost_links"] or result["node_losses"] or got["dropped"]:
                say(f"WRONG: {count} watchers: {result['lost_links']} links, "
                    f"{result['node_losses']} nodes and {got['dropped']} watchers were lost")
                self.alarms += 1
            idle = result["idle"]
            self.add(f"8,000 ranks, {count} watchers: daemon's share of a core", "%",
                     "<= 2 more" * (count == 1), [idle["daemon_cpu_percent"]])
            self.add(f"8,000 ranks, {count} watchers: a beat to its answer", "ms", "",
                     idle["beat_answer_ms"]["samples"])
            self.add(f"8,000 ranks, {count} watchers: the daemon's memory", "MB", "",
                     [idle["daemon_resident_mb"]])

    def torchrun(self):
        python = os.path.abspath(self.arguments.python)
        if not os.access(python, os.X_OK):
            say(f"LEFT OUT: torchrun: there is no {python}; run scripts/setup.sh")
            return
        say("128 nodes of torchrun's protocol")
        done = subprocess.run([python, os.path.join(HERE, "torchrun_rendezvous.py"), "--nodes",
                               "128", "--rejoins", str(self.arguments.torchrun_rejoins)],
                              stdout=subprocess.PIPE, check=False)
        if done.returncode != 0:
            say("FAILED: torchrun's protocol")
            return
        result = json.loads(done.stdout)
        self.details["torchrun"] = result
        self.add("128 agents formed", "ms", "", [result["form_ms"]], "torchrun")
        self.add("128 agents: one failure to all have the next start", "ms", "<= 50",
                 result["restart_ms"], "torchrun")

    # -------------------------------------------------------------------------------- detection

    def new_job(self, endpoint, job_id, command=()):
        job = Job(Peer("ddprun", [*command, os.path.join(self.build, "bin", "ddprun")]),
                  self.worker, self.log)
        job.endpoint = endpoint
        job.id = job_id
        return job

    @staticmethod
    def last_signalled(job, living, count):
        """When the last of `count` workers of before was signalled, and the new workers."""
        old = {stamp.pid for stamp in living}
        stamps = job.must_await(2 * count)
        told = [stamp.at_ns for stamp in stamps if stamp.pid in old]
        if len(told) != count:
            raise RuntimeError(f"{len(told)} of {count} workers said that they were signalled")
        return max(told), [stamp for stamp in stamps if stamp.pid not in old]

    def signal(self):
        """An agent is killed; to the last of the other nodes' workers in its handler."""
        nodes = LOSSES_PER_JOB + 2
        samples = []
        while len(samples) < self.runs:
            say(f"agent killed: {len(samples)} of {self.runs}")
            with Daemon(self.build) as daemon:
                drain = subprocess.Popen(["cat"], stdin=daemon.process.stderr,
                                         stdout=subprocess.DEVNULL)
                with self.new_job(daemon.endpoint, "signal") as job:
                    for _ in range(nodes):
                        self.start_node(job, daemon, f"1:{nodes}")
                    living = job.must_await(nodes)
                    for left in range(nodes - 1, nodes - 1 - LOSSES_PER_JOB, -1):
                        victim = job.launchers[left]
                        gone = self.worker_pid_of(victim.pid, living)
                        living = [stamp for stamp in living if stamp.pid != gone]
                        before = time.monotonic_ns()
                        victim.kill()
                        told, living = self.last_signalled(job, living, left)
                        samples.append((told - before) / MS)
                        victim.wait()
            drain.wait()
        self.add("agent killed to the other nodes' workers signalled", "ms", "p50 <= 5", samples)

    @staticmethod
    def worker_pid_of(launcher_pid, living):
        for stamp in living:
            pid = stamp.pid
            while pid not in (0, 1, launcher_pid):
                with open(f"/proc/{pid}/stat", encoding="ascii", errors="replace") as file:
                    pid = int(file.read().rpartition(")")[2].split()[1])
            if pid == launcher_pid:
                return stamp.pid
        raise RuntimeError("a launcher has no worker")

    @staticmethod
    def start_node(job, daemon, nnodes, mode="tell"):
        job.start(mode, 1, nnodes=nnodes, restarts=100,
                  conf="last_call_timeout=60,join_timeout=120",
                  variables={"DDPRUN_SECRET_FILE": daemon.secret_file})

    def silence(self):
        """A node's cable is pulled out; to its death declared by the daemon, and to the last of the
        other nodes' workers signalled."""
        count = LOSSES_PER_JOB + 2
        declared, signalled = [], []
        with faulty_network.Network(count) as network:
            while len(declared) < self.runs:
                say(f"cable pulled out: {len(declared)} of {self.runs}")
                self.silence_job(network, count, declared, signalled)
                for node in range(count):
                    network.heal(node)
        self.add("cable pulled out to node declared dead", "ms", "max <= 1200", declared)
        self.add("cable pulled out to the other nodes' workers signalled", "ms", "", signalled)

    def silence_job(self, network, count, declared, signalled):
        with Daemon(self.build, faulty_network.SWITCH) as daemon:
            with self.new_job(daemon.endpoint, "silence") as job:
                job_command = job.peer.command
                for node in range(count):
                    job.peer = Peer("ddprun", [*network.enter(node), *job_command])
                    self.start_node(job, daemon, f"1:{count}")
                living = job.must_await(count)
                for left in range(count - 1, count - 1 - LOSSES_PER_JOB, -1):
                    gone = self.worker_pid_of(job.launchers[left].pid, living)
                    living = [stamp for stamp in living if stamp.pid != gone]
                    time.sleep(random.random() * 0.3)  # at any moment between two beats
                    before = time.monotonic_ns()
                    network.cut(left)
                    at_ns, _ = daemon.lines.await_line(r"silence: node .* was silent")
                    told, living = self.last_signalled(job, living, left)
                    declared.append((at_ns - before) / MS)
                    signalled.append((told - before) / MS)
                for launcher in job.launchers:
                    launcher.kill()

    # ------------------------------------------------------------------------------ false alarms

    def false_alarms(self):
        """Two jobs of many nodes, one with lost packets and one with stalls, on a busy machine."""
        minutes, nodes = self.arguments.minutes, self.arguments.nodes
        with faulty_network.Network(nodes) as network, \
                Daemon(self.build, faulty_network.SWITCH) as daemon, \
                self.new_job(daemon.endpoint, "loss") as lossy, \
                Proxy(self.build, daemon.endpoint) as proxy, \
                self.new_job(proxy.endpoint, "stalls") as stalled:
            command = lossy.peer.command
            for node in range(nodes):
                lossy.peer = Peer("ddprun", [*network.enter(node), *command])
                self.start_node(lossy, daemon, str(nodes), "hold")
                self.start_node(stalled, daemon, str(nodes), "hold")
            for job in (lossy, stalled):
                job.must_await(nodes)
            network.lose_one_in(100)
            proxy.order(f"random-stalls {THIRD_OF_LEASE_MS}")
            busy = [subprocess.Popen(["sh", "-c", "while :; do :; done"])
                    for _ in range(os.cpu_count())]
            try:
                deaths = self.watch(daemon, minutes * 60)
            finally:
                for process in busy:
                    process.kill()
                    process.wait()
            fresh = sum(len(job.await_stamps(1, 0.1) or []) for job in (lossy, stalled))
            lost, stalls = network.lost_packets(), proxy.stalls()
            for launcher in lossy.launchers + stalled.launchers:
                launcher.kill()
        self.alarms += len(deaths) + fresh
        self.details["false-alarms"] = {
            "minutes": minutes, "nodes": 2 * nodes, "false_deaths": len(deaths), "lines": deaths,
            "unwanted_starts": fresh, "lost_packets": lost, "stalls": stalls,
            "busy_processes": os.cpu_count()}
        say(f"false alarms: {len(deaths)} in {minutes:g} minutes, {nodes} nodes with {lost} "
            f"packets lost, {nodes} nodes with {stalls} stalls of up to {THIRD_OF_LEASE_MS} ms, "
            f"{os.cpu_count()} busy processes")
        self.add(f"false deaths, {2 * nodes} nodes, {minutes:g} minutes", "", "0", [len(deaths)])

    @staticmethod
    def watch(daemon, seconds):
        """All lines of the daemon about a death until `seconds` have passed."""
        deaths = []
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            try:
                _, match = daemon.lines.await_line(
                    r"(loss|stalls): (node .* (was silent|died|gave up).*|half of the nodes.*)",
                    min(60.0, max(0.0, deadline - time.monotonic())))
                say(f"FALSE ALARM: {match[0]}")
                deaths.append(match[0])
            except RuntimeError:
                if daemon.process.poll() is not None:
                    raise
                say(f"{max(0.0, deadline - time.monotonic()):.0f} s to go")
        return deaths

    def run(self, name):
        if name == "torchrun":
            self.torchrun()
        elif name == "agents-128":
            self.agents(128, 2 * self.runs)
        elif name == "agents-1000":
            self.agents(1000, 2 * self.runs, 5)
        elif name == "agents-4000":
            self.agents(4000, 5, self.arguments.idle_s)
        elif name in NEED_ETCD and not shutil.which("etcd"):
            say(f"LEFT OUT: {name}: there is no etcd; run scripts/setup.sh")
        elif name.startswith("stall-"):
            getattr(stalls.Stalls(self, min(self.runs, STALLS_MAX)), name.removeprefix("stall-"))()
        elif name.startswith("chaos"):
            chaos.watch(self, name in NEED_ETCD)
        else:
            getattr(self, name.replace("-", "_"))()


class Proxy:
    """A context: tests/support/network_proxy_main.cpp in front of the daemon."""

    def __init__(self, build, server):
        self.folder = tempfile.TemporaryDirectory(prefix="ddprun-bench-")
        self.fifo = os.path.join(self.folder.name, "orders")
        os.mkfifo(self.fifo)
        self.log = open(os.path.join(self.folder.name, "log"), "w+b")
        host, port = server.rsplit(":", 1)
        self.process = subprocess.Popen(
            [os.path.join(build, "tests", "ddprun_network_proxy"), "127.0.0.1", host, port,
             self.fifo, str(random.getrandbits(63))], stdout=subprocess.PIPE)
        self.lines = Lines(self.process.stdout, self.log)
        self.endpoint = self.lines.await_line(r"listening on (\S+)")[1][1]

    def __enter__(self):
        return self

    def __exit__(self, *error):
        self.process.kill()
        self.process.wait()
        self.process.stdout.close()
        self.log.close()
        self.folder.cleanup()

    def order(self, text):
        with open(self.fifo, "w", encoding="ascii") as file:
            file.write(text + "\n")
        self.lines.await_line(f"^did {text}$")

    def stalls(self):
        """How many there have been so far."""
        with open(self.fifo, "w", encoding="ascii") as file:
            file.write("stalls\n")
        count = 0
        while True:
            try:
                count = int(self.lines.await_line(r"^stalled (\d+) times", 1.0)[1][1])
            except RuntimeError:
                return count


def merge(bench, path):
    """Takes over what a run inside a network of its own has measured."""
    with open(path, encoding="utf-8") as file:
        result = json.load(file)
    for row in result["rows"]:
        bench.add(row["what"], row["unit"], row["goal"], row["ddprun"]["samples"])
    bench.details.update(result["details"])
    bench.alarms += result["alarms"]


def run_in_network(bench, arguments, name):
    why_not = faulty_network.why_not()
    if why_not:
        say(f"LEFT OUT: {name}: {why_not}")
        return
    with tempfile.NamedTemporaryFile(suffix=".json") as file:
        code = faulty_network.inside(
            [os.path.abspath(__file__), "--inside", "--only", name, "--runs", str(arguments.runs),
             "--build", arguments.build, "--minutes", str(arguments.minutes), "--nodes",
             str(arguments.nodes), "--seed", str(arguments.seed), "--json", file.name])
        if code > 1:
            say(f"FAILED: {name}")
            bench.alarms += 1
        else:
            merge(bench, file.name)


def parse():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=50, help="per measure")
    parser.add_argument("--minutes", type=float,
                        help="of watching for false alarms, and of chaos (default 2)")
    parser.add_argument("--full", action="store_true", help="--minutes 30 unless given")
    parser.add_argument("--nodes", type=int, default=16, help="of each of its two jobs, of chaos")
    parser.add_argument("--seed", type=int, help="of the faults of chaos (default: any)")
    parser.add_argument("--idle-s", type=float, default=20, help="of 4,000 agents")
    parser.add_argument("--torchrun-rejoins", type=int, default=3)
    parser.add_argument("--only", action="append", metavar="MEASURE", choices=MEASURES)
    parser.add_argument("--build", default="build/release", help="where ddprun was built")
    parser.add_argument("--python", default=".venv/bin/python", help="one that has PyTorch")
    parser.add_argument("--json", default="build/bench/control-plane.json")
    parser.add_argument("--inside", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    arguments.build = os.path.abspath(arguments.build)
    if arguments.minutes is None:
        arguments.minutes = 30.0 if arguments.full else 2.0
    if arguments.seed is None:
        arguments.seed = random.getrandbits(32)
    return arguments


def main():
    arguments = parse()
    # For thousands of connections; children inherit it.
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    os.makedirs(os.path.dirname(os.path.abspath(arguments.json)), exist_ok=True)
    bench = Bench(arguments)
    for name in MEASURES:
        if arguments.only and name not in arguments.only:
            continue
        if name in NEED_NETWORK and not arguments.inside:
            run_in_network(bench, arguments, name)
        else:
            bench.run(name)
    bench.table.write_json(arguments.json, {"bench": "control-plane", "runs": arguments.runs,
                                            "details": bench.details, "alarms": bench.alarms})
    if not arguments.inside:
        print(bench.table.text())
        say(f"samples are in {arguments.json}")
        if bench.alarms:
            say(f"WRONG: {bench.alarms} false alarms or failed measures")
    return 1 if bench.alarms else 0


if __name__ == "__main__":
    sys.exit(main())
