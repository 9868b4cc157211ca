"""A node of two fails: its console or the other one says at once what is wrong, and where.

stalls.py tests the lines of ddpctl status about ranks that stall or are slow.

usage: answers.py BIN_DIR [unittest's words]
"""

import os
import signal
import subprocess
import unittest

from process_tree import descendants
from two_nodes import TwoNodeTest, main

TELLINGS = ("steps", "output")


class AnswerTest(TwoNodeTest):
    def start_job_with_fault(self, tells, fault="none"):
        """The first node's console is read; both ranks have come to step 20."""
        nodes = [self.start_node(0, tells, fault, output=subprocess.PIPE),
                 self.start_node(1, tells, fault)]
        self.await_steps()
        return nodes

    def test_a_rank_that_raises(self):
        for tells in TELLINGS:
            with self.subTest(tells):
                self.setUp()
                first, _ = self.start_job_with_fault(tells, "raises")
                self.line_of(first, r"failed: rank 1 on \S+ .*ValueError: bad batch 20")
                self.assertEqual(first.wait(), 1)

    def test_a_node_that_stands_still(self):
        for tells in TELLINGS:
            with self.subTest(tells):
                self.setUp()
                first, second = self.start_job_with_fault(tells)
                stopped = [second.pid, *descendants(second.pid)]
                for pid in stopped:
                    os.kill(pid, signal.SIGSTOP)
                why = r"missing: \S+ was silent for \d+ ms"
                self.line_of(first, f"waiting for 1 node more: .*; {why}")
                self.assertRegex(self.ctl("status"), why)
                for pid in stopped:
                    os.kill(pid, signal.SIGKILL)

    def test_a_machine_that_dies(self):
        for tells in TELLINGS:
            with self.subTest(tells):
                self.setUp()
                first, second = self.start_job_with_fault(tells)
                for pid in [second.pid, *descendants(second.pid)]:
                    os.kill(pid, signal.SIGKILL)
                self.line_of(first, r"waiting for 1 node more: .*; missing: \S+ died \(its "
                                    r"connection ended\)")
                self.assertRegex(self.ctl("status"), r"missing: \S+ died")

    @unittest.skipIf(os.geteuid() != 0, "only root may mount a full disk")
    def test_a_full_log_disk(self):
        for tells in TELLINGS:
            with self.subTest(tells):
                self.setUp()
                logs = os.path.join(self.folder, "logs1")
                os.mkdir(logs)
                small = ("unshare", "-m", "sh", "-c",
                         f'mount -t tmpfs -o size=64k tmpfs {logs} && exec "$@"', "sh")
                self.start_node(0, tells, "writes")
                second = self.start_node(1, tells, "writes", output=subprocess.PIPE, before=small)
                self.line_of(second, rf"writing the log file {logs}/\S+: No space left on device")


class SecretTest(TwoNodeTest):
    def trust(self, node):
        secret = os.path.join(self.folder, f"secret{node}")
        if not os.path.exists(secret):
            with open(os.open(secret, os.O_WRONLY | os.O_CREAT, 0o600), "w") as file:
                file.write(str(node) * 64 + "\n")
        return ["--secret-file", secret]

    def test_a_node_with_another_secret(self):
        for tells in TELLINGS:
            with self.subTest(tells):
                self.setUp()
                first = self.start_node(0, tells, "none", output=subprocess.PIPE)
                self.line_of(first, "waiting for 1 node more")
                second = self.start_node(1, tells, "none", output=subprocess.PIPE)
                self.line_of(second, f"the secret of this node is not that of the rendezvous at "
                                     f"{self.endpoint}; copy")
                self.line_of(first, "waiting for 1 node more: .*; turned away: 127.0.0.1: its "
                                    "secret is not ours; copy")
                self.assertIn("turned away: 127.0.0.1", self.ctl("status"))


if __name__ == "__main__":
    main()
