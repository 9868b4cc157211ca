"""A job of two nodes of one worker each on this machine, whose rank 1 has a fault at step 20.

The ranks step together: each waits for a byte of the other one. The program writes its steps. It
also reports them through its page ("steps"), or knows nothing of ddprun ("output").
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

# Arguments: its folder, whether it reports steps, and what rank 1 does at step 20.
TRAINING = """
import os, sys, time
folder, tells, fault = sys.argv[1:]
rank = int(os.environ["RANK"])
if tells == "steps":
    import ddprun
    worker = ddprun.worker()
if fault == "waits_for_store":
    from torch.distributed import TCPStore
    store = TCPStore(os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]))
mine, other = (os.open(os.path.join(folder, f"to{end}"), os.O_RDWR) for end in (rank, 1 - rank))
for step in range(1, 10**9):
    if step == 20:
        with open(os.path.join(folder, "stands"), "w") as file:
            file.write("x")
    if rank == 1 and step == 20:
        if fault == "sleeps":
            time.sleep(10**6)
        if fault == "raises":
            raise ValueError("bad batch 20")
        if fault == "waits_for_store":
            store.get("never")
        while fault == "computes":
            pass
    if rank == 1 and step >= 20 and fault == "slow":
        until = time.monotonic() + 0.2
        while time.monotonic() < until:
            pass
    os.write(other, b"x")
    os.read(mine, 1)
    if tells == "steps":
        worker.progress(step)
    print("step", step, flush=True)
"""


class TwoNodeTest(unittest.TestCase):
    bin_dir = ""

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
        daemon = self.start("ddprun-rendezvous", "--port", "0", *self.trust(0))
        self.port = int(self.line_of(daemon, r"listening on 127\.0\.0\.1:(\d+)").group(1))
        self.endpoint = f"127.0.0.1:{self.port}"

    def trust(self, node):
        """How that node proves that it may join; the daemon is as node 0."""
        return ["--insecure"]

    def start(self, program, *arguments, output=subprocess.PIPE, before=()):
        process = subprocess.Popen(
            [*before, os.path.join(self.bin_dir, program), *arguments], stdin=subprocess.DEVNULL,
            stdout=output, stderr=subprocess.STDOUT, text=True, cwd=self.folder,
            env={**os.environ, "PYTHONPATH": PACKAGE, "PYTHONDONTWRITEBYTECODE": "1"})
        if process.stdout:
            self.addCleanup(process.stdout.close)
        self.addCleanup(process.wait)
        self.addCleanup(process.kill)
        return process

    def start_node(self, node, tells, fault, *flags, output=subprocess.DEVNULL, endpoint=None,
                   before=()):
        return self.start(
            "ddprun", "--nnodes", "2", *self.trust(node), "--rdzv-id", "llama", "--rdzv-endpoint",
            endpoint or self.endpoint, "--node-rank", str(node), "--log-dir",
            os.path.join(self.folder, f"logs{node}"), *flags, sys.executable, self.script,
            self.folder, tells, fault, output=output, before=before)

    def start_job(self, tells, fault):
        return [self.start_node(node, tells, fault) for node in range(2)]

    def await_steps(self):
        """Both ranks have come to step 20."""
        for _ in range(2):
            ready, _, _ = select.select([self.stands], [], [], PATIENCE_S)
            self.assertTrue(ready, "a rank has not come to step 20")
            os.read(self.stands, 1)

    def line_of(self, process, pattern):
        """The first line of its output in which `pattern` is found."""
        seen = []
        for line in process.stdout:
            seen.append(line)
            if found := re.search(pattern, line):
                print(line, end="")
                return found
        return self.fail(f"{pattern} is in none of\n{''.join(seen)}")

    def ctl(self, *arguments):
        return subprocess.run(
            [os.path.join(self.bin_dir, "ddpctl"), *arguments, "--rdzv-endpoint", self.endpoint,
             *self.trust(0)], capture_output=True, text=True, check=False).stdout

    def status_with(self, pattern):
        """Returns ddpctl status's first answer that matches: the test asks ddpctl as news come."""
        answer = ""
        for _ in self.news():
            answer = self.ctl("status")
            if re.search(pattern, answer):
                print(answer)
                return answer
        return self.fail(answer)

    def news(self):
        """The events by which the nodes report how far their ranks are: each node once a second."""
        events = events_of(self.port, "llama", PATIENCE_S, self.addCleanup)
        return (event for event in events if event["event"] == "progress")


def main():
    """usage: FILE BIN_DIR [unittest's words]"""
    TwoNodeTest.bin_dir = sys.argv[1]
    unittest.main(argv=[sys.argv[0], *sys.argv[2:]])
