"""Saves of trainings in Python and C++, as their events, ddpctl, /status and /metrics show them.

usage: saves.py BIN_DIR SAVE_PEER [unittest's words]

SAVE_PEER: tests/process/save_peer.cpp; empty if there is no LibTorch.
"""

import json
import os
import re
import subprocess
import sys
import tempfile
import unittest
import urllib.request

PATIENCE_S = 120  # on a machine that has no time for it
BIN = PEER = ""
# ddpctl finds a running job by its name on the whole machine, and other tests run beside this one.
JOB = f"saves-{os.getpid()}"
PACKAGE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../worker_runtime/python")

# Saves step 10 and 20, the second beside the training; then asks for one that cannot be written.
# It goes on when it is told so by a line.
WORKER = """import os, sys
import torch
import ddprun
saves = ddprun.Checkpoints(sys.argv[1])
model = torch.nn.Linear(256, 256)
assert saves.save(10, model=model)
saves.save_async(20, model=model).wait()
print("saved", flush=True)
open(sys.argv[2]).read()
os.rename(sys.argv[1], sys.argv[1] + ".gone")
open(sys.argv[1], "w").close()
assert not saves.save(30, model=model)
print("failed", flush=True)
open(sys.argv[2]).read()
"""
# Each step goes into memory, and every second one to the disk.
KEPT = """import sys
import torch
import torch.distributed as dist
import ddprun
saves = ddprun.Checkpoints(sys.argv[1], disk_every=2)
dist.init_process_group("gloo")
model = torch.nn.Linear(256, 256)
for step in (1, 2):
    saves.save_async(step, model=model).wait()
    saves._wait_for_last()
    if ddprun.worker().rank == 0:
        print("saved", step, flush=True)
        open(sys.argv[2]).read()
    dist.barrier()
dist.destroy_process_group()
"""
# Saves faster than the disk, which is held up until the test lets it go on.
BUSY = """import sys, threading
import torch
import ddprun
from ddprun._library import Library
written, may_write = Library.publish, threading.Semaphore(0)
def publish(*arguments):
    may_write.acquire()
    written(*arguments)
Library.publish = publish
saves = ddprun.Checkpoints(sys.argv[1])
model = torch.nn.Linear(8, 8)
saves.save_async(1, model=model)
for step in range(2, 5):
    saves.save_async(step, model=model, while_saving="refuse")
print("behind", flush=True)
open(sys.argv[2]).read()
may_write.release(9)
for step in range(5, 9):
    saves.save_async(step, model=model)
    saves._wait_for_last()
print("again", flush=True)
open(sys.argv[2]).read()
"""


class Saves(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="ddprun-saves-")
        self.addCleanup(folder.cleanup)
        self.folder = folder.name
        kept = {key: value for key, value in os.environ.items()
                if not re.match("SLURM|PET_|DDPRUN_|TORCH|KUBERNETES_", key)}
        self.environment = {
            **kept, "HOME": self.folder, "PYTHONPATH": PACKAGE,
            "DDPRUN_CHECKPOINT_LIBRARY": os.path.join(BIN, "ddprun-checkpoint.so")}
        self.pipe = os.path.join(self.folder, "pipe")
        os.mkfifo(self.pipe)
        self.said = ""

    def start(self, program, *arguments):
        process = subprocess.Popen(
            [os.path.join(BIN, program), *arguments], text=True, cwd=self.folder,
            env=self.environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT)
        self.addCleanup(process.stdout.close)
        self.addCleanup(process.wait, PATIENCE_S)
        self.addCleanup(process.kill)
        return process

    def job(self, worker, *flags):
        path = os.path.join(self.folder, "worker.py")
        with open(path, "w", encoding="utf-8") as file:
            file.write(worker)
        return self.start("ddprun", *flags, "--log-dir", self.folder + "/logs", "--rdzv-id",
                          JOB, sys.executable, path, self.folder + "/checkpoints", self.pipe)

    def wait_for(self, job, text):
        while text not in self.said:
            line = job.stdout.readline()
            self.assertTrue(line, self.said)
            self.said += line

    def go_on(self):
        with open(self.pipe, "w", encoding="utf-8"):
            pass

    def events(self, kind, run=JOB):
        """Those of `kind` so far."""
        done = subprocess.run(
            [os.path.join(BIN, "ddpctl"), "events", run, "--json", "--log-dir",
             self.folder + "/logs"], text=True, capture_output=True, env=self.environment,
            timeout=PATIENCE_S, check=True)
        return [event for event in map(json.loads, done.stdout.splitlines())
                if event["event"] == kind]

    def wait_for_event(self, kind, is_it):
        """Follows the events of the run until there is this one."""
        follower = self.start("ddpctl", "events", JOB, "--json", "--follow", "--log-dir",
                              self.folder + "/logs")
        for line in follower.stdout:
            self.assertTrue(line.startswith("{"), line)
            event = json.loads(line)
            if event["event"] == kind and is_it(event):
                return event
        self.fail(f"no such {kind}: {self.said}")

    def status(self, *flags):
        done = subprocess.run(
            [os.path.join(BIN, "ddpctl"), "status", JOB, "--log-dir", self.folder + "/logs",
             *flags], text=True, capture_output=True, env=self.environment, timeout=PATIENCE_S,
            check=True)
        return done.stdout

    def test_a_save_is_an_event_at_once_and_in_the_status(self):
        job = self.job(WORKER)
        self.wait_for(job, "saved")
        event = self.wait_for_event("checkpoint_saved", lambda event: event["step"] == 20)
        weights = 4 * (256 * 256 + 256)
        self.assertGreaterEqual(event["bytes"], weights)
        self.assertEqual(event["where"], "disk")
        self.assertEqual(event["rank"], 0)
        self.assertEqual(sum(one["saves"] for one in self.events("checkpoint_saved")), 2)
        told = json.loads(self.status("--json"))["checkpoint"]
        expected = {"step": 20, "bytes": event["bytes"], "where": "disk", "saves": 2, "failures": 0}
        self.assertEqual({key: told[key] for key in expected}, expected)
        self.assertRegex(self.status(), r"\n  last checkpoint: step 20, 2\d\d KiB in \d.*, "
                                        r"stalled \d.*, on disk, \d.* ago\n")
        self.go_on()
        self.wait_for(job, "failed")
        event = self.wait_for_event("checkpoint_failed", lambda event: True)
        self.assertEqual(event["step"], 30)
        self.assertRegex(event["reason"],
                         "^checkpoint of step 30 is not saved to .*/checkpoints: rank 0: .+")
        self.assertIn("; 1 save failed\n", self.status())
        self.go_on()
        self.assertEqual(job.wait(PATIENCE_S), 0)

    def check_places(self, jobs, *places):
        for step, where in enumerate(places, 1):
            self.wait_for(jobs[0], f"saved {step}")
            event = self.wait_for_event("checkpoint_saved", lambda event: event["step"] == step)
            self.assertEqual(event["where"], where, self.said)
            self.go_on()
        for job in jobs:
            self.said += job.stdout.read()
            self.assertEqual(job.wait(PATIENCE_S), 0, self.said)

    def test_a_save_in_memory_says_that_it_is_there(self):
        job = self.job(KEPT, "--memory-checkpoints", "64M")
        self.check_places([job], "memory", "disk,memory")

    def test_a_save_with_a_copy_on_another_node_says_so(self):
        daemon = self.start("ddprun-rendezvous", "--port", "0")
        port = int(daemon.stdout.readline().rsplit(":", 1)[1])
        jobs = [self.job(KEPT, "--nnodes", "2", "--rdzv-endpoint", f"127.0.0.1:{port}",
                         "--node-rank", str(node), "--memory-checkpoints", "64M",
                         "--memory-replicas", "1") for node in range(2)]
        self.check_places(jobs, "memory,partner", "disk,memory,partner")

    def test_ranks_in_cpp_report_the_saves_of_all(self):
        if not PEER:
            self.skipTest("there is no LibTorch")
        folder = os.path.join(self.folder, "checkpoints")
        for last, *scenario in ((1, "spread", folder), (6, "background", folder + "2", "engine")):
            job = self.start("ddprun", "--nproc-per-node", "2", "--log-dir", self.folder + "/logs",
                             "--rdzv-id", scenario[0], PEER, *scenario)
            said = job.stdout.read()
            self.assertEqual(job.wait(PATIENCE_S), 0, said)
            saved = self.events("checkpoint_saved", scenario[0])
            self.assertEqual(saved[-1]["step"], last)
            self.assertGreater(saved[-1]["bytes"], 96 << 20)  # of both ranks
            self.assertEqual({event["rank"] for event in saved}, {0})
            self.assertEqual(self.events("checkpoint_failed", scenario[0]), [])

    def test_a_save_that_one_rank_in_cpp_cannot_write_says_why(self):
        if not PEER:
            self.skipTest("there is no LibTorch")
        job = self.start("ddprun", "--nproc-per-node", "2", "--log-dir", self.folder + "/logs",
                         "--rdzv-id", JOB, PEER, "one_cannot_write", self.folder + "/checkpoints")
        said = job.stdout.read()
        self.assertEqual(job.wait(PATIENCE_S), 0, said)
        failed = self.events("checkpoint_failed")
        self.assertEqual(failed[-1]["step"], 2)
        self.assertRegex(failed[-1]["reason"], r"rank 1: .*\.safetensors cannot .*File too large")

    def test_in_cpp_the_last_save_of_a_step_is_resumed_wherever_it_is(self):
        if not PEER:
            self.skipTest("there is no LibTorch")
        for ways in ("md", "dm", "mdm"):
            with self.subTest(ways):
                job = self.start("ddprun", "--nproc-per-node", "2", "--memory-checkpoints", "64M",
                                 "--rdzv-id", f"{JOB}-{ways}", PEER, "saved_twice",
                                 os.path.join(self.folder, ways), ways)
                said = job.stdout.read()
                self.assertEqual(job.wait(PATIENCE_S), 0, said)

    def test_a_disk_that_falls_behind_is_said_and_that_it_keeps_up_again(self):
        job = self.job(BUSY)
        self.wait_for(job, "ddprun: warning: checkpoints fall behind: 3 saves in a row")
        self.wait_for_event("checkpoint_behind", lambda event: event["text"])
        self.assertIn("checkpoints fall behind", self.status())
        self.go_on()
        self.wait_for(job, "ddprun: checkpoints keep up again")
        self.wait_for_event("checkpoint_behind", lambda event: not event["text"])
        self.go_on()
        self.assertEqual(job.wait(PATIENCE_S), 0)

    def test_a_rendezvous_shows_the_saves_of_a_job(self):
        daemon = self.start("ddprun-rendezvous", "--port", "0")
        port = int(daemon.stdout.readline().rsplit(":", 1)[1])
        job = self.job(WORKER, "--nnodes", "1:2", "--rdzv-endpoint", f"127.0.0.1:{port}",
                       "--rdzv-conf", "last_call_timeout=0")
        self.wait_for(job, "saved")
        self.wait_for_event("checkpoint_saved", lambda event: event["step"] == 20)
        address = f"http://127.0.0.1:{port}"
        with urllib.request.urlopen(address + "/events?follow=1", timeout=PATIENCE_S) as events:
            saves = 0
            while saves < 2:  # The first one may stand for both.
                event = json.loads(events.readline())
                saves += event["saves"] if event["event"] == "checkpoint_saved" else 0
        self.assertEqual(event["step"], 20)
        with urllib.request.urlopen(address + "/status", timeout=PATIENCE_S) as answer:
            told = json.load(answer)["jobs"][0]
        self.assertEqual(told["checkpoint"]["step"], 20)
        self.assertEqual(told["checkpoint"]["bytes"], event["bytes"])
        with urllib.request.urlopen(address + "/metrics", timeout=PATIENCE_S) as answer:
            text = answer.read().decode()
        for figure, value in (("checkpoints_total", "2"), ("checkpoint_failures_total", "0"),
                              ("checkpoint_step", "20"), ("checkpoint_behind", "0")):
            self.assertIn(f'ddprun_job_{figure}{{job_id="{JOB}"}} {value}\n', text)
        self.assertRegex(text, r'ddprun_job_checkpoint_timestamp_seconds\{.*\} \d+')
        self.go_on()
        self.wait_for(job, "failed")
        self.go_on()
        self.assertEqual(job.wait(PATIENCE_S), 0)


if __name__ == "__main__":
    BIN, PEER = os.path.abspath(sys.argv.pop(1)), sys.argv.pop(1)
    unittest.main()
