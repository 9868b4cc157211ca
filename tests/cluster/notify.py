"""--notify: a command and a URL are told what happens to a job, once each and in order, however
they behave.

usage: notify.py BIN_DIR TEST_WORKER [unittest's words]
"""

import contextlib
import http.server
import json
import os
import re
import socket
import ssl
import subprocess
import sys
import tempfile
import threading
import unittest

PATIENCE_S = 120  # on a machine that has no time for it
BIN = WORKER = ""
TOKEN = "T0-secret"
PACKAGE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../worker_runtime/python")


class Hook(http.server.BaseHTTPRequestHandler):
    """Answers with the statuses that it was given, then with 204."""

    def do_POST(self):
        body = self.rfile.read(int(self.headers["Content-Length"])).decode()
        self.server.asked.append((self.path, self.headers["Content-Type"]))
        status = self.server.statuses.pop(0) if self.server.statuses else 204
        if status == 204:
            self.server.taken.append(json.loads(body))
        with contextlib.suppress(ConnectionError):
            self.send_response(status)
            self.end_headers()

    def log_message(self, *_):
        pass


@contextlib.contextmanager
def hook(*statuses, context=None):
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Hook)
    if context:
        server.socket = context.wrap_socket(server.socket, server_side=True)
        server.handle_error = lambda *_: None  # who does not trust it goes away
    server.statuses, server.asked, server.taken = list(statuses), [], []
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


class Notify(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="ddprun-notify-")
        self.addCleanup(folder.cleanup)
        self.folder = folder.name

    def path(self, name):
        return os.path.join(self.folder, name)

    def start(self, *words, variables=None):
        kept = {key: value for key, value in os.environ.items()
                if not re.match("SLURM|PET_|DDPRUN_|TORCH|AWS_|KUBERNETES_|SSL_", key)}
        job = subprocess.Popen(
            [os.path.join(BIN, "ddprun"), "--log-dir", self.path("logs"), *words],
            env={**kept, **(variables or {})}, cwd=self.folder, text=True,
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        self.addCleanup(job.stdout.close)
        self.addCleanup(job.kill)
        return job

    def run_job(self, *words, code=0, variables=None):
        job = self.start(*words, variables=variables)
        text, _ = job.communicate(timeout=PATIENCE_S)
        self.assertEqual(job.returncode, code, text)
        return text

    def restarted(self, notify, script=("--when-restart", "0", "--exit-code", "7"), **more):
        return self.run_job("--rdzv-id", "llama", "--max-restarts", "1", *notify, WORKER, *script,
                            **more)

    def check(self, notices, *words):
        self.assertEqual([one["notice"] for one in notices], list(words), notices)
        self.assertEqual([one["number"] for one in notices], list(range(1, len(words) + 1)))
        for one in notices:
            self.assertEqual(one["job"], "llama")
            self.assertEqual(len(one["run_id"]), 32)
            self.assertTrue(one["sender"])

    def kept(self, name):
        with open(self.path(name), encoding="utf-8") as lines:
            return [json.loads(line) for line in lines]

    # ------------------------------------------------------------------------------- commands

    def test_a_command_reads_restart_and_verdict(self):
        self.restarted(["--notify", "cat >> told"])
        notices = self.kept("told")
        self.check(notices, "restart", "verdict")
        self.assertEqual(notices[0]["generation"], 2)
        self.assertIn("exited with code 7", notices[0]["text"])
        self.assertEqual((notices[1]["verdict"], notices[1]["exit_code"]), ("succeeded", 0))

    def test_a_command_that_fails_first_is_run_again(self):
        self.restarted(["--notify", "test -e begun || { touch begun; exit 3; }; cat >> told"])
        self.check(self.kept("told"), "restart", "verdict")

    def test_a_command_that_always_fails_is_a_line_and_changes_no_exit_code(self):
        text = self.run_job("--notify", "echo x >> tried; exit 3", WORKER, "--exit-code", "9",
                            code=9)
        said = [line for line in text.splitlines() if "--notify" in line]
        self.assertEqual(said, ['ddprun: --notify, the command: the notice "verdict" is lost: it '
                                'exited with code 3 (3 attempts)'], text)
        with open(self.path("tried"), encoding="utf-8") as lines:
            self.assertEqual(len(lines.readlines()), 3)

    def test_a_command_that_never_ends_is_not_waited_for_for_ever(self):
        text = self.run_job("--notify", "exec sleep 1000", WORKER, "--exit-code", "9", code=9)
        self.assertIn("--notify, the command: 1 notice was not delivered within 15 s of the end: "
                      "ddprun waits no longer", text)

    def test_a_command_reads_that_nobody_tells_a_step(self):
        with open(self.path("stuck.py"), "w", encoding="utf-8") as script:
            script.write("import os, time, ddprun\n"
                         "ddprun.worker().progress(41)\n"
                         "while not os.path.exists('heard'):\n"
                         "    time.sleep(0.05)\n")
        self.run_job("--rdzv-id", "llama", "--hang-notice", "1", "--notify",
                     "cat >> told; touch heard", sys.executable, "stuck.py",
                     variables={"PYTHONPATH": PACKAGE})
        [notice] = self.kept("told")[:1]
        self.assertEqual((notice["notice"], notice["event"]), ("hang", "hang_notice"))
        self.assertEqual((notice["rank"], notice["step"], notice["generation"]), (0, 41, 1))
        self.assertIn("has told a step for 1 s", notice["text"])

    # ------------------------------------------------------------------------------------ URLs

    def test_a_url_that_fails_first_gets_each_notice_once_and_in_order(self):
        with hook(500) as server:
            url = f"http://127.0.0.1:{server.server_port}/{TOKEN}?a=b"
            text = self.restarted(["--notify", url])
        self.assertEqual(server.asked, [(f"/{TOKEN}?a=b", "application/json")] * 3)
        self.check(server.taken, "restart", "verdict")
        self.assertNotIn(TOKEN, text)

    def test_a_url_that_nobody_serves_is_a_line_without_its_path(self):
        with hook() as gone:
            port = gone.server_port
        text = self.run_job(WORKER, variables={"PET_NOTIFY": f"http://127.0.0.1:{port}/{TOKEN}"})
        self.assertIn(f'--notify, http://127.0.0.1:{port}: the notice "verdict" is lost: '
                      "Connection refused (3 attempts)", text)
        self.assertNotIn(TOKEN, text)

    def test_the_variable_is_not_shown_and_not_for_workers(self):
        url = f"https://localhost/{TOKEN}"
        shown = self.run_job("--dry-run", WORKER, variables={"PET_NOTIFY": url})
        self.assertIn("notices  to https://localhost\n", shown)
        self.assertNotIn(TOKEN, shown)
        with hook() as server:
            url = f"http://127.0.0.1:{server.server_port}/{TOKEN}"
            text = self.run_job("--no-python", "/usr/bin/env", variables={"PET_NOTIFY": url})
        self.assertIn("LOCAL_RANK=0", text)
        self.assertNotIn(TOKEN, text)
        self.assertEqual([one["notice"] for one in server.taken], ["verdict"])

    def test_https_needs_a_certificate_that_this_machine_trusts(self):
        subprocess.run(["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt",
                        "ec_paramgen_curve:P-256", "-nodes", "-days", "2", "-subj", "/CN=localhost",
                        "-addext", "subjectAltName=DNS:localhost", "-keyout", self.path("key"),
                        "-out", self.path("cert")], check=True, capture_output=True)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(self.path("cert"), self.path("key"))
        trusted = {"SSL_CERT_FILE": self.path("cert")}
        with hook(context=context) as server:
            url = f"https://localhost:{server.server_port}/"
            other = f"https://127.0.0.1:{server.server_port}/"
            self.assertIn("is lost: certificate verify failed",
                          self.run_job("--notify", url, WORKER))
            self.assertIn("is lost: certificate verify failed",
                          self.run_job("--notify", other, WORKER, variables=trusted))
            self.assertEqual(server.taken, [])
            self.run_job("--notify", url, WORKER, variables=trusted)
        self.assertEqual([one["notice"] for one in server.taken], ["verdict"])

    # ----------------------------------------------------------------------------------- nodes

    def test_of_several_nodes_group_rank_0_tells_it(self):
        secret = self.path("secret")
        with open(os.open(secret, os.O_CREAT | os.O_WRONLY, 0o600), "w", encoding="utf-8") as file:
            file.write("5" * 64)
        with socket.create_server(("127.0.0.1", 0)) as listener:
            endpoint = f"127.0.0.1:{listener.getsockname()[1]}"
            daemon = subprocess.Popen(
                [os.path.join(BIN, "ddprun-rendezvous"), "--listen-fd", str(listener.fileno()),
                 "--secret-file", secret], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
                pass_fds=[listener.fileno()])
        self.addCleanup(daemon.wait)
        self.addCleanup(daemon.kill)
        jobs = [self.start("--rdzv-id", "llama", "--rdzv-endpoint", endpoint, "--nnodes", "2",
                           "--node-rank", str(rank), "--node-id", f"n{rank}", "--secret-file",
                           secret, "--max-restarts", "1", "--notify", f"cat >> told{rank}", WORKER,
                           "--when-restart", "0", "--when-group-rank", "1", "--exit-code", "7")
                for rank in range(2)]
        for job in jobs:
            text, _ = job.communicate(timeout=PATIENCE_S)
            self.assertEqual(job.returncode, 0, text)
        self.check(self.kept("told0"), "restart", "verdict")
        self.assertFalse(os.path.exists(self.path("told1")))


if __name__ == "__main__":
    BIN, WORKER = (os.path.abspath(word) for word in sys.argv[1:3])
    unittest.main(argv=[sys.argv[0], *sys.argv[3:]], verbosity=2)
