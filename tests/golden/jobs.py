"""Real jobs of one node: what they print, report and leave behind, a file for each.

Workers wait for each other and for this script before everything that could happen in one order or
another, so that two runs of a job differ in what is masked only.
"""

import contextlib
import glob
import http.client
import json
import os
import re
import socket
import subprocess
import time

from build import PATIENCE_S, ROOT, block

PACKAGE = os.path.join(ROOT, "worker_runtime", "python")

# Every worker begins with these lines. A worker waits for files in the job's folder.
PRELUDE = """
import json, os, signal, socket, struct, sys, time
import ddprun
rank, generation = int(os.environ["RANK"]), int(os.environ["DDPRUN_GENERATION"])

def wait(name):
    while not os.path.exists(name):
        time.sleep(0.01)

def in_turn(name, act):
    name = f"{name}-{generation}-"
    if rank > 0:
        wait(name + str(rank - 1))
    act()
    open(name + str(rank), "w").close()

in_turn("main", ddprun.worker)
worker = ddprun.worker()
in_turn("group_ready", worker.group_ready)
in_turn("resumed", worker.resumed)
worker.total_steps(4)
in_turn("said", lambda: print(f"rank {rank} of generation {generation} trains", flush=True))
in_turn("step", lambda: worker.progress(1, samples=8, loss=0.5))
"""
ENDS = """
wait(f"end-{rank}")
print(f"rank {rank} ends", flush=True)
"""
# The second time with an error file, as PyTorch's @record writes it, and after a ping to the store.
FAILS = """
store = socket.create_connection((os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])))
store.sendall(struct.pack("=BIBI", 0, 0x3C85F7CE, 13, 7))
store.recv(4)
in_turn("store", lambda: None)
wait(f"go-{generation}")
if rank == 1 and generation == 1:
    print("out of memory", file=sys.stderr, flush=True)
    os._exit(3)
if rank == 1:
    with open(os.environ["TORCHELASTIC_ERROR_FILE"], "w") as file:
        json.dump({"message": {"message": "ValueError: no loss", "extraInfo": {
            "py_callstack": "Traceback: here", "timestamp": "1700000000"}}}, file)
    raise ValueError("no loss")
signal.pause()
"""
HANGS = """
signal.pause()
"""
LEAVES = """
while not worker.stop_requested():
    time.sleep(0.01)
worker.leave()
"""

# Values of JSON that are others in each run, or on a machine that is started anew.
VOLATILE = re.compile(r"(^|_)(ms|ns|bytes|permille|pressure)$|_bytes_|"
                      r"^(time|at|started|ended|pid|seq|next_event|event|boot_id|machine_id)$|"
                      r"^activity$")
# Events that a slow machine has more of.
OF_SPEED = ("waiting", "held_up")
MASKS = [(re.compile(pattern), mask) for pattern, mask in (
    (r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(\.\d+)?Z?", "<time>"),
    (r"\b\d\d:\d\d:\d\d(\.\d+)?\b", "<time>"),
    (r"\b(training|at work) \d+\.\d % of [^;\n]*", "<shares of the time>"),
    (r"\b\d+(\.\d+)? (ms|s|min|h)\b", "<duration>"),
    (r"\b(127\.0\.0\.1|localhost):\d+", r"\1:<port>"),
    (r"\b(pid|process|event|port) \d+", r"\1 <number>"),
    (r"(golden-\w+_)[0-9a-f]{8}\b", r"\1<random>"))]


class RunSocket(http.client.HTTPConnection):
    """HTTP over the socket in a run's folder."""

    def __init__(self, path):
        super().__init__("localhost", timeout=PATIENCE_S)
        self.path = path

    def connect(self):
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(PATIENCE_S)
        self.sock.connect(self.path)


def get(connection, path):
    """Status, type and text of the answer."""
    with contextlib.closing(connection):
        connection.request("GET", path)
        answer = connection.getresponse()
        return answer.status, answer.headers["Content-Type"], answer.read().decode()


def until(what, look):
    """Calls `look` until it returns something, and returns that."""
    deadline = time.monotonic() + PATIENCE_S
    while not (found := look()):
        if time.monotonic() > deadline:
            raise SystemExit(f"golden: still waiting for {what} after {PATIENCE_S} s")
        time.sleep(0.02)
    return found


def read(*names):
    with open(os.path.join(*names), encoding="utf-8") as file:
        return file.read()


def unfold(text):
    """A report's lines, which older builds have cut at 79 columns, whatever is in them."""
    return re.sub(r" *\n(?: {11,}|    : )(?=\S)", " ", text)


def in_order(events):
    """Those that a fast and a slow machine have, in one order: last words are read while the agent
    does other things, and stand behind their failure; workers may be quiet while they start."""
    last = {event["generation"]: event["seq"] for event in events if event["event"] == "quiet"}
    events = [event for event in events if event["event"] not in OF_SPEED and
              (event["event"] != "quiet" or event["seq"] == last[event["generation"]])]
    failures = {(event["generation"], event["rank"]): number
                for number, event in enumerate(events) if event["event"] == "failure"}

    def place(numbered):
        number, event = numbered
        return (failures[event["generation"], event["rank"]] + 0.5
                if event["event"] == "last_words" else number)
    return [event for _, event in sorted(enumerate(events), key=place)]


def keys_of(value, name=""):
    """The names in a JSON object, with those that are around them."""
    if isinstance(value, list):
        return {key for it in value for key in keys_of(it, name + "[]")}
    if isinstance(value, dict):
        return {key for it in value for key in keys_of(value[it], f"{name}.{it}")} or {name}
    return {name}


class Job:
    """One ddprun, which runs `training`, and its folder."""

    def __init__(self, build, name, training, *flags):
        self.build, self.name = build, f"golden-{name}"
        self.folder, self.blocks = build.path(name), []
        os.mkdir(self.folder)
        with open(self.path("train.py"), "w", encoding="utf-8") as file:
            file.write(PRELUDE + training)
        with open(self.path("out"), "wb") as out, open(self.path("err"), "wb") as err:
            self.process = build.start(
                "ddprun", "--rdzv-id", self.name, "--log-dir", "logs", "--warm", "off", *flags,
                "train.py", cwd=self.folder, variables={"PYTHONPATH": PACKAGE},
                stdout=out, stderr=err)

    def __enter__(self):
        return self

    def __exit__(self, failure, *_):
        self.process.terminate()
        self.process.wait()
        if failure is None:
            self.build.write(f"jobs/{self.name.removeprefix('golden-')}.txt",
                             "\n".join(self.blocks))

    def path(self, *names):
        return os.path.join(self.folder, *names)

    def touch(self, name):
        with open(self.path(name), "w", encoding="utf-8"):
            pass

    def until(self, what, look):
        """The same, unless the job ends without it."""
        def look_at_job():
            has_ended = self.process.poll() is not None
            found = look()
            if has_ended and not found:
                raise SystemExit(f"golden: {self.name} has ended without {what}:\n"
                                 + read(self.path("err")))
            return found
        return until(f"{what} of {self.name}", look_at_job)

    def wait_for(self, name):
        """A file that a worker makes."""
        self.until(name, lambda: os.path.exists(self.path(name)))

    def run_folder(self):
        return self.until("a run's folder",
                          lambda: glob.glob(self.path("logs", self.name + "_*")))[0]

    def wait_for_event(self, **wanted):
        def is_there():
            lines = read(self.run_folder(), "events.jsonl").split("\n")[:-1]
            return any(wanted.items() <= event.items() for event in map(json.loads, lines))
        self.until(wanted, is_there)

    # ------------------------------------------------------------------------ what is written

    def mask(self, text):
        text = self.build.mask(text)
        for pattern, mask in MASKS:
            text = pattern.sub(mask, text)
        return text

    def mask_json(self, value, key=""):
        if isinstance(value, dict):
            return {self.mask(name): self.mask_json(it, name) for name, it in value.items()}
        if isinstance(value, list):
            return [self.mask_json(it, key) for it in value]
        is_name = key == "event" and isinstance(value, str)
        if VOLATILE.search(key) and not is_name:
            return f"<{type(value).__name__}>"
        return self.mask(value) if isinstance(value, str) else value

    def json_of(self, text):
        return json.dumps(self.mask_json(json.loads(text)), indent=1) + "\n"

    def events_of(self, text):
        events = in_order([json.loads(line) for line in text.split("\n")[:-1]])
        return "".join(json.dumps(self.mask_json(event)) + "\n" for event in events)

    def add(self, title, text):
        self.blocks.append(f"## {self.mask(title)}\n{text}")

    def add_answer(self, where, connection, path, form):
        status, kind, text = get(connection, path)
        self.add(f"GET {path} of {where}", f"{status} {kind}\n{form(text)}")

    def add_ctl(self, *words):
        """Adds ddpctl's output. A column is as wide as its widest word, which may be a time."""
        done = self.build.run("ddpctl", *words, cwd=self.folder)
        said = "".join(self.json_of(line) if line.startswith("{") else
                       re.sub(r" {2,}", "  ", self.mask(line)) + "\n"
                       for line in done.stdout.splitlines())
        self.add(" ".join(["ddpctl", *words]),
                 f"exit {done.returncode}\n{said}{self.mask(done.stderr)}")

    def add_status(self):
        """Adds the status of the run, while the run is at work."""
        run = self.run_folder()
        self.add_answer("the run", RunSocket(os.path.join(run, "ddprun.sock")), "/status",
                        self.json_of)
        self.add_ctl("status", run)
        others = self.build.run("ddpctl", "jobs", "--json", "--log-dir", self.path("logs")).stdout
        [own] = [line for line in others.splitlines() if json.loads(line)["run"] == run]
        self.add("ddpctl jobs --json", self.json_of(own))

    def add_end(self, *files):
        """Once it is over."""
        code, run = self.process.wait(PATIENCE_S), self.run_folder()
        done = subprocess.CompletedProcess([], code, read(self.path("out")),
                                           unfold(read(self.path("err"))))
        self.blocks.append(self.mask(block("console", done)))
        for name in ("run.json", *files):
            self.add(name, self.json_of(read(run, name)))
        self.add("events.jsonl", self.events_of(read(run, "events.jsonl")))
        left = sorted(os.path.relpath(os.path.join(folder, name), run)
                      for folder, _, names in os.walk(run) for name in names)
        self.add("the run's folder", "".join(name + "\n" for name in left))
        self.add_ctl("runs", "--json", "--log-dir", "logs")
        self.add_ctl("logs", "--log-dir", "logs", "--rank", "0")
        self.build.run("ddpctl", "report", run, "--bundle", "bundle.json", cwd=self.folder)
        keys = keys_of(json.loads(read(self.path("bundle.json"))))
        self.add("names in what ddpctl report --bundle makes", "\n".join(sorted(keys)) + "\n")


class Rendezvous:
    """A daemon that takes orders from each client that has the secret in `operators`."""

    def __init__(self, build, name):
        self.operators = build.path(f"operators-{name}")
        with open(self.operators, "w", encoding="utf-8") as file:
            file.write("0f" * 32 + "\n")
        os.chmod(self.operators, 0o600)
        self.process = build.start("ddprun-rendezvous", "--port", "0", "--operator-secret-file",
                                   self.operators, stdout=subprocess.PIPE,
                                   stderr=subprocess.DEVNULL, text=True)
        self.endpoint = self.process.stdout.readline().split()[-1]

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.terminate()
        self.process.communicate()

    def connection(self):
        return http.client.HTTPConnection(self.endpoint, timeout=PATIENCE_S)

    def wait_for_figures(self, *names):
        """Waits for the figures of nodes, which report them only after a first scrape."""
        def are_there():
            text = get(self.connection(), "/metrics?nodes=1&ranks=1")[2]
            return all(name + "{" in text for name in names)
        until(f"{names} in /metrics", are_there)

    def add_to(self, job):
        """Adds the daemon's current answers about the job."""
        def names(text):
            lines = {line if line.startswith("#") else line.rpartition(" ")[0]
                     for line in text.splitlines()}
            return job.mask("\n".join(sorted(lines)) + "\n")

        for path, form in ((f"/status?job={job.name}", job.json_of),
                           (f"/events?job={job.name}", job.events_of),
                           ("/metrics?nodes=1&ranks=1", names)):
            job.add_answer("the rendezvous", self.connection(), path, form)
        job.add_ctl("status", "--rdzv-endpoint", self.endpoint)
        job.add_ctl("status", "--json", "--rdzv-endpoint", self.endpoint)


def success(build):
    with Job(build, "success", ENDS, "--nproc-per-node", "2") as job:
        job.wait_for("step-1-1")
        job.add_status()
        for rank in (0, 1):
            job.touch(f"end-{rank}")
            job.wait_for_event(event="finished", rank=rank)
        job.add_end("report.json")


def failure(build):
    """A restart, then the end."""
    with Rendezvous(build, "failure") as rendezvous, Job(
            build, "failure", FAILS, "--nproc-per-node", "2", "--max-restarts", "1",
            "--rdzv-endpoint", rendezvous.endpoint, "--node-id", "node-a") as job:
        for generation in (1, 2):
            job.wait_for(f"store-{generation}-1")
            job.add_status()
            rendezvous.wait_for_figures("ddprun_rank_step", "ddprun_store_operations_total")
            rendezvous.add_to(job)
            job.touch(f"go-{generation}")
        job.add_end("report.json")
        rendezvous.add_to(job)


def hang(build):
    with Job(build, "hang", HANGS, "--nproc-per-node", "2", "--hang-timeout", "2") as job:
        job.wait_for("step-1-1")
        job.add_status()
        job.add_end("report.json")


def drain(build):
    """Drains the only node, which is the end of the job."""
    with Rendezvous(build, "drain") as rendezvous, Job(
            build, "drain", LEAVES, "--rdzv-endpoint", rendezvous.endpoint, "--node-id", "node-a",
            "--log-format", "json") as job:
        job.wait_for("step-1-0")
        job.add_status()
        rendezvous.wait_for_figures("ddprun_rank_step")
        rendezvous.add_to(job)
        job.add_ctl("drain", "node-a", "--rdzv-endpoint", rendezvous.endpoint, "--rdzv-id",
                    job.name, "--operator-secret-file", rendezvous.operators)
        job.add_end()
        rendezvous.add_to(job)


def take(build):
    for run in (success, failure, hang, drain):
        run(build)
