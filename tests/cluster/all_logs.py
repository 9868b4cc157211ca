"""ddpctl logs --all: what the workers of all nodes have written, through their rendezvous.

usage: all_logs.py BIN_DIR [unittest's words]
"""

import os
import re
import urllib.error
import urllib.request

from waiting_workers import PATIENCE_S, WaitingWorkersTest, main

LONG = 50000
# No rendezvous answers on this address. ddpctl asks it unless a flag names another one.
NO_RENDEZVOUS = {"PET_RDZV_ENDPOINT": "127.0.0.1:1"}
WORKER = """#!/bin/sh
echo "rank $RANK begins"
echo "rank $RANK complains" >&2
test $RANK = 3 && seq 1 %d
while ! test -e end; do sleep 0.05; done
echo "rank $RANK ends"
""" % LONG


class AllLogs(WaitingWorkersTest):
    worker = WORKER

    def start_job(self):
        """Two nodes of two ranks, all of which have begun to wait."""
        endpoint = self.start_daemon()
        self.nodes = [self.start(
            "ddprun", "--nnodes", "2", "--nproc-per-node", "2", "--rdzv-id", "test",
            "--rdzv-endpoint", endpoint, "--log-dir", self.path(f"logs{number}"),
            "--max-restarts", "0", "--redirects", "3", "./worker") for number in range(2)]
        return endpoint

    def logs(self, *flags):
        return self.ask("logs", "--all", *flags, **NO_RENDEZVOUS)

    def follow(self, *flags):
        return self.start("ddpctl", "logs", "--all", "--follow", *flags, stderr=None,
                          **NO_RENDEZVOUS)

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

        # ddpctl shows chosen lines of one rank, and the end of its log.
        found = self.logs(*there, "--rank", "3", "--grep", "^4999[89]$").stdout
        self.assertEqual([line.split("] ")[1] for line in found.splitlines()], ["49998", "49999"])
        found = self.logs(*there, "--rank", "2", "-n", "1", "--generation", "1").stdout
        self.assertEqual(len(found.splitlines()), 2)  # of each stream one
        self.assertEqual(self.logs(*there, "--rank", "9").returncode, 1)
        self.assertIn("--grep (", self.logs(*there, "--grep", "(").stdout)

        # A follower gets every line, to the last one.
        follower = self.follow(*there, "-n", "1", "--grep", "rank")
        first = [follower.stdout.readline() for _ in range(4)]
        self.assertIn("rank", "".join(first))
        self.end()
        rest = "".join(first) + follower.stdout.read()
        for rank in range(4):
            self.assertRegex(rest, rf"\[{rank} \S+\] rank {rank} ends\n")
        self.assertEqual(follower.wait(PATIENCE_S), 0)
        self.end(*self.nodes)

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
                         self.path("logs"), "--redirects", "3", "./worker")
        where = ("--log-dir", self.path("logs"), "--rdzv-id", name)
        lines = self.lines_once_there(*where, count=4)
        self.assertEqual(len(lines), 4)
        follower = self.follow(*where)
        first = [follower.stdout.readline() for _ in range(4)]
        self.assertEqual(len([line for line in first if "begins" in line]), 2)
        self.end()
        rest = follower.stdout.read()
        self.assertRegex(rest, r"\[0 \S+\] rank 0 ends\n")
        self.assertRegex(rest, r"\[1 \S+\] rank 1 ends\n")
        self.end(job)


if __name__ == "__main__":
    main()
