"""A rank of two nodes gets no further: ddpctl status names it, and says what it does.

The ranks step together: each waits for a byte of the other one. At one step rank 1 sleeps, or
computes without an end. A program tells its steps through its page, or knows nothing of ddprun and
only writes.

usage: stalls.py BIN_DIR [unittest's words]
"""

import os
import re
import select
import subprocess
import sys
import tempfile
import unittest

from server_sent import events_of

PATIENCE_S = 300  # on a machine that has no time for it
PACKAGE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../worker_runtime/python")
BIN = ""

# Told its folder, whether it tells steps, and what rank 1 does at step 20.
TRAINING = """
import os, sys, time
folder, tells, fault = sys.argv[1:]
rank = int(os.environ["RANK"])
if tells == "steps":
    import ddprun
    worker = ddprun.worker()
mine, other = (os.open(os.path.join(folder, f"to{end}"), os.O_RDWR) for end in (rank, 1 - rank))
for step in range(1, 10**9):
    if step == 20:
        with open(os.path.join(folder, "stands"), "w") as file:
            file.write("x")
    if rank == 1 and step == 20:
        if fault == "sleeps":
            time.sleep(10**6)
        while True:
            pass
    os.write(other, b"x")
    os.read(mine, 1)
    if tells == "steps":
        worker.progress(step)
    else:
        print("step", step, flush=True)
"""


class StallTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = folder.name
        for rank in range(2):
            os.mkfifo(os.path.join(self.folder, f"to{rank}"))
        stands = os.path.join(self.folder, "stands")
        os.mkfifo(stands)
        self.stands = os.open(stands, os.O_RDWR)
        self.addCleanup(os.close, self.stands)
        self.script = os.path.join(self.folder, "train.py")
        with open(self.script, "w", encoding="utf-8") as file:
            file.write(TRAINING)
        daemon = self.start("ddprun-rendezvous", "--port", "0", "--insecure")
        line = ""
        while not (found := re.search(r"listening on 127\.0\.0\.1:(\d+)", line)):
            line = daemon.stdout.readline()
            self.assertTrue(line, "the daemon has ended")
        self.port = int(found.group(1))
        self.endpoint = f"127.0.0.1:{self.port}"

    def start(self, program, *arguments, output=subprocess.PIPE):
        process = subprocess.Popen(
            [os.path.join(BIN, program), *arguments], stdin=subprocess.DEVNULL, stdout=output,
            stderr=subprocess.STDOUT, text=True, cwd=self.folder,
            env={**os.environ, "PYTHONPATH": PACKAGE, "PYTHONDONTWRITEBYTECODE": "1"})
        if process.stdout:
            self.addCleanup(process.stdout.close)
        self.addCleanup(process.wait)
        self.addCleanup(process.kill)
        return process

    def start_job(self, tells, fault):
        return [
            self.start("ddprun", "--nnodes", "2", "--insecure", "--rdzv-id", "llama",
                       "--rdzv-endpoint", self.endpoint, "--node-rank", str(node), "--log-dir",
                       os.path.join(self.folder, f"logs{node}"), sys.executable, self.script,
                       self.folder, tells, fault, output=subprocess.DEVNULL)
            for node in range(2)]

    def ctl(self, *arguments):
        return subprocess.run(
            [os.path.join(BIN, "ddpctl"), *arguments, "--rdzv-endpoint", self.endpoint,
             "--insecure"], capture_output=True, text=True, check=False).stdout

    def status_with(self, pattern):
        """What ddpctl status says as soon as it says that: it is asked as news come."""
        answer = ""
        for _ in self.news():
            answer = self.ctl("status")
            if re.search(pattern, answer):
                print(answer)
                return answer
        self.fail(answer)

    def news(self):
        """An event as any node tells how far its ranks are: once a second."""
        events = events_of(self.port, "llama", PATIENCE_S, self.addCleanup)
        return (event for event in events if event["event"] == "progress")

    def test_a_rank_that_sleeps_is_named(self):
        self.start_job("steps", "sleeps")
        said = self.status_with(
            r"no step for \d+ s; all at step 19: rank 1 on \S+ sleeps, the other waits")
        self.assertNotIn("steps/s", said)
        self.assertNotIn("slowest", said)

    def test_a_rank_that_computes_without_end_is_named(self):
        self.start_job("steps", "computes")
        self.status_with(
            r"no step for \d+ s; all at step 19: rank 1 on \S+ computes, the other waits")

    def test_a_rank_of_a_program_that_tells_no_steps_is_named(self):
        for fault in ("sleeps", "computes"):
            with self.subTest(fault):
                self.setUp()
                self.start_job("output", fault)
                said = self.status_with(
                    rf"no output for \d+ s; rank 1 on \S+ {fault}, the other waits")
                self.assertRegex(said, "time: at work .* % ")
                self.assertNotIn("training", said)

    def test_the_first_status_has_the_steps(self):
        self.start_job("steps", "sleeps")
        # Both ranks have told their last step; nobody has asked the rendezvous yet.
        for _ in range(2):
            ready, _, _ = select.select([self.stands], [], [], PATIENCE_S)
            self.assertTrue(ready, "a rank has not come to step 20")
            os.read(self.stands, 1)
        said = self.ctl("status")
        self.assertEqual(len(re.findall("step 19", said)), 2, said)


if __name__ == "__main__":
    BIN = sys.argv[1]
    unittest.main(argv=[sys.argv[0], *sys.argv[2:]])
