"""ddpctl logs --all: what the workers of all nodes have written, through their rendezvous.

usage: all_logs.py BIN_DIR [unittest's words]
"""

import os
import re
import subprocess
import sys
import tempfile
import threading
import unittest
import urllib.error
import urllib.request

PATIENCE_S = 120  # on a machine that has no time for it
BIN = ""
LONG = 50000
WORKER = """#!/bin/sh
echo "rank $RANK begins"
echo "rank $RANK complains" >&2
test $RANK = 3 && seq 1 %d
while ! test -e end; do sleep 0.05; done
echo "rank $RANK ends"
""" % LONG


class AllLogs(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="ddprun-all-logs-")
        self.addCleanup(folder.cleanup)
        self.folder = folder.name
        with open(self.path("worker"), "w", encoding="utf-8") as file:
            file.write(WORKER)
        os.chmod(self.path("worker"), 0o755)

    def path(self, name):
        return os.path.join(self.folder, name)

    def environment(self, program):
        kept = {key: value for key, value in os.environ.items()
                if not re.match("SLURM|PET_|DDPRUN_|TORCH|KUBERNETES_", key)}
        # Where ddpctl is told no rendezvous, none answers.
        nobody = {}
        if program == "ddpctl":
            nobody["PET_RDZV_ENDPOINT"] = "127.0.0.1:1"
        return {**kept, **nobody, "HOME": self.folder}

    def start(self, program, *arguments, **options):
        started = subprocess.Popen([os.path.join(BIN, program), *arguments], cwd=self.folder,
                                   text=True, stdin=subprocess.DEVNULL,
                                   env=self.environment(program), stdout=subprocess.PIPE,
                                   **options)
        self.addCleanup(started.stdout.close)
        self.addCleanup(started.wait)
        self.addCleanup(started.kill)
        return started

    def wait_for(self, started, pattern, times=1):
        for line in started.stdout:
            if found := re.search(pattern, line):
                times -= 1
                if times == 0:
                    threading.Thread(target=started.stdout.read, daemon=True).start()
                    return found
        self.fail(f"it has ended without {pattern}")

    def start_job(self):
        """Two nodes of two ranks, all of which have begun to wait."""
        daemon = self.start("ddprun-rendezvous", "--port", "0", stderr=subprocess.STDOUT)
        endpoint = self.wait_for(daemon, r"listening on (127\.0\.0\.1:\d+)").group(1)
        self.nodes = [self.start(
            "ddprun", "--nnodes", "2", "--nproc-per-node", "2", "--rdzv-id", "test",
            "--rdzv-endpoint", endpoint, "--log-dir", self.path(f"logs{number}"),
            "--max-restarts", "0", "--redirects", "3", "./worker",
            stderr=subprocess.STDOUT) for number in range(2)]
        return endpoint

    def logs(self, *flags):
        return subprocess.run([os.path.join(BIN, "ddpctl"), "logs", "--all", *flags],
                              cwd=self.folder, text=True, stdin=subprocess.DEVNULL, check=False,
                              env=self.environment("ddpctl"), capture_output=True,
                              timeout=PATIENCE_S)

    def lines_once_there(self, *flags, count):
        """Asked again until it has so many lines: workers are on their way."""
        while True:
            shown = self.logs(*flags)
            lines = shown.stdout.splitlines()
            if len(lines) >= count:
                self.assertEqual(shown.returncode, 0, shown.stderr)
                return lines

    def test_all_ranks_of_all_nodes(self):
        endpoint = self.start_job()
        there = ("--rdzv-endpoint", endpoint)
        lines = self.lines_once_there(*there, count=8 + LONG)
        self.assertEqual(len(lines), 8 + LONG)
        hosts = {re.fullmatch(r"\[(\d) (\S+)\] .*", line).group(1, 2) for line in lines}
        self.assertEqual(sorted(rank for rank, _ in hosts), ["0", "1", "2", "3"])
        of_3 = [line.split("] ")[1] for line in lines if line.startswith("[3 ")]
        self.assertEqual([line for line in of_3 if line.isdigit()],
                         [str(number) for number in range(1, LONG + 1)])
        self.assertIn("rank 2 complains", "\n".join(lines))

        # Of one rank, some lines, and its end.
        found = self.logs(*there, "--rank", "3", "--grep", "^4999[89]$").stdout
        self.assertEqual([line.split("] ")[1] for line in found.splitlines()], ["49998", "49999"])
        found = self.logs(*there, "--rank", "2", "-n", "1", "--generation", "1").stdout
        self.assertEqual(len(found.splitlines()), 2)  # of each stream one
        self.assertEqual(self.logs(*there, "--rank", "9").returncode, 1)
        self.assertIn("--grep (", self.logs(*there, "--grep", "(").stdout)

        # Who follows has everything, to the last line.
        follower = self.start("ddpctl", "logs", "--all", *there, "--follow", "-n", "1",
                              "--grep", "rank")
        first = [follower.stdout.readline() for _ in range(4)]
        self.assertIn("rank", "".join(first))
        with open(self.path("end"), "w", encoding="utf-8"):
            pass
        rest = "".join(first) + follower.stdout.read()
        for rank in range(4):
            self.assertRegex(rest, rf"\[{rank} \S+\] rank {rank} ends\n")
        self.assertEqual(follower.wait(PATIENCE_S), 0)
        for node in self.nodes:
            self.assertEqual(node.wait(PATIENCE_S), 0)

    def test_a_token_is_asked_for_as_of_events(self):
        endpoint = self.start_job()
        request = urllib.request.Request(f"http://{endpoint}/logs",
                                         headers={"Host": "elsewhere.example"})
        with self.assertRaises(urllib.error.HTTPError) as refused:
            urllib.request.urlopen(request, timeout=PATIENCE_S)
        self.assertEqual(refused.exception.code, 403)
        refused.exception.close()

    def test_a_run_of_one_node(self):
        # Runs that other tests have at work on this machine are found, too.
        name = f"all-logs-{os.getpid()}"
        job = self.start("ddprun", "--nproc-per-node", "2", "--rdzv-id", name, "--log-dir",
                         self.path("logs"), "--redirects", "3", "./worker",
                         stderr=subprocess.STDOUT)
        where = ("--log-dir", self.path("logs"), "--rdzv-id", name)
        lines = self.lines_once_there(*where, count=4)
        self.assertEqual(len(lines), 4)
        follower = self.start("ddpctl", "logs", "--all", *where, "--follow")
        first = [follower.stdout.readline() for _ in range(4)]
        self.assertEqual(len([line for line in first if "begins" in line]), 2)
        with open(self.path("end"), "w", encoding="utf-8"):
            pass
        rest = follower.stdout.read()
        self.assertRegex(rest, r"\[0 \S+\] rank 0 ends\n")
        self.assertRegex(rest, r"\[1 \S+\] rank 1 ends\n")
        self.assertEqual(job.wait(PATIENCE_S), 0)


if __name__ == "__main__":
    BIN = os.path.abspath(sys.argv[1])
    unittest.main(argv=[sys.argv[0], *sys.argv[2:]], verbosity=2)
