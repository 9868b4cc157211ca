"""Chaos: many real nodes, each in a network of its own, one real daemon at the switch (or several
with real etcds), and a fault every few seconds, drawn by a seed. The run does not measure speed; it
checks that nothing was wrong:

* on a node a worker never starts while another one of that node is alive (the kernel's lock shows
  it), nor one of an earlier generation than ran on the node before;
* no two workers of a generation have the same rank, and all agree on the world size;
* no ddprun and no daemon ends that was not killed;
* once all faults are healed, all nodes that are not in quarantine run in one generation, its
  workers end well, and every ddprun exits 0.

Workers append their reports to a file (chaos_worker.cpp).
"""

import collections
import contextlib
import heapq
import json
import os
import random
import secrets
import signal
import subprocess
import tempfile
import time

import faulty_network
import stalls
from job import say

LEAST_NODES = 0.75  # of all: the minimum of the job
PAUSE_S = (2.0, 10.0)  # between two faults
OUTAGE_S = (0.1, 4.0)  # of links, processes that stand still, lossy networks
ABSENCE_S = (0.0, 2.0)  # of processes that were killed
LOST_OF = 10  # one packet in so many, while the network is lossy
HEALING_S = 180.0  # back-off between starts is a minute at most
SETTLED_S = 3.0  # one and the same generation for so long
FAULTS = {"agent killed": 4, "agent paused": 3, "link cut": 4, "links cut": 1, "worker killed": 2,
          "packets lost": 1, "daemon killed": 3, "daemon paused": 3, "etcd killed": 4}


class Watch:
    """A context: nodes, daemons, and who of them is in trouble at the moment. Without `etcds` there
    is one daemon with a journal of its own."""

    def __init__(self, build, count, seed, network, etcds=None):
        self.build = build
        self.count = count
        self.random = random.Random(seed)
        self.network = network
        self.etcds = etcds
        self.places = [f"{faulty_network.SWITCH}:{29400 + index}"
                       for index in range(stalls.DAEMONS if etcds else 1)]
        self.folder = tempfile.TemporaryDirectory(prefix="ddprun-chaos-")
        self.secret_file = self.path("secret")
        with open(os.open(self.secret_file, os.O_WRONLY | os.O_CREAT, 0o600), "w",
                  encoding="ascii") as file:
            file.write(secrets.token_hex(32) + "\n")
        self.nodes = [None] * count
        self.daemons = [None] * len(self.places)
        self.undone = []  # heap of (when, number, what ends a fault)
        self.number = 0
        self.troubled = set()
        self.faults = collections.Counter()
        self.wrong = []
        for daemon in range(len(self.daemons)):
            self.start_daemon(daemon)
        for node in range(count):
            self.start_node(node)

    def __enter__(self):
        return self

    def __exit__(self, *error):
        for process in [*self.nodes, *self.daemons]:
            process.send_signal(signal.SIGCONT)
            process.kill()
            process.wait()
        if self.wrong or any(error):
            kept = self.path("")[:-1] + "-kept"
            os.rename(self.folder.name, kept)
            os.mkdir(self.folder.name)
            say(f"what they said is in {kept}")
        self.folder.cleanup()

    def path(self, name):
        return os.path.join(self.folder.name, name)

    def note_wrong(self, text):
        say(f"WRONG: {text}")
        self.wrong.append(text)

    # ------------------------------------------------------------------------------- processes

    def start(self, command, log):
        environment = {name: value for name, value in os.environ.items()
                       if not name.startswith(("PET_", "TORCHELASTIC_", "DDPRUN_"))}
        environment["DDPRUN_SECRET_FILE"] = self.secret_file
        with open(self.path(log), "ab") as file:
            return subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=file, stderr=file,
                                    env=environment)

    def start_daemon(self, daemon):
        journal = (["--ha", f"etcd://{self.etcds.hosts()}"] if self.etcds else
                   ["--state-dir", self.path("state")])
        self.daemons[daemon] = self.start(
            [os.path.join(self.build, "bin", "ddprun-rendezvous"), "--listen",
             self.places[daemon], "--secret-file", self.secret_file, *journal],
            f"daemon{daemon}.log")

    def start_node(self, node):
        least = max(1, int(LEAST_NODES * self.count))
        self.nodes[node] = self.start(
            [*self.network.enter(node), os.path.join(self.build, "bin", "ddprun"),
             "--nnodes", f"{least}:{self.count}", "--nproc-per-node", "1",
             "--rdzv-id", "chaos", "--rdzv-endpoint", ",".join(self.places),
             "--node-id", f"node{node}",
             "--max-restarts", "1000000", "--log-dir", self.path("logs"),
             "--failure-grace", "1", "--shutdown-timeout", "5",
             "--rdzv-conf", "last_call_timeout=3,grow_delay=5,join_timeout=3600",
             "--no-python", os.path.join(self.build, "tests", "chaos_worker"), self.folder.name,
             f"node{node}"], f"node{node}.log")

    def check_living(self):
        for name, process in [*((f"daemon {daemon}", process)
                                for daemon, process in enumerate(self.daemons)),
                              *((f"node {node}", process)
                                for node, process in enumerate(self.nodes))]:
            if process.poll() is not None and name not in self.troubled:
                self.troubled.add(name)
                self.note_wrong(f"{name} ended by itself with {process.returncode}")

    # ---------------------------------------------------------------------------------- faults

    def fault(self):
        """Draws one and begins it, unless one of those it hits is in trouble already."""
        kinds = [kind for kind in FAULTS if self.etcds or not kind.startswith("etcd")]
        kind = self.random.choices(kinds, [FAULTS[one] for one in kinds])[0]
        which = self.random.randrange(self.count)
        if kind == "links cut":
            hit = self.random.sample(range(self.count), self.count // 2)
            names = {f"node {node}" for node in hit}
        elif kind.startswith("daemon"):
            which %= len(self.daemons)
            names = {f"daemon {which}"}
        elif kind == "etcd killed":  # one of them at a time
            which %= len(self.etcds.processes)
            names = {"etcd"}
        else:
            hit = [which]
            names = {"the network"} if kind == "packets lost" else {f"node {which}"}
        if names & self.troubled:
            return
        self.faults[kind] += 1
        say(f"{kind}: {', '.join(sorted(names))}")
        outage, absence = self.random.uniform(*OUTAGE_S), self.random.uniform(*ABSENCE_S)
        if kind == "worker killed":
            self.kill_worker(which)
        elif kind == "agent killed":
            kill(self.nodes[which])
            self.undo_after(absence, names, lambda: self.start_node(which))
        elif kind == "daemon killed":
            kill(self.daemons[which])
            self.undo_after(absence, names, lambda: self.start_daemon(which))
        elif kind == "etcd killed":
            self.etcds.kill(which)
            self.undo_after(outage, names, lambda: self.etcds.restart(which))
        elif kind.endswith("paused"):
            process = (self.nodes if kind.startswith("agent") else self.daemons)[which]
            process.send_signal(signal.SIGSTOP)
            self.undo_after(outage, names, lambda: process.send_signal(signal.SIGCONT))
        elif kind == "packets lost":
            self.network.lose_one_in(LOST_OF)
            self.undo_after(outage, names, self.network.lose_none)
        else:
            for node in hit:
                self.network.cut(node)
            self.undo_after(outage, names,
                            lambda: [self.network.heal(node) for node in hit])

    def undo_after(self, seconds, names, undo):
        self.troubled |= names
        self.number += 1
        heapq.heappush(self.undone, (time.monotonic() + seconds, self.number, names, undo))

    def kill_worker(self, node):
        """Kills the worker that wrote the last line of `node`, if it is still alive."""
        pids = [line.pid for line in self.history() if line.node == f"node{node}"]
        command = f"/proc/{pids[-1]}/cmdline" if pids else ""
        if os.path.exists(command):
            with open(command, "rb") as file:
                if self.folder.name.encode() in file.read():
                    os.kill(pids[-1], signal.SIGKILL)

    def undo(self, until):
        while self.undone and self.undone[0][0] <= until:
            _, _, names, undo = heapq.heappop(self.undone)
            undo()
            self.troubled -= names

    def run(self, seconds):
        ends = time.monotonic() + seconds
        next_fault = time.monotonic() + self.random.uniform(*PAUSE_S)
        while time.monotonic() < ends and not self.wrong:
            now = time.monotonic()
            self.undo(now)
            if now >= next_fault:
                self.fault()
                next_fault = now + self.random.uniform(*PAUSE_S)
            self.check_living()
            time.sleep(0.02)
        self.undo(float("inf"))

    # --------------------------------------------------------------------------------- checking

    Line = collections.namedtuple("Line", "at_ns node generation rank world pid what")

    def history(self):
        if not os.path.exists(self.path("history")):
            return []
        with open(self.path("history"), encoding="ascii") as file:
            words = [line.split() for line in file]
        return [self.Line(int(at), node, int(generation), int(rank), int(world), int(pid), what)
                for at, node, generation, rank, world, pid, what in words]

    def check(self, lines):
        ranks, worlds, newest = {}, {}, {}
        for line in lines:
            where = f"{line.node}, generation {line.generation}, rank {line.rank}, pid {line.pid}"
            if line.what == "overlap":
                self.note_wrong(f"{where}: another worker of this node was alive when it started")
            if line.what not in ("start", "overlap"):
                continue
            other = ranks.setdefault((line.generation, line.rank), line)
            if other is not line:
                self.note_wrong(f"{where}: so is {other.node}, pid {other.pid}")
            if worlds.setdefault(line.generation, line.world) != line.world or \
                    line.rank >= line.world:
                self.note_wrong(f"{where}: of {line.world}; others of {worlds[line.generation]}")
            if line.generation <= newest.get(line.node, 0):
                self.note_wrong(f"{where}: after generation {newest[line.node]}")
            newest[line.node] = line.generation

    def status(self):
        done = subprocess.run(
            [os.path.join(self.build, "bin", "ddpctl"), "status", "--json", "--rdzv-endpoint",
             ",".join(self.places), "--secret-file", self.secret_file, "--rdzv-id", "chaos"],
            stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, check=False)
        return json.loads(done.stdout)["jobs"][0] if done.returncode == 0 else None

    def settled_generation(self):
        """Returns the generation in which all nodes run that may, or None while some do not."""
        job = self.status()
        if job is None or job["phase"] != "running":
            return None
        members = [node for node in job["nodes"] if node["standing"] == "member"]
        others = [node for node in job["nodes"] if node["standing"] != "member"]
        if len(job["nodes"]) != self.count or \
                not all(node["is_connected"] for node in members) or \
                not all(node["quarantined_ms"] > 0 for node in others):
            return None
        return job["generation"]

    def heal(self):
        """Seconds from the end of all faults until all nodes ran; then all end well."""
        begun = time.monotonic()
        generation, since = None, begun
        while not self.wrong and (generation is None or time.monotonic() - since < SETTLED_S):
            now, found = time.monotonic(), self.settled_generation()
            if found != generation:
                generation, since = found, now
            if now - begun > HEALING_S:
                self.note_wrong(f"{HEALING_S:.0f} s after all faults: {json.dumps(self.status())}")
            self.check_living()
            time.sleep(0.1)
        if self.wrong:
            return None
        healed = since - begun
        say(f"all run in generation {generation}, {healed:.1f} s after the last fault was healed")
        with open(self.path("end"), "wb"):
            pass
        for node, process in enumerate(self.nodes):
            try:
                code = process.wait(30)
            except subprocess.TimeoutExpired:
                code = "nothing, it still runs"
            if code != 0:
                self.note_wrong(f"node {node} ended with {code}")
        ends = [line for line in self.history()
                if line.what == "end" and line.generation == generation]
        if not ends or len(ends) != ends[0].world:
            self.note_wrong(f"{len(ends)} workers of generation {generation} ended well")
        return healed


def kill(process):
    process.kill()
    process.wait()


def watch(bench, has_etcds):
    """Runs it, and adds to the alarms of `bench` what was wrong."""
    minutes, nodes, seed = (getattr(bench.arguments, name) for name in ("minutes", "nodes", "seed"))
    name = "chaos-daemons" if has_etcds else "chaos"
    say(f"{name} with seed {seed}: {nodes} nodes, {minutes:g} minutes")
    with contextlib.ExitStack() as stack:
        network = stack.enter_context(faulty_network.Network(nodes))
        etcds = stack.enter_context(stalls.Etcds(stalls.ETCDS)) if has_etcds else None
        everything = stack.enter_context(Watch(bench.build, nodes, seed, network, etcds))
        everything.run(60 * minutes)
        healed = everything.heal()
        lines = everything.history()
        everything.check(lines)
        wrong = len(everything.wrong)
        generations = len({line.generation for line in lines})
        starts = sum(line.what == "start" for line in lines)
        bench.details[name] = {
            "seed": seed, "minutes": minutes, "nodes": nodes, "faults": everything.faults,
            "generations": generations, "workers_started": starts, "healed_s": healed,
            "wrong": everything.wrong}
    say(f"{name}: {sum(everything.faults.values())} faults, {generations} generations, {starts} "
        f"workers started, {wrong} things wrong")
    bench.alarms += wrong
    bench.add(f"wrong in {minutes:g} minutes of {name}, {nodes} nodes", "", "0", [wrong])
    if healed is not None:
        bench.add(f"all faults healed to all nodes running ({name})", "s", "", [healed])
