"""Real jobs for scripts/pictures.py: restarts whose moments are recorded, and one for the page."""

import datetime
import glob
import http.client
import json
import os
import re
import shutil
import signal
import socket
import sys
import time

from made_files import ROOT

sys.path.insert(0, os.path.join(ROOT, "tests", "bench"))
import job as bench  # noqa: E402

PATIENCE_S = 120
RUNS = 9
STEPS_LOST = 10
PAGE_BYTES_MAX = 150 << 10
EPOCHS_BEFORE, EPOCHS_AFTER = 12, 12  # of half a second each, that the page shows
MOMENTS = ("failure", "stop", "stopped", "empty", "ready", "formed", "spawned", "main",
           "group_ready", "resumed", "first_step")
FIRST_STEP = r"^first step: loss "
EPOCH = r"^epoch \d+/"
TRAINING = ["train_digits", "--epochs", "100000"]


class UnixConnection(http.client.HTTPConnection):
    """HTTP to the socket of a run."""

    def __init__(self, path):
        super().__init__("localhost", timeout=PATIENCE_S)
        self.path = path

    def connect(self):
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.connect(self.path)


class Node:
    """One node of a job at work, asked on its run's socket."""

    def __init__(self, folder):
        self.folder = folder
        self.connection = UnixConnection(os.path.join(folder, "ddprun.sock"))

    def status(self):
        self.connection.request("GET", "/status")
        return json.loads(self.connection.getresponse().read())

    def step(self):
        """The last step that a worker here has reported; 0: none."""
        return max((worker.get("step", 0) for worker in self.status()["workers"]), default=0)

    def events(self):
        with open(os.path.join(self.folder, "events.jsonl"), encoding="utf-8") as file:
            return [json.loads(line) for line in file]

    def await_step(self, step, generation):
        """When the workers of `generation` have done `step`, on CLOCK_MONOTONIC."""
        deadline = time.monotonic() + PATIENCE_S
        while time.monotonic() < deadline:
            status = self.status()
            at = time.monotonic_ns()
            if status["generation"] == generation and step <= max(
                    (worker.get("step", 0) for worker in status["workers"]), default=0):
                return at
            time.sleep(0.001)  # Each answer makes the node read its workers' pages.
        raise RuntimeError(f"no worker has done step {step}")


def recorded_restart(programs, flags):
    """One worker of two nodes is killed. Returns the events of its node from then on, each with the
    microseconds since the kill. The last one, `again`, is no event: the job had done the last step
    of the killed worker again."""
    peer = bench.Peer("ddprun", [os.path.join(programs, "ddprun"), *flags])
    with bench.Job(peer, None) as job:
        program = [os.path.join(programs, TRAINING[0]), *TRAINING[1:], "--checkpoint-dir",
                   os.path.join(job.folder, "checkpoints")]
        launchers = [job.launch(peer.command, program, 1, nnodes="2", restarts=3,
                                hears_lines=True, folder=job.folder)[0] for _ in range(2)]
        job.lines.await_line(FIRST_STEP, PATIENCE_S)
        if "off" not in flags:
            for launcher in launchers:
                bench.await_standbys(job, launcher, 1)
        nodes = [Node(folder) for folder in glob.glob(os.path.join(job.folder, "logs", "*_*"))]
        node = next(node for node in nodes if node.status()["workers"][0]["rank"] == 1)
        job.lines.drop()
        job.lines.await_line(EPOCH, PATIENCE_S)
        victim = node.status()["workers"][0]["pid"]
        node.await_step(node.step() + STEPS_LOST, 1)
        killed_ns = time.monotonic_ns()
        os.kill(victim, signal.SIGKILL)
        job.lines.await_line(FIRST_STEP, PATIENCE_S)
        lost = next(event["step"] for event in node.events() if event["event"] == "failure")
        again_ns = node.await_step(lost, 2)
        events = [event for event in node.events() if event["mono_ns"] >= killed_ns]
    kept = [{"us": (event["mono_ns"] - killed_ns) // 1000}
            | {name: event[name] for name in ("event", "generation", "step") if name in event}
            for event in events if event["event"] in MOMENTS]
    return {"events": kept + [{"us": (again_ns - killed_ns) // 1000, "event": "again",
                               "generation": 2, "step": lost}]}


def moment(restart, event):
    """The microseconds from the kill to an event of a recorded restart."""
    return next(one["us"] for one in restart["events"] if one["event"] == event)


def recorded(programs):
    """Restarts with standbys and without, alternating: of each kind the one whose time to the first
    step is the median, and that time of all."""
    kinds = {"warm": [], "cold": ["--warm", "off"]}
    restarts = {kind: [] for kind in kinds}
    for run in range(RUNS):
        for kind, flags in kinds.items():
            print(f"pictures: restart {run + 1} of {RUNS}: {kind}", file=sys.stderr)
            restarts[kind].append(recorded_restart(programs, flags))
    record = {"date": datetime.date.today().isoformat(), "cores": os.cpu_count(), "restarts": {}}
    for kind, each in restarts.items():
        each.sort(key=lambda restart: moment(restart, "first_step"))
        record["restarts"][kind] = {
            "first_step_us": [moment(restart, "first_step") for restart in each], **each[RUNS // 2]}
    return record


def text_of(record):
    """The record as JSON, an event a line."""
    text = json.dumps(record, indent=1)
    return re.sub(r"([\[{])\s+([^][{}]*?)\s+([]}])", lambda found: found[1] + re.sub(
        r"\n\s+", " ", found[2]) + found[3], text) + "\n"




def with_name(name, command):
    """`command` on a machine of that name, as far as it can tell."""
    own = [] if os.getuid() == 0 else ["--map-root-user"]
    return ["unshare", *own, "--uts", "sh", "-c", 'hostname "$0" && exec "$@"', name, *command]


def browser_picture(programs, path):
    """The page of a job of two nodes and four workers, one restart behind it: its upper part."""
    from playwright.sync_api import expect, sync_playwright

    expect.set_options(timeout=1000 * PATIENCE_S)
    ddprun = os.path.join(programs, "ddprun")
    with bench.Job(bench.Peer("ddprun", [ddprun]), None) as job, sync_playwright() as playwright:
        job.id = "digits"
        program = [os.path.join(programs, TRAINING[0]), *TRAINING[1:], "--min-epoch-seconds",
                   "0.5", "--checkpoint-dir", os.path.join(job.folder, "checkpoints")]
        for name in ("node-1", "node-2"):
            # The variable tells nodes of one machine apart, as Slurm does it.
            job.launch(with_name(name, [ddprun]), program, 2, nnodes="2", restarts=3,
                       hears_lines=True, variables={"SLURMD_NODENAME": name}, folder=job.folder)
        job.lines.await_line(FIRST_STEP, PATIENCE_S)
        browser = playwright.chromium.launch(
            executable_path=shutil.which("chromium"), timeout=1000 * PATIENCE_S,
            args=["--disable-gpu", "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1"])
        page = browser.new_page(viewport={"width": 1100, "height": 900}, color_scheme="light",
                                reduced_motion="reduce", device_scale_factor=1.5)
        page.set_default_timeout(1000 * PATIENCE_S)
        page.goto(f"http://{job.endpoint}/")
        expect(page.locator("#legend")).to_contain_text("training 4")
        nodes = [Node(folder) for folder in glob.glob(os.path.join(job.folder, "logs", "*_*"))]
        pids = {worker["rank"]: worker["pid"] for node in nodes
                for worker in node.status()["workers"]}
        for launcher in job.launchers:
            bench.await_standbys(job, launcher, 2)
        for _ in range(EPOCHS_BEFORE):
            job.lines.await_line(EPOCH, PATIENCE_S)
        os.kill(pids[3], signal.SIGKILL)
        job.lines.await_line(FIRST_STEP, PATIENCE_S)
        for _ in range(EPOCHS_AFTER):
            job.lines.await_line(EPOCH, PATIENCE_S)
        expect(page.locator("#legend")).to_contain_text("training 4")
        expect(page.locator("#time")).to_contain_text("Generation 1 to generation 2")
        below = page.locator("section:has(#events)").bounding_box()
        page.screenshot(path=path, clip={"x": 0, "y": 0, "width": 1100, "height": below["y"]})
        browser.close()
    if os.path.getsize(path) > PAGE_BYTES_MAX:
        raise RuntimeError(f"{path} is larger than {PAGE_BYTES_MAX} bytes")
