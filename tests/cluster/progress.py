"""How far ranks are, as a rendezvous reports it over HTTP, and which one all others wait for.

Workers of two nodes step in time, as ranks that train together do: each works for a while of its
own, then waits until the slowest is done, and reports through its page how long that was. One of
them, chosen at random, has more to do of its own.

usage: progress.py BIN_DIR RANKS_PER_NODE TIMES [unittest's words]
"""

import glob
import http.client
import importlib.util
import json
import os
import random
import re
import statistics
import subprocess
import sys
import tempfile
import unittest

from server_sent import events_of

PATIENCE_S = 300  # on a machine that has no time for it
PACKAGE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../worker_runtime/python")
BIN = ""
RANKS_PER_NODE = 2
TIMES = 1
DIGITS_OF_A_PORT = re.compile(r"listening on 127\.0\.0\.1:(\d+)")

# Told its folder and the slow rank. All step by one clock, which no rank's being late can shift.
TRAINING = """
import os, sys, time
import ddprun
worker = ddprun.worker()
worker.group_ready()
worker.resumed()
folder, slow = sys.argv[1], int(sys.argv[2])
own = 0.3 if worker.rank == slow else 0.1
step = 0
while not os.path.exists(os.path.join(folder, "end")):
    until = (int(time.monotonic() / 0.4) + 1) * 0.4
    time.sleep(own)
    wait = max(until - time.monotonic(), 0.0001)
    time.sleep(wait)
    worker.waited(wait)
    step += 1
    worker.progress(step)
"""


# The same of a program that leaves it to DistributedDataParallel how long it waits.
DDP_TRAINING = """
import os, sys, time
import torch
import ddprun
worker = ddprun.worker()
torch.set_num_threads(1)
torch.distributed.init_process_group("gloo")
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(8, 8))
folder, slow = sys.argv[1], int(sys.argv[2])
end = torch.zeros(1)
step = 0
while not end.item():
    time.sleep(0.3 if worker.rank == slow else 0.05)
    model(torch.ones(2, 8)).sum().backward()
    step += 1
    worker.progress(step)
    if step % 20 == 0:
        end.fill_(os.path.exists(os.path.join(folder, "end")))
        torch.distributed.all_reduce(end)
del model  # it holds the group
torch.distributed.destroy_process_group()
"""


# Its rank 0 saves for a while after each third step; the others wait for it.
SAVING = """
import os, sys, time
import ddprun
worker = ddprun.worker()
folder = sys.argv[1]
step = 0
while not os.path.exists(os.path.join(folder, "end")):
    time.sleep(0.05)
    step += 1
    worker.progress(step)
    if step % 3 == 0 and worker.rank == 0:
        with worker.checkpointing():
            time.sleep(0.2)
"""


# Knows nothing of ddprun, and fails once.
PLAIN = """
import os, sys, time
import torch
torch.distributed.init_process_group("gloo")
time.sleep(0.2)
print("has made a step", flush=True)
if os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
    sys.exit(3)
while not os.path.exists(os.path.join(sys.argv[1], "end")):
    time.sleep(0.05)
torch.distributed.destroy_process_group()
"""


class ProgressTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = folder.name
        self.processes = []
        self.addCleanup(self.end)
        daemon = self.start("ddprun-rendezvous", "--port", "0", "--insecure")
        line = daemon.stdout.readline()
        while not DIGITS_OF_A_PORT.search(line):
            line = daemon.stdout.readline()
            self.assertTrue(line, "the daemon has ended")
        self.port = int(DIGITS_OF_A_PORT.search(line).group(1))

    def end(self):
        for process in self.processes:
            process.kill()
            process.wait()
            process.stdout.close()

    def start(self, program, *arguments):
        process = subprocess.Popen(
            [os.path.join(BIN, program), *arguments], stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, cwd=self.folder,
            env={**os.environ, "PYTHONPATH": PACKAGE, "PYTHONDONTWRITEBYTECODE": "1"})
        self.processes.append(process)
        return process

    def start_job(self, slow, training=TRAINING, *flags):
        script = os.path.join(self.folder, "train.py")
        with open(script, "w", encoding="utf-8") as file:
            file.write(training)
        return [self.start(
            "ddprun", "--nnodes", "2", "--nproc-per-node", str(RANKS_PER_NODE), "--insecure",
            "--rdzv-id", "llama", "--rdzv-endpoint", f"127.0.0.1:{self.port}", "--node-rank",
            str(node), *flags, sys.executable, script, self.folder, str(slow)) for node in range(2)]

    def follow(self):
        """The events of the job as server-sent ones, from the first on."""
        return events_of(self.port, "llama", PATIENCE_S, self.addCleanup)

    def status(self):
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=PATIENCE_S)
        connection.request("GET", "/status")
        told = json.loads(connection.getresponse().read())
        connection.close()
        return told["jobs"]

    @unittest.skipUnless(importlib.util.find_spec("torch"), "LEFT OUT: there is no torch")
    def test_it_is_named_though_the_program_does_not_tell_that_it_waits(self):
        if RANKS_PER_NODE > 4:
            self.skipTest("torch in 64 processes needs the memory of a cluster")
        slow = random.randrange(2 * RANKS_PER_NODE)
        nodes = self.start_job(slow, DDP_TRAINING)
        # On a busy machine another rank can be the slowest for a moment, above all in the first
        # steps and while only one node has told any.
        named = []
        for event in self.follow():
            if event["event"] == "progress" and event.get("slowest"):
                named.append(event["slowest"])
                if len(named) == 5:
                    break
        right = [one for one in named if one["rank"] == slow]
        self.assertGreater(len(right), len(named) / 2, named)
        self.assertGreater(statistics.median(one["cost_share"] for one in right), 0.2, named)
        with open(os.path.join(self.folder, "end"), "w", encoding="utf-8"):
            pass
        for node in nodes:
            said = node.stdout.read()
            self.assertEqual(node.wait(PATIENCE_S), 0, said)

    def test_what_checkpoints_cost_is_told(self):
        if RANKS_PER_NODE > 4:
            self.skipTest("how many ranks there are makes no difference to it")
        nodes = self.start_job(0, SAVING)
        for event in self.follow():  # a line a second
            if event["event"] == "progress":
                [job] = self.status()
                time = job["time"]
                if time["checkpointing_ms"] > 400:
                    break
        self.assertGreater(time["training_ms"], 0)
        together = sum(time[share + "_ms"] for share in (
            "training", "checkpointing", "restarting", "waiting", "starting"))
        self.assertAlmostEqual(together, time["whole_ms"], delta=5)  # each is rounded
        self.assertRegex(time["text"], r"training [\d.]+ % of .*, checkpointing [\d.]+ (m?s)")
        with open(os.path.join(self.folder, "end"), "w", encoding="utf-8"):
            pass
        for node in nodes:
            self.assertEqual(node.wait(PATIENCE_S), 0)

    def test_a_hang_of_all_nodes_is_told_once_of_the_rank_furthest_behind(self):
        if RANKS_PER_NODE > 4:
            self.skipTest("how many ranks there are makes no difference to it")
        nodes = self.start_job(0, STANDS_STILL, "--hang-notice", "4")
        notices = []
        for event in self.follow():
            if event["event"] == "hang_notice":
                notices.append(event)
                with open(os.path.join(self.folder, "end"), "w", encoding="utf-8"):
                    pass
            if event["event"] == "verdict":
                break
        last = 2 * RANKS_PER_NODE - 1
        self.assertEqual([(one["rank"], one["step"]) for one in notices], [(last, 11 - last)])
        for node in nodes:
            said = node.stdout.read()
            self.assertEqual(node.wait(PATIENCE_S), 0, said)
            self.assertEqual(said.count("has told a step for 4 s"), 1, said)

    @unittest.skipUnless(importlib.util.find_spec("torch"), "LEFT OUT: there is no torch")
    def test_the_moments_of_a_program_that_tells_none_are_estimated(self):
        if RANKS_PER_NODE > 4:
            self.skipTest("torch in 64 processes needs the memory of a cluster")
        nodes = self.start_job(0, PLAIN, "--max-restarts", "1")
        moments = []
        for event in self.follow():
            if event["event"] in ("main", "group_ready", "resumed", "first_step"):
                moments.append(event)
                if event["generation"] == 2 and event["event"] == "first_step":
                    break
        told = [(event["event"], event["estimated"]) for event in moments
                if event["generation"] == 2]
        self.assertEqual(told, [("main", True), ("group_ready", True), ("first_step", True)])
        at = [event["mono_ns"] for event in moments if event["generation"] == 2]
        self.assertEqual(at, sorted(at))
        self.assertGreater(at[2], at[1] + 150_000_000)  # each has slept before it wrote
        [job] = self.status()
        self.assertTrue(job["time"]["estimated"])
        phases = {phase["name"]: phase for phase in job["time"]["restarts"][0]["phases"]}
        self.assertEqual([name for name, phase in phases.items() if phase.get("estimated")],
                         ["start programs", "connect", "first step"])
        self.assertGreater(phases["first step"]["ms"], 150)
        with open(os.path.join(self.folder, "end"), "w", encoding="utf-8"):
            pass
        for node in nodes:
            self.assertEqual(node.wait(PATIENCE_S), 0)

    def test_the_rank_that_all_wait_for_is_named(self):
        slow = random.randrange(2 * RANKS_PER_NODE)
        nodes = self.start_job(slow)
        kinds = []
        for event in self.follow():
            kinds.append(event["event"])
            if event["event"] == "progress":
                self.assertNotIn("seq", event)
                slowest = event.get("slowest")
                if not slowest:
                    continue
                self.assertEqual(slowest["rank"], slow)
                [job] = self.status()
                # Ranks do not wait for each other here, and one may be slow to start.
                if all(rank["phase"] == "training" for rank in job["ranks"]):
                    break
        self.assertGreater(slowest["cost_share"], 0.2)

        self.assertEqual(job["slowest"]["rank"], slow)
        self.assertEqual(job["slowest"]["node"], job["ranks"][slow]["node"])
        self.assertEqual([rank["rank"] for rank in job["ranks"]],
                         list(range(2 * RANKS_PER_NODE)))
        for rank in job["ranks"]:
            self.assertGreater(rank["memory_bytes"], 1 << 20)
            self.assertIn("step_age_ms", rank)
        self.assertEqual(job["time"]["generations"], 1)
        self.assertFalse(job["time"]["estimated"])

        # The moments of all nodes came as events, in order, once.
        moments = [kind for kind in kinds
                   if kind in ("spawned", "main", "group_ready", "resumed", "first_step")]
        self.assertEqual(moments, ["spawned", "main", "group_ready", "resumed", "first_step"])
        text = subprocess.run(
            [os.path.join(BIN, "ddpctl"), "status", "--insecure", "--rdzv-endpoint",
             f"127.0.0.1:{self.port}"], stdout=subprocess.PIPE, text=True, check=True).stdout
        self.assertIn(f"slowest: rank {slow} on ", text)
        self.assertRegex(text, r"step \d+, [\d.]+ steps/s")
        self.assertRegex(text, r"\n  time: training [\d.]+ % of .*, starting ")
        with open(os.path.join(self.folder, "end"), "w", encoding="utf-8"):
            pass
        for node in nodes:
            said = node.stdout.read()
            self.assertEqual(node.wait(PATIENCE_S), 0, said)


# Rank 1 reports two steps, rank 0 one more; then neither reports any, and both are busy.
STUCK = """
import os, sys
import ddprun
worker = ddprun.worker()
for step in range(1, 4 - worker.rank):
    worker.progress(step)
while not os.path.exists(os.path.join(sys.argv[1], "end")):
    pass
"""


# Reports as many steps as its rank lets it, when all have begun, then none.
STANDS_STILL = """
import glob, os, sys, time
import ddprun
worker = ddprun.worker()
folder = sys.argv[1]
open(os.path.join(folder, f"begun{worker.rank}"), "w").close()
while len(glob.glob(os.path.join(folder, "begun*"))) < worker.world_size:
    time.sleep(0.02)
for step in range(1, 12 - worker.rank):
    worker.progress(step)
while not os.path.exists(os.path.join(sys.argv[1], "end")):
    time.sleep(0.05)
"""


class NoticeTest(unittest.TestCase):
    def test_that_no_rank_tells_a_step_is_said_with_the_one_furthest_behind(self):
        with tempfile.TemporaryDirectory() as folder:
            script = os.path.join(folder, "stuck.py")
            with open(script, "w", encoding="utf-8") as file:
                file.write(STUCK)
            run = subprocess.Popen(
                [os.path.join(BIN, "ddprun"), "--nproc-per-node", "2", "--hang-notice", "1",
                 "--log-dir", os.path.join(folder, "logs"), sys.executable, script, folder],
                stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                text=True, env={**os.environ, "PYTHONPATH": PACKAGE})
            self.addCleanup(run.stdout.close)
            self.addCleanup(run.wait)
            self.addCleanup(run.kill)
            said = ""
            while "has told a step for 1 s; " not in said:
                line = run.stdout.readline()
                self.assertTrue(line, said)
                said += line
            with open(os.path.join(folder, "end"), "w", encoding="utf-8"):
                pass
            said += run.stdout.read()
            self.assertEqual(run.wait(PATIENCE_S), 0, said)
            self.assertEqual(said.count("has told a step for 1 s"), 1)
            [events] = {os.path.realpath(path) for path in
                        glob.glob(os.path.join(folder, "logs", "*", "events.jsonl"))}
            with open(events, encoding="utf-8") as file:
                notices = [event for event in map(json.loads, file)
                           if event["event"] == "hang_notice"]
            self.assertEqual(len(notices), 1)
            # Rank 0 is judged alone if rank 1 has not begun yet.
            self.assertIn((notices[0]["rank"], notices[0]["step"]), [(1, 2), (0, 3)])


def load_tests(loader, _tests, _pattern):
    cases = [ProgressTest] * TIMES + [NoticeTest]
    return unittest.TestSuite(loader.loadTestsFromTestCase(case) for case in cases)


if __name__ == "__main__":
    BIN, RANKS_PER_NODE, TIMES = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    unittest.main(argv=[sys.argv[0], *sys.argv[4:]])
