"""ddpctl on a machine with jobs of several rendezvous, of which it is told none.

usage: finding_jobs.py BIN_DIR [unittest's words]
"""

import json
import os
import re
import resource
import signal
import subprocess
import urllib.error
import urllib.request

from waiting_workers import PATIENCE_S, WaitingWorkersTest, main

WORKER = """#!/bin/sh
echo "rank $RANK begins"
while ! test -e end; do sleep 0.05; done
exit ${CODE:-0}
"""


class FindingJobs(WaitingWorkersTest):
    worker = WORKER

    def start_node(self, job, *flags, workers=2, begins=True, **variables):
        node = self.start("ddprun", "--rdzv-id", job, "--nproc-per-node", str(workers),
                          "--max-restarts", "0", *flags, "./worker", **variables)
        node.begins = workers if begins else 0
        return node

    def begin(self, *nodes):
        for node in nodes:
            self.wait_for(node, "begins", node.begins)

    def ctl(self, *words, code=0, **variables):
        done = self.ask(*words, **variables)
        self.assertEqual(done.returncode, code, (words, done.stdout, done.stderr))
        return done

    def two_nodes(self, job, endpoint, **variables):
        # One names the daemon otherwise: it is the same one.
        other = endpoint.replace("127.0.0.1", "localhost")
        return [self.start_node(job, "--nnodes", "2", "--rdzv-endpoint", place, **variables)
                for place in (endpoint, other)]

    def test_jobs_of_all_rendezvous_are_found(self):
        first, second = self.start_daemon(), self.start_daemon()
        two, alone = self.name("two"), self.name("alone")
        nodes = self.two_nodes(two, first)
        nodes.append(self.start_node(alone))
        self.begin(*nodes)
        # It has no worker yet, and no folder.
        waiting = self.start_node(self.name("waiting"), "--nnodes", "2", "--rdzv-endpoint", second,
                                  begins=False)
        while "forming" not in self.ctl("status", "--rdzv-endpoint", second).stdout:
            self.assertIsNone(waiting.poll())

        text = self.ctl("status").stdout
        places = {first, first.replace("127.0.0.1", "localhost")}  # whichever node is first
        self.assertRegex(text, rf"(?m)^rendezvous (?:{'|'.join(places)})\njob {two}: running")
        self.assertRegex(text, rf"(?m)^rendezvous {second}\njob {self.name('waiting')}: forming")
        self.assertRegex(text, rf"(?m)^job {alone}: worker, pid ")
        self.assertEqual(text.count(f"job {two}"), 1)
        told = json.loads(self.ctl("status", "--json").stdout)
        asked = {job["job"]: job["rendezvous"] for job in told["jobs"]}
        self.assertIn(asked[two], places)
        self.assertEqual(asked[self.name("waiting")], second)
        self.assertIn(alone, [run.get("job") for run in told["runs"]])

        jobs = self.ctl("jobs").stdout
        self.assertRegex(jobs, rf"(?m)^{two}_\w+ .* {first} ")
        self.assertRegex(jobs, rf"(?m)^{alone}_\w+ +worker +\d+ +1 +- +- +-$")
        # A job that is named is asked for where its nodes are.
        for words in (["status", "--rdzv-id", two], ["events", "--rdzv-id", two],
                      ["logs", "--all", "--rdzv-id", two]):
            self.assertRegex(self.ctl(*words).stdout, rf"{two}|rank 0 begins")
        several = self.ctl("logs", "--all", code=2).stderr
        self.assertIn("name a job with --rdzv-id", several)
        # Whom the environment names is asked, and no other.
        self.ctl("status", code=69, PET_RDZV_ENDPOINT="127.0.0.1:1")
        self.end(*nodes)
        waiting.terminate()

    def test_two_nodes_here_are_one_job(self):
        endpoint = self.start_daemon()
        job = self.name("pair")
        nodes = self.two_nodes(job, endpoint)
        self.begin(*nodes)
        text = self.ctl("status", job).stdout
        self.assertEqual(len(re.findall(rf"(?m)^job {job}: running", text)), 1)
        names = re.findall(r"(?m)^  (\S+) +member ", text)
        self.assertEqual(len(set(names)), 2)
        self.assertEqual(len(json.loads(self.ctl("status", job, "--json").stdout)["jobs"]), 1)

        # Stacks of all ranks, or of one node; from the rendezvous the same.
        for words in ([], ["--rdzv-endpoint", endpoint]):
            shown = self.ctl("stacks", job, *words).stdout
            self.assertEqual(self.ranks_of(shown), {0, 1, 2, 3}, shown)
        shown = self.ctl("stacks", job, "--rank", "0,3").stdout
        self.assertEqual(re.findall(r"(?m)^rank (\d+), process", shown), ["0", "3"])
        there = self.ctl("stacks", job, "--rank", "0,3", "--rdzv-endpoint", endpoint).stdout
        self.assertEqual(re.findall(r"(?m)^rank (\d+), process", there), ["0", "3"])
        halves = [self.ranks_of(self.ctl("stacks", job, "--node", name).stdout) for name in names]
        self.assertEqual(sorted(map(sorted, halves)), [[0, 1], [2, 3]])
        self.assertIn(f"has no node elsewhere on this machine; it has {names[0]}",
                      self.ctl("stacks", job, "--node", "elsewhere", code=1).stderr)

        self.assertEqual(self.ctl("report", job).stdout.count(f"job {job}: worker"), 2)
        self.assertIn("its rendezvous has the page: http://",
                      self.ctl("page", job, code=1).stderr)
        self.assertIn("choose one with --node",
                      self.ctl("report", job, "--bundle", "bundle", code=1).stderr)
        self.ctl("report", job, "--bundle", "bundle", "--node", names[1])
        hosts = {json.loads(line).get("host")
                 for line in self.ctl("events", job).stdout.splitlines()}
        self.assertLessEqual(set(names), hosts)
        own = self.ctl("events", job, "--node", names[1]).stdout.splitlines()[0]
        self.assertEqual(json.loads(own)["host"], names[1])
        logs = self.ctl("logs", "--rdzv-id", job)
        self.assertIn(f"{names[0]}, {names[1]}: choose one with --node", logs.stderr)
        said = {self.ctl("logs", "--rdzv-id", job, "--node", name).stdout for name in names}
        self.assertEqual(len(said), 2)
        self.assertIn("orders for job", self.ctl("restart", "--rdzv-id", job, code=1).stderr)

        # A rendezvous that does not answer any more leaves its nodes.
        answered = self.ctl("status", job, "--insecure")
        self.assertIn("its nodes on this machine are asked instead", answered.stderr)
        self.assertEqual(answered.stdout.count(f"job {job}: worker"), 2)
        self.end(*nodes)

    def test_a_job_that_is_over_is_answered_from_its_folders(self):
        daemon = self.start("ddprun-rendezvous", "--port", "0")
        endpoint = self.wait_for(daemon, r"listening on (127\.0\.0\.1:\d+)").group(1)
        job, killed = self.name("over"), self.name("killed")
        nodes = self.two_nodes(job, endpoint, CODE="17")
        other = self.start_node(killed)
        self.begin(*nodes, other)
        other.kill()
        other.wait(PATIENCE_S)
        self.end(*nodes, code=17)
        daemon.kill()
        daemon.wait(PATIENCE_S)

        text = self.ctl("status", job).stdout
        self.assertRegex(text, rf"^job {job}: over, exit code 17: rank \d on \S+ exited with")
        self.assertRegex(text, r"(?m)^  ended   20[^\n]*, started 20")
        self.assertRegex(text, r"(?m)^  failed  rank \d on \S+ exited with code 17: rank \d begins")
        self.assertEqual(len(re.findall(r"(?m)^  logs    /\S+ of \S+, exit code 17$", text)), 2)
        # The commands that the text names may be typed.
        commands = re.findall(r"(?m)^(?:  next|      )    (ddpctl .*)$", text)
        self.assertEqual([command.split()[1] for command in commands], ["report", "logs", "page"])
        for command in commands[:2]:
            self.assertTrue(self.ctl(*command.split()[1:]).stdout)
        self.assertRegex(self.ctl("report", job).stdout,
                         r"(?m)^  HOST +RANK +END +AT +CAUSE\n"
                         r"  \S+ +\d +exit code 17 +20\S+ +rank \d begins$")
        told = json.loads(self.ctl("status", job, "--json").stdout)
        self.assertIs(told["ended"], True)
        self.assertEqual((told["exit_code"], told["verdict"]), (17, "failed"))
        self.assertEqual(len(told["nodes"]), 2)
        self.assertEqual({failed["exit_code"] for failed in told["failed"]}, {17})

        self.check_page(job, exit_code=17)

        text = self.ctl("status", killed).stdout
        self.assertRegex(text, rf"^job {killed}: its ddprun was killed, and has left no verdict\n")
        self.assertEqual(json.loads(self.ctl("status", killed, "--json").stdout)["state"], "killed")
        self.check_page(killed, exit_code=None)
        self.assertIn("no run here is nothing", self.ctl("status", "nothing", code=1).stderr)

    def test_a_report_that_another_program_wrote_is_shown_as_far_as_it_goes(self):
        folder = self.path("odd")
        os.mkdir(folder)
        for odd in ({"failures": "many", "failed_ranks": [1, {"rank": None}], "first_failure": []},
                    {"failures": -1, "failed_ranks": {"rank": "\x1b[2J"}, "time": 3}):
            with open(os.path.join(folder, "report.json"), "w", encoding="utf-8") as file:
                json.dump(odd, file)
            text = self.ctl("report", folder).stdout
            self.assertIn("HOST", text)
            self.assertNotIn("\x1b", text)
            self.assertNotIn("more", text)

    def check_page(self, job, exit_code):
        """The page of a job that is over, from a folder of it."""
        page = self.start("ddpctl", "page", job)
        address = page.stdout.readline().strip()
        self.assertRegex(address, r"^http://127\.0\.0\.1:\d+/$")

        def ask(path, **headers):
            request = urllib.request.Request(address + path, headers=headers)
            with urllib.request.urlopen(request, timeout=PATIENCE_S) as answer:
                return answer.read().decode()

        self.assertIn("page.js", ask(""))
        [told] = json.loads(ask("status"))["jobs"]
        self.assertEqual((told["job"], told["phase"], told.get("exit_code"), told["recorded"]),
                         (job, "closed", exit_code, True))
        [node] = told["nodes"]
        ranks = list(range(node["base_rank"], node["base_rank"] + node["slots"]))
        self.assertEqual(len(ranks), 2)
        if exit_code is not None:  # A ddprun that was killed could not keep it.
            self.assertEqual([rank["rank"] for rank in told["ranks"]], ranks)
            # Those that were stopped for another one's failure have not failed.
            self.assertLessEqual({rank["phase"] for rank in told["ranks"]}, {"failed", "spawned"})
        stream = ask("events?follow=1", Accept="text/event-stream")  # It ends.
        kinds = [json.loads(line[6:])["event"] for line in stream.splitlines()
                 if line.startswith("data: ")]
        self.assertEqual(kinds[0], "begun")
        self.assertEqual("verdict" in kinds, exit_code is not None)
        logs = ask(f"logs?job={job}&rank={ranks[1]}&lines=200")
        self.assertRegex(logs, rf"^\[{ranks[1]} \S+\] rank {ranks[1]} begins\n$")
        with self.assertRaises(urllib.error.HTTPError) as refused:
            ask(f"stacks?job={job}&rank={ranks[1]}")
        self.assertIn("its workers have ended", refused.exception.read().decode())
        refused.exception.close()
        if os.geteuid() == 0:  # The page answers only its user.
            port = address.rpartition(":")[2].strip("/")
            asking = f"exec 3<>/dev/tcp/127.0.0.1/{port} && echo connected && " \
                     r"printf 'GET / HTTP/1.0\r\n\r\n' >&3; cat <&3"
            for user, is_answered in ((0, True), (65534, False)):
                asked = subprocess.run(
                    ["bash", "-c", asking], user=user, cwd="/", capture_output=True, text=True,
                    timeout=PATIENCE_S, check=False)
                self.assertTrue(asked.stdout.startswith("connected\n"), asked.stderr)
                self.assertEqual("HTTP/1" in asked.stdout, is_answered, asked.stdout[:99])
        page.send_signal(signal.SIGINT)
        self.assertEqual(page.wait(PATIENCE_S), 0)

    def test_lines_that_logs_have_lost_are_told(self):
        endpoint = self.start_daemon()
        job = self.name("lost")
        self.write_worker(
            WORKER.replace("while", "test $RANK = 1 && seq -f 'line %06g' 20000\nwhile"))

        def small_files():
            signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
            resource.setrlimit(resource.RLIMIT_FSIZE, (100000, 100000))

        node = self.start_node(job, "--nnodes", "1:2", "--rdzv-endpoint", endpoint, "--rdzv-conf",
                               "last_call_timeout=0", "--redirects", "3",
                               preexec_fn=small_files)
        said = self.wait_for(node, "writing the log file .*: File too large")
        self.assertTrue(said)
        lost = r"rank 1: 11,66\d lines of its log were lost: File too large"
        while not re.search(rf"(?m)^  lost    {lost}$", self.ctl("status", job).stdout):
            self.assertIsNone(node.poll())
        [told] = json.loads(self.ctl("status", job, "--json").stdout)["log_lost"]
        self.assertEqual((told["rank"], told["why"]), (1, "File too large"))
        # The rendezvous hears of it from the node.
        self.assertRegex(self.ctl("status", "--rdzv-endpoint", endpoint).stdout, lost)
        self.end(node)
        self.assertRegex(self.ctl("status", job).stdout, rf"(?m)^  lost    {lost}$")
        self.assertRegex(self.ctl("runs", "--rdzv-id", job).stdout, rf"every rank exited 0; {lost}")

    @staticmethod
    def ranks_of(text):
        ranks = set()
        for found in re.findall(r"(?m)^=== \d+ ranks? \(([\d,-]+)\)", text):
            for part in found.split(","):
                first, _, last = part.partition("-")
                ranks.update(range(int(first), int(last or first) + 1))
        return ranks


if __name__ == "__main__":
    main()
