"""/metrics of a daemon with real jobs: checked by promtool, scraped by a real Prometheus, and asked
by what the dashboard asks.

usage: metrics.py BIN_DIR DASHBOARD DOCUMENT [unittest's words]
"""

import contextlib
import json
import os
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import unittest
import urllib.error
import urllib.parse
import urllib.request

PATIENCE_S = 120  # on a machine that has no time for it
BIN = DASHBOARD = DOCUMENT = ""

# Fails once, then asks the store for a sign of life, and makes steps until the test writes to it.
WORKER = """import os, select, socket, struct, sys, time
import ddprun
if os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
    sys.exit(3)
worker = ddprun.worker()
store = socket.create_connection((os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])))
store.sendall(struct.pack("=BIBI", 0, 0x3C85F7CE, 13, 7))
store.recv(4)
pipe = os.open(sys.argv[1], os.O_RDONLY | os.O_NONBLOCK)
print(f"rank {worker.rank} waits", flush=True)
step = 0
while not select.select([pipe], [], [], 0.05)[0] or os.read(pipe, 3) == b"":
    time.sleep(0.05)  # of an empty pipe that nobody has open
    step += 1
    worker.progress(step, samples=8)
"""
PACKAGE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../worker_runtime/python")


def free_port():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def ask(port, path, headers=None):
    request = urllib.request.Request(f"http://127.0.0.1:{port}{path}", headers=headers or {})
    with urllib.request.urlopen(request, timeout=PATIENCE_S) as answer:
        return answer.headers, answer.read().decode()


def names_of(text):
    """Returns the names of all figures in `text`."""
    return {re.split(r"[{ ]", line)[0] for line in text.splitlines() if not line.startswith("#")}


class Metrics(unittest.TestCase):
    def setUp(self):
        self.stack = contextlib.ExitStack()
        self.addCleanup(self.stack.close)
        self.folder = self.stack.enter_context(tempfile.TemporaryDirectory(prefix="ddprun-"))
        kept = {key: value for key, value in os.environ.items()
                if not re.match("SLURM|PET_|DDPRUN_|TORCH|KUBERNETES_", key)}
        self.environment = {**kept, "HOME": self.folder, "PYTHONPATH": PACKAGE}
        self.pipe = os.path.join(self.folder, "pipe")
        os.mkfifo(self.pipe)
        self.worker = os.path.join(self.folder, "worker.py")
        with open(self.worker, "w", encoding="utf-8") as file:
            file.write(WORKER)
        daemon = self.start("ddprun-rendezvous", "--port", "0", stdout=subprocess.PIPE)
        self.port = int(daemon.stdout.readline().rsplit(":", 1)[1])

    def start(self, program, *arguments, **options):
        process = subprocess.Popen([os.path.join(BIN, program), *arguments], text=True,
                                   cwd=self.folder, env=self.environment,
                                   stdin=subprocess.DEVNULL, **options)
        self.stack.callback(self.end, process)
        return process

    @staticmethod
    def end(process):
        process.terminate()
        process.wait(PATIENCE_S)
        if process.stdout:
            process.stdout.close()

    @contextlib.contextmanager
    def job(self):
        """It has restarted once, and runs."""
        job = self.start("ddprun", "--nnodes", "1:2", "--nproc-per-node", "2", "--max-restarts",
                         "3", "--rdzv-id", "llama", "--rdzv-endpoint", f"127.0.0.1:{self.port}",
                         "--rdzv-conf", "last_call_timeout=0", "--log-dir", self.folder + "/logs",
                         "--warm", "off", sys.executable, self.worker, self.pipe,
                         stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        said = ""
        while said.count("waits") < 2:  # One line may have both: their bytes pass as they are.
            line = job.stdout.readline()
            self.assertTrue(line, said)
            said += line
        yield
        with open(self.pipe, "w", encoding="utf-8") as pipe:
            pipe.write("go\ngo\n")

    def test_promtool_finds_nothing_wrong(self):
        with self.job():
            text = ""
            while "ddprun_rank_steps_per_second{" not in text:
                # After a scrape the nodes report their figures; only the next scrape has them.
                headers, text = ask(self.port, "/metrics?nodes=1&ranks=1")
            self.assertEqual(headers["Content-Type"], "text/plain; version=0.0.4; charset=utf-8")
            for line in ('ddprun_job_phase{job_id="llama",phase="running"} 1',
                         'ddprun_job_nodes{job_id="llama",standing="member"} 1',
                         'ddprun_job_world_size{job_id="llama"} 2',
                         'ddprun_job_generation{job_id="llama"} 2',
                         'ddprun_job_restarts_total{cause="failure",job_id="llama"} 1',
                         'ddprun_job_restarts_max{job_id="llama"} 3',
                         'ddprun_restart_phase_seconds_count{job_id="llama",phase="form"} 1'):
                # prometheus-cpp keeps the order of labels; the words are what counts.
                name, labels, value = re.fullmatch(r"(\w+)\{(.*)\} (\d+)", line).groups()
                found = [it for it in text.splitlines() if it.startswith(name + "{") and
                         all(label in it for label in labels.split(","))]
                self.assertEqual([it.rsplit(" ", 1)[1] for it in found], [value], text)
            plain = ask(self.port, "/metrics")[1]
            self.assertNotIn("ddprun_node_", plain)
            self.assertNotIn("ddprun_rank_", plain)
            self.assertRegex(plain, r'ddprun_job_steps_per_second\{job_id="llama"\} [0-9.]+')
            rates = [float(re.search(rf'ddprun_job_{what}_per_second\S+ (\S+)', plain)[1])
                     for what in ("samples", "steps")]
            self.assertGreater(rates[0], rates[1])
            # One of each worker's; the workers that failed first have asked for nothing.
            self.assertRegex(plain, r'ddprun_store_operations_total\{.*operation="ping".*\} 2')
            self.assertRegex(plain, r'ddprun_store_operation_seconds_count\{.*\} 1')
            self.assertRegex(plain, r'ddprun_job_log_bytes\{job_id="llama"\} [1-9]')
        done = subprocess.run([PROMTOOL, "check", "metrics"], input=text, text=True,
                              capture_output=True, timeout=PATIENCE_S, check=False)
        self.assertEqual((done.returncode, done.stdout, done.stderr), (0, "", ""))
        with open(DOCUMENT, encoding="utf-8") as file:
            documented = set(re.findall(r"`(ddprun_\w+)", file.read()))
        told = {re.sub("_(bucket|sum|count)$", "", name) for name in names_of(text)}
        self.assertLessEqual(told, documented)

    def test_prometheus_scrapes_it_and_answers_the_dashboard(self):
        with open(DASHBOARD, encoding="utf-8") as file:
            dashboard = json.load(file)
        asked = [target["expr"] for panel in dashboard["panels"]
                 for target in panel.get("targets", [])]
        self.assertGreater(len(asked), 5)
        config = os.path.join(self.folder, "prometheus.yml")
        with open(config, "w", encoding="utf-8") as file:
            json.dump({"scrape_configs": [{
                "job_name": "ddprun", "scrape_interval": "1s", "scrape_timeout": "1s",
                "params": {"nodes": ["1"]},
                "static_configs": [{"targets": [f"localhost:{self.port}"]}]}]}, file)
        port = free_port()
        with self.job(), open(os.path.join(self.folder, "prometheus.log"), "w+",
                              encoding="utf-8") as log:
            prometheus = self.start(
                PROMETHEUS, f"--config.file={config}", f"--web.listen-address=127.0.0.1:{port}",
                f"--storage.tsdb.path={self.folder}/tsdb", stdout=log, stderr=log)
            deadline = time.monotonic() + PATIENCE_S
            while not (running := self.query(port, "ddprun_job_phase == 1")):
                if prometheus.poll() is not None or time.monotonic() > deadline:
                    log.seek(0)
                    self.fail(f"nothing was scraped:\n{log.read()}")
                time.sleep(0.2)  # Prometheus does not report when it has scraped.
            self.assertEqual([one["metric"]["phase"] for one in running], ["running"])
            self.assertEqual([one["metric"]["job_id"] for one in running], ["llama"])
            known = set()
            while "ddprun_job_steps_per_second" not in known:  # Prometheus has asked for it
                known = names_of(ask(self.port, "/metrics?nodes=1")[1])
            for expression in asked:
                with self.subTest(asked=expression):
                    expression = expression.replace("$job_id", "llama").replace(
                        "$__rate_interval", "1m")
                    self.assertIsNotNone(self.query(port, expression))
                    self.assertLessEqual(set(re.findall(r"ddprun_\w+", expression)), known)

    @staticmethod
    def query(port, expression):
        """Returns Prometheus's answer, or None if Prometheus gives none."""
        words = urllib.parse.urlencode({"query": expression})
        try:
            return json.loads(ask(port, "/api/v1/query?" + words)[1])["data"]["result"]
        except urllib.error.URLError:
            return None


PROMETHEUS, PROMTOOL = shutil.which("prometheus"), shutil.which("promtool")

if __name__ == "__main__":
    BIN, DASHBOARD, DOCUMENT = (os.path.abspath(sys.argv.pop(1)) for _ in range(3))
    if not PROMETHEUS or not PROMTOOL:
        print("LEFT OUT: there is no Prometheus here: scripts/setup.sh --peers installs it")
        sys.exit(0)
    unittest.main(verbosity=2)
