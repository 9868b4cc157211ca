"""--drain-on: notices that a node will be taken away, from a metadata server of the test's own on
loopback, from files and from commands.

usage: drain_notices.py BIN_DIR TEST_WORKER [unittest's words]
"""

import contextlib
import datetime
import http.server
import json
import os
import re
import select
import signal
import subprocess
import sys
import tempfile
import threading
import unittest

PATIENCE_S = 120  # on a machine that has no time for it
BIN = WORKER = ""
SPOT = "/latest/meta-data/spot/instance-action"
REBALANCE = "/latest/meta-data/events/recommendations/rebalance"


class Metadata(http.server.BaseHTTPRequestHandler):
    """As an EC2 instance has it with IMDSv2 required: nothing without a token."""

    TOKEN = "AQAEAPexample=="

    def do_PUT(self):
        seconds = self.headers.get("X-aws-ec2-metadata-token-ttl-seconds", "")
        is_right = self.path == "/latest/api/token" and seconds.isdigit() and int(seconds) <= 21600
        self.answer(self.server.token_status if is_right else 400, self.TOKEN)

    def do_GET(self):
        if self.headers.get("X-aws-ec2-metadata-token") != self.TOKEN:
            self.answer(401, "")
            return
        body = self.server.notices.get(self.path)
        self.answer(404 if body is None else 200, body or "")
        if self.path == REBALANCE:
            self.server.was_asked.set()

    def answer(self, status, body):
        with contextlib.suppress(ConnectionError):  # who has the notice need not wait for more
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body.encode())

    def log_message(self, *_):
        pass


@contextlib.contextmanager
def metadata_server(token_status=200):
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Metadata)
    server.notices = {}
    server.was_asked = threading.Event()
    server.token_status = token_status
    server.variables = {
        "AWS_EC2_METADATA_SERVICE_ENDPOINT": f"http://127.0.0.1:{server.server_port}/"}
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


class DrainNotices(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="ddprun-notices-")
        self.addCleanup(folder.cleanup)
        self.folder = folder.name
        self.heard = []

    def path(self, name):
        return os.path.join(self.folder, name)

    def start(self, drain_on, *script, variables=None):
        kept = {key: value for key, value in os.environ.items()
                if not re.match("SLURM|PET_|DDPRUN_|TORCH|AWS_|KUBERNETES_", key)}
        job = subprocess.Popen(
            [os.path.join(BIN, "ddprun"), "--log-dir", self.path("logs"), "--drain-on", drain_on,
             WORKER, "--print", *script],
            env={**kept, **(variables or {})}, cwd=self.folder, text=True,
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        self.addCleanup(job.stdout.close)
        self.addCleanup(job.kill)
        return job

    def hangs_until_asked(self, drain_on, variables=None):
        job = self.start(drain_on, "--exit-on-signal", "15", "0", "--hang", variables=variables)
        self.wait_for(job, r"worker rank=0")
        return job

    def wait_for(self, job, pattern):
        for line in job.stdout:
            self.heard.append(line)
            found = re.search(pattern, line)
            if found:
                return found
        self.fail(f"{pattern} was not said:\n" + "".join(self.heard))

    def ends_with(self, job, code):
        self.heard += list(job.stdout)
        self.assertEqual(job.wait(PATIENCE_S), code, "".join(self.heard))

    # ------------------------------------------------------------------------------------- AWS

    def test_a_spot_notice_is_a_drain_with_its_deadline(self):
        with metadata_server() as server:
            job = self.hangs_until_asked("aws", server.variables)
            self.assertTrue(server.was_asked.wait(PATIENCE_S))
            at = datetime.datetime.now(datetime.timezone.utc) + datetime.timedelta(seconds=20)
            server.notices[SPOT] = json.dumps(
                {"action": "terminate", "time": at.strftime("%Y-%m-%dT%H:%M:%SZ")})
            left = self.wait_for(job, r"AWS takes this instance away \(terminate\) in \d+ s: "
                                      r"stopping, workers have (\d+) s to save and end")[1]
            self.assertLess(int(left), 18)
            self.ends_with(job, 75)

    def test_a_recommendation_to_rebalance_is_a_drain_too(self):
        with metadata_server() as server:
            server.notices[REBALANCE] = '{"noticeTime": "2026-11-23T05:00:00Z"}'
            job = self.start("aws", "--exit-on-signal", "15", "0", "--hang",
                             variables=server.variables)
            self.wait_for(job, r"AWS recommends to leave this instance \(rebalance\): ")
            self.ends_with(job, 75)

    def test_a_server_that_gives_no_token_is_told_once_and_the_job_goes_on(self):
        with metadata_server(token_status=403) as server:
            job = self.start("aws", "--wait-for-file", self.path("end"),
                             variables=server.variables)
            self.wait_for(job, r"metadata server at 127\.0\.0\.1:\d+: it gives no token "
                               r"\(HTTP status 403\); asking again every 5 s")
            with open(self.path("end"), "w", encoding="utf-8"):
                pass
            self.ends_with(job, 0)

    def test_a_server_that_is_not_there_is_told_and_the_job_goes_on(self):
        with metadata_server() as gone:
            variables = gone.variables
        job = self.start("aws", "--wait-for-file", self.path("end"), variables=variables)
        self.wait_for(job, r"metadata server at 127\.0\.0\.1:\d+: Connection refused")
        with open(self.path("end"), "w", encoding="utf-8"):
            pass
        self.ends_with(job, 0)

    # ----------------------------------------------------------------------------------- files

    def test_a_file_that_comes_to_be_there_is_a_drain(self):
        job = self.hangs_until_asked("file:leave")
        with open(self.path("other"), "w", encoding="utf-8"):
            pass
        with open(self.path("leave"), "w", encoding="utf-8"):
            pass
        self.wait_for(job, r"/leave is there: stopping, workers have 30 s to save and end")
        self.ends_with(job, 75)

    def test_a_file_may_tell_the_deadline(self):
        with open(self.path("new"), "w", encoding="utf-8") as text:
            text.write("13\n")
        job = self.hangs_until_asked("file:" + self.path("leave"))
        os.rename(self.path("new"), self.path("leave"))
        self.wait_for(job, r"/leave is there in 1\d s: stopping, workers have (9|10) s to save "
                           r"and end")
        self.ends_with(job, 75)

    def test_a_file_that_is_there_already_counts(self):
        with open(self.path("leave"), "w", encoding="utf-8"):
            pass
        job = self.start("file:leave", "--exit-on-signal", "15", "0", "--hang")
        self.wait_for(job, r"/leave is there: ")
        self.ends_with(job, 75)

    def test_a_folder_that_is_not_there_is_said_and_looked_for(self):
        job = self.start("file:later/leave", "--exit-on-signal", "15", "0", "--hang")
        self.wait_for(job, r"file:\S+/later/leave: inotify cannot watch \S+/later/: No such file "
                           r"or directory; it is looked at every 5 s")
        os.mkdir(self.path("later"))
        with open(self.path("later/leave"), "w", encoding="utf-8"):
            pass
        self.wait_for(job, r"/leave is there: ")
        self.ends_with(job, 75)

    # -------------------------------------------------------------------------------- commands

    def test_a_command_that_ends_with_0_is_a_drain(self):
        os.mkfifo(self.path("fifo"))
        job = self.hangs_until_asked(f"cmd:read word < {self.path('fifo')}")
        with open(self.path("fifo"), "w", encoding="utf-8") as fifo:
            fifo.write("go\n")
        self.wait_for(job, r"the drain command 'read word < \S+' ended with 0: stopping")
        self.ends_with(job, 75)

    def test_a_command_that_prints_a_deadline_need_not_end(self):
        os.mkfifo(self.path("fifo"))
        command = f"cat {self.path('fifo')}; echo 60,60; exec sleep 1000"
        job = self.hangs_until_asked(f"file:{self.path('leave')},cmd:{command}")
        with open(self.path("fifo"), "w", encoding="utf-8") as fifo:
            fifo.write("nothing\n13\n")
        self.wait_for(job, r"the drain command '.*' says so in 1\d s: stopping, workers have "
                           r"(9|10) s to save and end")
        self.ends_with(job, 75)

    def test_a_command_that_cannot_be_run_is_told_and_the_job_goes_on(self):
        job = self.start("cmd:no-such-command-anywhere", "--wait-for-file", self.path("end"))
        self.wait_for(job, r"--drain-on cmd:no-such-command-anywhere: exited with code 127; it is "
                           r"started again every 5 s")
        with open(self.path("end"), "w", encoding="utf-8"):
            pass
        self.ends_with(job, 0)

    def test_a_command_ends_with_ddprun_however_that_ends(self):
        for number in (signal.SIGTERM, signal.SIGKILL):
            fifo = self.path(f"fifo{number}")
            os.mkfifo(fifo)
            job = self.hangs_until_asked(f"cmd:echo $$ > {fifo}; exec sleep 1000")
            with open(fifo, encoding="utf-8") as told:
                command = os.pidfd_open(int(told.read()))
            job.send_signal(number)
            job.wait(PATIENCE_S)
            readable, _, _ = select.select([command], [], [], PATIENCE_S)
            os.close(command)
            self.assertTrue(readable)


if __name__ == "__main__":
    BIN, WORKER = (os.path.abspath(word) for word in sys.argv[1:3])
    unittest.main(argv=[sys.argv[0], *sys.argv[3:]], verbosity=2)
