"""Every command of ddpctl with a job of one node, which no flag was given and no rendezvous has.

usage: one_node.py BIN_DIR [unittest's words]
"""

import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import unittest

PATIENCE_S = 120  # on a machine that has no time for it
BIN = ""

# Ends when it is asked to leave.
WORKER = """
import signal, sys
def leave(*_):
    print("leaves", flush=True)
    sys.exit(0)
signal.signal(signal.SIGTERM, leave)
print("works", flush=True)
while True:
    signal.pause()
"""


class OneNode(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="ddprun-one-")
        self.addCleanup(folder.cleanup)
        self.folder = folder.name
        self.name = f"llama{os.getpid()}"  # others run here, too
        self.environment = {
            key: value for key, value in os.environ.items()
            if not re.match("SLURM|PET_|DDPRUN_|TORCH|KUBERNETES_", key)}
        self.environment.update(HOME=self.folder, LOGNAME="alice", PYTHONUNBUFFERED="1",
                                PET_LOG_DIR=os.path.join(self.folder, "logs"))
        script = os.path.join(self.folder, "train.py")
        with open(script, "w", encoding="utf-8") as file:
            file.write(WORKER)
        self.job = subprocess.Popen(
            [os.path.join(BIN, "ddprun"), "--nproc-per-node", "2", "--rdzv-id", self.name,
             "--warm", "off", "--log-format", "json", sys.executable, script],
            env=self.environment, cwd=self.folder, text=True, stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        self.addCleanup(self.job.stdout.close)
        self.addCleanup(self.job.wait)
        self.addCleanup(self.job.kill)
        self.said = ""
        self.await_workers(1, "works")

    def await_workers(self, generation, text):
        """Until both have said it."""
        count = 0
        while count < 2:
            line = self.job.stdout.readline()
            self.assertTrue(line, self.said)
            self.said += line
            told = json.loads(line)
            count += (told.get("generation"), told["message"]) == (generation, text)

    def order(self, *words, code=0):
        return self.ctl(*words, "--rdzv-id", self.name, code=code)

    def ctl(self, *words, code=0):
        done = subprocess.run([os.path.join(BIN, "ddpctl"), *words], env=self.environment,
                              cwd=self.folder, text=True, stdin=subprocess.DEVNULL,
                              capture_output=True, timeout=PATIENCE_S, check=False)
        self.assertEqual(done.returncode, code, (words, done.stdout, done.stderr))
        return done.stdout + done.stderr

    def events(self, kind):
        return [event for event in map(json.loads, self.ctl("events", self.name).splitlines())
                if event["event"] == kind]

    def test_all_look_and_act(self):
        self.assertRegex(self.ctl("jobs"), rf"{self.name}_\w+ .* 1 ")
        self.assertIn("generation 1", self.ctl("status", self.name))
        self.assertEqual(json.loads(self.ctl("status", self.name, "--json"))["job"], self.name)
        self.assertIn("rank", self.ctl("stacks", self.name))
        self.assertEqual(self.ctl("logs", "--rdzv-id", self.name, "--rank", "0"), "works\n")
        lines = self.ctl("logs", "--all", "--rdzv-id", self.name, "--grep", "work").splitlines()
        self.assertEqual(sorted(re.sub(r" \S+\]", "]", line) for line in lines),
                         ["[0] works", "[1] works"])
        self.assertEqual(self.ctl("report", self.name).splitlines()[0],
                         self.ctl("status", self.name).splitlines()[0])
        bundle = os.path.join(self.folder, "bundle.json")
        self.ctl("report", self.name, "--bundle", bundle)
        with open(bundle, encoding="utf-8") as file:
            self.assertEqual(json.load(file)["run"]["job"], self.name)
        self.assertIn(self.name + "_", self.ctl("runs"))

        said = self.order("restart")
        self.await_workers(2, "works")
        [restart] = self.events("operator")
        self.assertIn(f"(event {restart['seq']})", said)
        self.assertEqual(restart["action"], "restart")
        self.assertTrue(restart["by"].startswith("alice@"), restart)
        self.assertRegex(restart["from"], rf"^uid {os.geteuid()}, process \d+$")

        self.order("hold", "--for", "1h")
        self.order("restart")
        self.await_workers(2, "leaves")
        self.assertEqual(self.events("formed")[-1]["generation"], 2)
        self.order("release")
        self.await_workers(3, "works")
        self.assertEqual([event["action"] for event in self.events("operator")],
                         ["restart", "hold", "restart", "release"])

        self.assertIn("--nnodes 1", self.order("grow", "2", code=2))
        self.assertIn("is not held", self.order("release", code=1))
        self.assertIn("has no node elsewhere", self.order("drain", "elsewhere", code=1))
        self.assertIn("write a time", self.order("hold", "--for", "soon", code=2))
        self.assertEqual(len(self.events("operator")), 4)

        self.assertIn("event", json.loads(self.order("stop", "--json")))
        rest, _ = self.job.communicate(timeout=PATIENCE_S)
        self.assertEqual(self.job.returncode, 98, self.said + rest)
        self.assertRegex(self.ctl("report", self.name),
                         r": ended: stopped by [^\n]*\n.*exit code 98;")
        self.assertIn("alice@", rest)
        self.assertRegex(self.order("restart", code=1), "no run here is|no job of this user runs")
        self.assertEqual(self.events("operator")[-1]["action"], "stop")

    def test_a_run_that_was_left_says_so(self):
        self.job.terminate()
        self.job.communicate(timeout=PATIENCE_S)
        self.assertEqual(self.job.returncode, 128 + signal.SIGTERM)
        [run] = map(json.loads, self.ctl("runs", "--json", "--rdzv-id", self.name).splitlines())
        self.assertEqual(run["text"], "SIGTERM: this node has left the job")

    def test_what_a_browser_sends_from_another_site_is_no_order(self):
        [run] = [job for job in map(json.loads, self.ctl("jobs", "--json").splitlines())
                 if job["job"] == self.name]
        socket = os.path.join(run["run"], "ddprun.sock")

        def answer(*headers):
            return subprocess.run(
                ["curl", "-s", "-o", "/dev/null", "-w", "%{http_code}", "--unix-socket", socket,
                 "-d", "{}", *[word for header in headers for word in ("-H", header)],
                 f"http://localhost/jobs/{self.name}/restart"], text=True, capture_output=True,
                timeout=PATIENCE_S, check=True).stdout

        self.assertEqual(answer("Content-Type: text/plain"), "400")
        json_type = "Content-Type: application/json"
        self.assertEqual(answer(json_type, "Origin: http://evil.example"), "403")
        self.assertEqual(answer(json_type, "Host: evil.example"), "403")
        self.assertEqual(self.events("operator"), [])
        self.assertEqual(answer(json_type), "202")
        self.await_workers(2, "works")


if __name__ == "__main__":
    BIN = os.path.abspath(sys.argv[1])
    unittest.main(argv=[sys.argv[0], *sys.argv[2:]], verbosity=2)
