"""The page at / in a real Chromium: real daemons and jobs, and made-up ones of 8,000 ranks.

usage: browser.py BIN_DIR TEST_WORKER [unittest's words]

With DDPRUN_PICTURES=FOLDER it leaves pictures of the page there.
"""

import contextlib
import functools
import glob
import hmac
import http.server
import importlib.util
import json
import os
import queue
import re
import shutil
import signal
import socket
import socketserver
import subprocess
import sys
import tempfile
import threading
import unittest
import urllib.parse

PATIENCE_S = 120  # on a machine that has no time for it
BIN = WORKER = ""
PAGE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../rendezvous/http/page")
CHROMIUM = shutil.which("chromium")
TYPES = {".html": "text/html", ".css": "text/css", ".js": "text/javascript",
         ".svg": "image/svg+xml"}
POLICY = ("default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; "
          "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'")
HOSTILE = "<img src=x onerror=\"window.hacked=1\"><script>window.hacked=1</script>"


def missing():
    """Names the things that a browser's test needs and this machine lacks; empty: none."""
    lacks = [name for name in ("playwright", "axe_playwright_python")
             if importlib.util.find_spec(name) is None]
    lacks += [] if CHROMIUM else ["chromium"]
    return f"LEFT OUT: no {', '.join(lacks)}; scripts/setup.sh --peers" if lacks else ""


@functools.cache
def axe_source():
    spec = importlib.util.find_spec("axe_playwright_python")
    with open(os.path.join(os.path.dirname(spec.origin), "axe.min.js"), encoding="utf-8") as file:
        return file.read()


class BrowserTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        from playwright.sync_api import expect, sync_playwright

        expect.set_options(timeout=1000 * PATIENCE_S)
        cls.expect = staticmethod(expect)
        playwright = sync_playwright().start()
        cls.addClassCleanup(playwright.stop)
        cls.browser = playwright.chromium.launch(
            executable_path=CHROMIUM, timeout=1000 * PATIENCE_S,
            args=["--disable-gpu", "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1"])
        cls.addClassCleanup(cls.browser.close)

    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="ddprun-browser-")
        self.addCleanup(folder.cleanup)
        self.folder = folder.name
        self.complaints = []

    def path(self, name):
        return os.path.join(self.folder, name)

    def open(self, address, **options):
        """A page of its own; what its console complains of is kept."""
        context = self.browser.new_context(**{"viewport": {"width": 1280, "height": 900},
                                              **options})
        self.addCleanup(context.close)
        context.set_default_timeout(1000 * PATIENCE_S)
        page = context.new_page()
        page.on("pageerror", lambda failure: self.complaints.append(str(failure)))
        page.on("console", lambda message: message.type == "error"
                and self.complaints.append(message.text))
        page.on("dialog", lambda dialog: self.complaints.append(dialog.message))
        page.goto(address)
        return page

    def picture(self, page, name):
        if "DDPRUN_PICTURES" in os.environ:
            page.screenshot(path=os.path.join(os.environ["DDPRUN_PICTURES"], name + ".png"),
                            full_page=True)

    def check_accessible(self, page):
        """axe-core finds nothing, in light and in dark."""
        for scheme in ("dark", "light"):
            # Without motion no colour is in transition when axe-core judges it.
            page.emulate_media(color_scheme=scheme, reduced_motion="reduce")
            page.evaluate(axe_source())
            found = page.evaluate("() => axe.run(document)")["violations"]
            self.assertEqual(
                [(one["id"], one["nodes"][0]["html"], one["nodes"][0].get("failureSummary"))
                 for one in found], [], scheme)

    def give_operator_token(self, page, token):
        page.locator("#tokens").click()
        page.locator("#token-act").fill(token)
        page.locator("#token-dialog button[type=submit]").click()

    def check_unharmed(self, page):
        self.assertIsNone(page.evaluate("() => window.hacked ?? null"))
        self.assertEqual(page.locator("main img, main script").count(), 0)
        self.assertEqual(self.complaints, [])


class FakeDaemon(http.server.ThreadingHTTPServer):
    """Serves the page as it is in the repository, with what a test makes up. `told` is what
    /status says, tell() adds an event to each stream, `orders` keeps what was posted."""

    daemon_threads = True
    token = None  # who asks must show it
    operator_token = None

    def __init__(self):
        super().__init__(("127.0.0.1", 0), FakeAnswers)
        self.told = {"type": "status", "jobs": [], "jobs_left_out": 0}
        self.events = []
        self.began_ns = 1  # by its machine's clock
        self.orders = []
        self.asked_from = []
        self.streams = []
        self.lock = threading.RLock()

    def tell(self, event, **fields):
        with self.lock:
            seq = len(self.events) + 1
            self.events.append({"v": 1, "seq": seq, "time": "2026-11-23T08:29:32.123Z",
                                "mono_ns": self.began_ns + seq, "event": event, **fields})
            for stream in self.streams:
                stream.put(self.events[-1])

    def tell_progress(self, **fields):
        with self.lock:
            for stream in self.streams:
                stream.put({"event": "progress", **fields})

    def drop_streams(self):
        with self.lock:
            for stream in self.streams:
                stream.put(None)
            self.streams.clear()

    def handle_error(self, *_):
        pass  # a browser that has gone


class FakeAnswers(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self):
        url = urllib.parse.urlsplit(self.path)
        if url.path in ("/logs", "/stacks"):
            self.answer(200, f"{url.query}\n{HOSTILE}\n".encode(), "text/plain")
        elif url.path not in ("/status", "/events"):
            self.answer_file("index.html" if url.path == "/" else url.path[1:])
        elif self.server.token and self.headers["Authorization"] != f"Bearer {self.server.token}":
            self.answer(403, {"error": "only programs of this machine are answered"})
        elif url.path == "/status":
            self.answer(200, self.server.told)
        else:
            self.follow(int(self.headers.get("Last-Event-ID", 0)))

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if self.headers["Authorization"] != f"Bearer {self.server.operator_token}":
            self.answer(401, {"error": "the token is wrong"})
            return
        self.server.orders.append((self.path, body))
        self.answer(202, {"event": 41})

    def answer_file(self, name):
        path = os.path.join(PAGE, os.path.basename(name))
        if not os.path.isfile(path):
            self.answer(404, {"error": "there is nothing"})
            return
        with open(path, "rb") as file:
            self.answer(200, file.read(), TYPES[os.path.splitext(path)[1]])

    def answer(self, status, body, kind="application/json"):
        body = body if isinstance(body, bytes) else json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Content-Security-Policy", POLICY)
        self.end_headers()
        self.wfile.write(body)

    def follow(self, last):
        mine = queue.Queue()
        with self.server.lock:
            self.server.asked_from.append(last)
            for event in self.server.events[last:]:
                mine.put(event)
            self.server.streams.append(mine)
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Connection", "close")
        self.end_headers()
        self.close_connection = True
        while (event := mine.get()) is not None:
            number = f"id: {event['seq']}\n" if "seq" in event else ""
            self.wfile.write(f"{number}data: {json.dumps(event)}\n\n".encode())
            self.wfile.flush()

    def log_message(self, *_):
        pass


def made_up_job(nodes, slots, step=100, **fields):
    """A job that trains, as a daemon reports it."""
    ranks = [{"rank": rank, "node": f"gpu-{rank // slots:04}", "local_rank": rank % slots,
              "phase": "training", "step": step + rank % 2, "steps_per_s": 3.9,
              "step_age_ms": 250, "own_share": 0.93, "memory_bytes": 61e9, "gpu_use": 0.97}
             for rank in range(nodes * slots)]
    return {"job": "llama", "phase": "running", "age_ms": 7200000, "in_phase_ms": 3600000,
            "generation": 3, "waits_for": "", "nnodes": str(nodes), "min_nodes": nodes,
            "max_nodes": nodes, "world_size": nodes * slots, "restarts_used": 2,
            "max_restarts": 10, "node_losses_used": 1, "max_node_losses": -1,
            "nodes": [{"node": f"gpu-{node:04}", "hostname": f"gpu-{node:04}",
                       "standing": "member", "group_rank": node, "base_rank": node * slots,
                       "slots": slots, "finished": 0, "is_connected": True, "is_suspect": False,
                       "last_heard_ms": 104, "lease_left_ms": 896, "quarantined_ms": 0,
                       "quarantine_why": ""} for node in range(nodes)],
            "ranks": ranks, **fields}


class MadeUpJobs(BrowserTest):
    """Shows jobs that no small machine has: a thousand nodes, dropped streams, tokens."""

    def serve(self, *jobs):
        daemon = FakeDaemon()
        daemon.told["jobs"] = list(jobs)
        thread = threading.Thread(target=daemon.serve_forever)
        thread.start()
        self.addCleanup(daemon.server_close)
        self.addCleanup(thread.join)
        self.addCleanup(daemon.shutdown)
        self.addCleanup(daemon.drop_streams)
        return daemon

    def address(self, daemon):
        return f"http://127.0.0.1:{daemon.server_port}/"

    def test_8000_ranks_on_a_desk_and_on_a_phone(self):
        slowest = {"rank": 3171, "node": "gpu-0396", "host": "gpu-0396", "cost_share": 0.31}
        daemon = self.serve(made_up_job(1000, 8, slowest=slowest))
        daemon.tell("begun", job="llama", nodes="1000")
        daemon.tell("formed", generation=3, nodes=1000, workers=8000, text="all are here")
        page = self.open(self.address(daemon))
        self.expect(page.locator("#legend")).to_contain_text("training 8,000")
        self.expect(page.locator("#facts")).to_contain_text(
            "rank 3171 on gpu-0396: the others wait for it 31 % of the time")
        took = []
        for turn in range(10):
            step = 200000 + 10 * turn
            ranks = [{**rank, "step": step, "phase": "training" if turn % 2 else "resumed"}
                     for rank in daemon.told["jobs"][0]["ranks"]]
            daemon.told["jobs"][0]["ranks"] = ranks
            daemon.tell_progress(ranks=ranks, slowest=slowest)
            self.expect(page.locator("#facts")).to_contain_text(f"{step:,}")
            took.append(page.evaluate(
                "() => performance.getEntriesByName('ddprun-update').at(-1).duration"))
        print(f"figure: update of 8,000 ranks: best {min(took):.1f} ms, "
              f"median {sorted(took)[5]:.1f} ms, worst {max(took):.1f} ms", flush=True)
        self.check_accessible(page)
        self.picture(page, "8000")
        phone = self.open(self.address(daemon), viewport={"width": 360, "height": 740},
                          device_scale_factor=3, is_mobile=True, has_touch=True)
        self.expect(phone.locator("#legend")).to_contain_text("training 8,000")
        self.assertLessEqual(phone.evaluate("() => document.documentElement.scrollWidth"), 360)
        self.check_accessible(phone)
        self.picture(phone, "8000-phone")
        self.check_unharmed(page)

    def test_memory_and_gpus_are_told(self):
        job = made_up_job(2, 2)
        for rank in job["ranks"]:
            rank.update(memory_peak_bytes=70e9, gpu_memory_bytes=64e9,
                        gpu_memory_total_bytes=80e9, gpu_power_w=612)
        job["nodes"][1].update(memory_bytes=980e9, memory_limit_bytes=1000e9,
                               memory_pressure_permille=120)
        daemon = self.serve(job)
        page = self.open(self.address(daemon))
        self.expect(page.locator("#attention")).to_contain_text(
            "gpu-0001: its memory gets short: 913 GiB of 931 GiB in use")
        page.locator("#find-rank").fill("3")
        page.locator("#find-rank").press("Enter")
        facts = page.locator("#rank-facts")
        for text in ("57 GiB, at most 65 GiB", "97 %", "60 GiB of 75 GiB", "612 W",
                     "913 GiB of 931 GiB", "12 % of the time"):
            self.expect(facts).to_contain_text(text)
        self.check_accessible(page)
        self.picture(page, "memory")
        daemon.tell_progress(ranks=job["ranks"][2:], node="gpu-0001", memory_bytes=500e9,
                             memory_limit_bytes=1000e9)
        self.expect(page.locator("#attention")).to_be_hidden()
        self.check_unharmed(page)

    def test_the_grid_is_read_and_used_by_keyboard(self):
        daemon = self.serve(made_up_job(4, 8))
        page = self.open(self.address(daemon))
        self.expect(page.locator("#legend")).to_contain_text("training 32")
        page.locator("#grid").focus()
        self.expect(page.locator("#cursor")).to_contain_text("rank 0 · gpu-0000 · training")
        page.keyboard.press("ArrowRight")
        self.expect(page.locator("#cursor")).to_contain_text("rank 1 · ")
        page.keyboard.press("End")
        self.expect(page.locator("#cursor")).to_contain_text("rank 31 · gpu-0003")
        page.keyboard.press("Enter")
        self.expect(page.locator("#rank-title")).to_have_text("Rank 31 on gpu-0003")
        self.expect(page.locator("#rank")).to_be_focused()
        self.expect(page.locator("#rank-facts")).to_contain_text("57 GiB")
        page.keyboard.press("Escape")
        self.expect(page.locator("#rank")).to_be_hidden()
        self.expect(page.locator("#grid")).to_be_focused()
        self.check_unharmed(page)

    def test_a_dropped_stream_is_said_and_goes_on_where_it_was(self):
        daemon = self.serve(made_up_job(2, 2))
        daemon.tell("begun", job="llama", nodes="2")
        page = self.open(self.address(daemon))
        self.expect(page.locator("#link")).to_have_text("live")
        daemon.tell("notice", text="before")
        self.expect(page.locator("#events > li")).to_have_count(2)
        daemon.drop_streams()
        self.expect(page.locator("#link")).to_contain_text("not live: the stream has ended")
        self.expect(page.locator("#link")).to_have_text("live")
        daemon.tell("notice", text="after")
        self.expect(page.locator("#events > li")).to_have_count(3)
        self.assertEqual(daemon.asked_from, [0, 1])

        # A daemon that was started again numbers its events anew.
        with daemon.lock:
            daemon.drop_streams()
            daemon.events.clear()
            daemon.began_ns = 1000
            for text in ("one", "two", "three", "four"):
                daemon.tell("restored" if text == "one" else "notice", text=text)
        self.expect(page.locator("#events")).to_contain_text("four")
        self.expect(page.locator("#events > li")).to_have_count(4)
        self.expect(page.locator("#events")).to_contain_text("one")
        self.assertEqual(self.complaints, [])

    def test_names_and_texts_are_never_more_than_text(self):
        job = made_up_job(2, 2, job=HOSTILE, waits_for=HOSTILE)
        for node in job["nodes"]:
            node.update(hostname=HOSTILE, quarantined_ms=5000, quarantine_why=HOSTILE)
        daemon = self.serve(job)
        daemon.tell("begun", job=HOSTILE, nodes=HOSTILE)
        daemon.tell("formed", generation=3, nodes=2, workers=4, text=HOSTILE)
        daemon.tell("failure", generation=3, rank=1, node="gpu-0000", host=HOSTILE, exit_code=1,
                    pid=4711, kernel=HOSTILE, stacks=HOSTILE, logs=HOSTILE)
        daemon.tell("last_words", generation=3, rank=1, text=HOSTILE, stderr=HOSTILE)
        page = self.open(self.address(daemon))
        self.expect(page.locator("#legend")).to_contain_text("failed 1")
        page.locator("#find-rank").fill("1")
        page.locator("#find-rank").press("Enter")
        self.expect(page.locator("#rank-evidence")).to_contain_text(HOSTILE)
        page.get_by_role("button", name="End of its log").click()
        self.expect(page.locator("#rank-read")).to_contain_text("rank=1&lines=200")
        self.expect(page.locator("#rank-read")).to_contain_text(HOSTILE)
        page.get_by_role("button", name="Where it is now").click()
        self.expect(page.locator("#rank-read pre")).to_contain_text(HOSTILE)
        for one in page.locator("#events summary").all():
            one.click()
        self.expect(page.locator("#events details[open] dl")).to_have_count(4)
        self.check_unharmed(page)
        self.check_accessible(page)

    def test_a_token_is_asked_for_and_kept_nowhere(self):
        daemon = self.serve(made_up_job(2, 2))
        daemon.token = "ab" * 32
        page = self.open(self.address(daemon))
        self.expect(page.locator("#token-why")).to_contain_text("only programs of this machine")
        self.check_accessible(page)
        page.locator("#token-look").fill(daemon.token)
        page.locator("#token-dialog button[type=submit]").click()
        self.expect(page.locator("#link")).to_have_text("live")
        self.assertEqual(page.evaluate(
            "() => [localStorage.length, sessionStorage.length, document.cookie]"), [0, 0, ""])
        page.reload()
        self.expect(page.locator("#token-dialog")).to_be_visible()

    def test_an_operator_is_asked_again_before_anything_happens(self):
        daemon = self.serve(made_up_job(2, 2))
        daemon.operator_token = "cd" * 32
        page = self.open(self.address(daemon))
        self.expect(page.locator("#legend")).to_contain_text("training 4")
        self.expect(page.locator("#acts")).to_be_hidden()
        self.give_operator_token(page, "ef" * 32)
        page.get_by_role("button", name="Restart…").click()
        dialog = page.locator("#act-dialog")
        self.expect(dialog).to_contain_text("All workers of llama are stopped")
        self.check_accessible(page)
        dialog.get_by_role("button", name="Restart").click()
        self.expect(page.locator("#act-said")).to_contain_text("The token is not that")
        dialog.get_by_role("button", name="Cancel").click()
        self.give_operator_token(page, daemon.operator_token)
        page.get_by_role("button", name="Restart…").click()
        dialog.get_by_role("button", name="Cancel").click()
        self.assertEqual(daemon.orders, [])
        page.get_by_role("button", name="Restart…").click()
        dialog.get_by_role("button", name="Restart").click()
        self.expect(page.locator("#act-said")).to_contain_text("event 41 records it")
        page.keyboard.press("Escape")
        page.locator("#find-rank").fill("2")
        page.locator("#find-rank").press("Enter")
        page.get_by_role("button", name="Quarantine node…").click()
        page.locator("#act-for").fill("10")
        self.picture(page, "quarantine")
        dialog.get_by_role("button", name="Quarantine").click()
        self.expect(page.locator("#act-said")).to_contain_text("event 41 records it")
        self.assertEqual(daemon.orders, [
            ("/jobs/llama/restart", {}),
            ("/jobs/llama/quarantine", {"node": "gpu-0001", "for_s": 600})])


class RealJobs(BrowserTest):
    """Shows jobs that real daemons and workers report."""

    def start(self, *command):
        kept = {key: value for key, value in os.environ.items()
                if not re.match("SLURM|PET_|DDPRUN_|TORCH|KUBERNETES_", key)}
        started = subprocess.Popen(command, cwd=self.folder, text=True, stdin=subprocess.DEVNULL,
                                   env={**kept, "HOME": self.folder}, stdout=subprocess.PIPE,
                                   stderr=subprocess.STDOUT)
        self.addCleanup(started.stdout.close)
        self.addCleanup(started.wait)
        self.addCleanup(started.kill)
        return started

    def wait_for(self, started, pattern):
        heard = []
        for line in started.stdout:
            heard.append(line)
            if found := re.search(pattern, line):
                # A thread reads on, so that a full pipe does not stop the process.
                threading.Thread(target=started.stdout.read, daemon=True).start()
                return found
        return self.fail(f"{pattern} was not said:\n" + "".join(heard))

    def start_daemon(self, *flags):
        daemon = self.start(os.path.join(BIN, "ddprun-rendezvous"), "--port", "0", *flags)
        return self.wait_for(daemon, r"listening on (127\.0\.0\.1:\d+)").group(1)

    def start_node(self, endpoint, *script, job="test", nnodes="2", flags=()):
        return self.start(os.path.join(BIN, "ddprun"), "--nnodes", nnodes, "--nproc-per-node", "2",
                          "--rdzv-id", job, "--rdzv-endpoint", endpoint, "--rdzv-conf",
                          "last_call_timeout=0,grow_delay=0", "--max-restarts", "3", "--log-dir",
                          self.path("logs"), *flags, WORKER, "--print", *script)

    def touch(self, name):
        with open(self.path(name), "w", encoding="utf-8"):
            pass

    def facts(self, page, name):
        return page.locator("#facts div").filter(has=page.get_by_text(name, exact=True)) \
            .locator("dd")

    def test_a_job_from_its_first_node_to_its_verdict(self):
        endpoint = self.start_daemon()
        page = self.open(f"http://{endpoint}/")
        self.expect(page.locator("#empty")).to_contain_text("No job has joined")
        script = ("--when-rank", "3", "--when-generation", "1", "--wait-for-file",
                  self.path("fail"), "--complain", HOSTILE, "--exit-code", "7", "--always",
                  "--wait-for-file", self.path("end"))
        first = self.start_node(endpoint, *script)
        self.expect(page.locator("#sentence")).to_contain_text(
            "Waiting for 1 node more: 1 of 2 here")
        second = self.start_node(endpoint, *script)
        self.expect(page.locator("#phase")).to_have_text("running")
        self.expect(page.locator("#legend")).to_contain_text("running, tells no steps 4")
        self.expect(page.locator("#link")).to_have_text("live")
        self.check_accessible(page)

        # A failure, and the restart after it.
        self.touch("fail")
        self.expect(self.facts(page, "Generation")).to_have_text("2")
        self.expect(self.facts(page, "Restarts")).to_have_text("1 of 3")
        self.expect(page.locator("#time")).to_contain_text("Generation 1 to generation 2")
        page.locator("#filter-kind").select_option("failure")
        self.expect(page.locator("#events > li")).to_have_count(1)
        self.expect(page.locator("#events")).to_contain_text("exited with code 7")
        page.locator("#find-rank").fill("3")
        page.locator("#find-rank").press("Enter")
        self.expect(page.locator("#rank-title")).to_contain_text("Rank 3 on")
        self.expect(page.locator("#rank-evidence")).to_contain_text(
            "In generation 1 it exited with code 7, as process ")
        self.check_accessible(page)
        self.picture(page, "restarted")

        # The page shows the rank's log, read from its node.
        page.get_by_role("button", name="End of its log").click()
        self.expect(page.locator("#rank-read")).to_contain_text("worker rank=3")

        # A spare waits, and takes the place of a node that is lost.
        page.locator("#filter-kind").select_option("")
        spare = self.start_node(endpoint, *script)
        self.expect(page.locator("#attention")).to_contain_text("waits as a spare")
        self.expect(page.locator("#legend")).to_contain_text("not in the generation 2")
        second.send_signal(signal.SIGKILL)
        self.expect(self.facts(page, "Generation")).to_have_text("3")
        self.expect(page.locator("#events")).to_contain_text("lost")

        self.touch("end")
        self.expect(page.locator("#phase")).to_have_text("succeeded")
        self.expect(page.locator("#sentence")).to_contain_text("exit code 0")
        self.expect(page.locator("#legend")).to_contain_text("finished 4")
        self.expect(page.locator("#link")).to_have_text("up to date")
        self.assertEqual((first.wait(PATIENCE_S), spare.wait(PATIENCE_S)), (0, 0))
        self.check_accessible(page)
        self.check_unharmed(page)
        self.picture(page, "over")

    def test_a_job_that_fails_names_its_cause(self):
        endpoint = self.start_daemon()
        page = self.open(f"http://{endpoint}/")
        cause = "ModuleNotFoundError: No module named 'torch'"
        script = ("--when-rank", "2", "--complain", cause, "--exit-code", "1", "--always", "--hang")
        nodes = [self.start_node(endpoint, *script, flags=("--max-restarts", "0"))
                 for _ in range(2)]
        self.assertEqual([node.wait(PATIENCE_S) for node in nodes], [1, 1])
        self.expect(page.locator("#phase")).to_have_text("failed")
        self.expect(page.locator("#sentence")).to_have_text(re.compile(
            rf"^Rank 2 on \S+ exited with code 1: {re.escape(cause)} \(exit code 1\)\.$"))
        self.check_unharmed(page)
        self.picture(page, "failed")

    def forward(self, path):
        """A port on loopback that leads to a Unix socket, as ssh -L does."""

        class Pipe(socketserver.BaseRequestHandler):
            def handle(self):
                with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX) as there:
                    there.connect(path)
                    back = threading.Thread(target=pump, args=(there, self.request))
                    back.start()
                    pump(self.request, there)
                    back.join()

        def pump(source, sink):
            with contextlib.suppress(OSError):
                while piece := source.recv(65536):
                    sink.sendall(piece)
            with contextlib.suppress(OSError):
                sink.shutdown(socket.SHUT_WR)

        server = socketserver.ThreadingTCPServer(("127.0.0.1", 0), Pipe)
        server.daemon_threads = True
        server.block_on_close = False
        threading.Thread(target=server.serve_forever, daemon=True).start()
        self.addCleanup(server.server_close)
        self.addCleanup(server.shutdown)
        return f"http://127.0.0.1:{server.server_address[1]}/"

    def test_a_run_of_one_node_that_fails(self):
        job = self.start(os.path.join(BIN, "ddprun"), "--nproc-per-node", "2", "--log-dir",
                         self.path("logs"), WORKER, "--print", "--attach-page", "--progress", "7",
                         "--when-rank", "1", "--wait-for-file", self.path("fail"), "--complain",
                         HOSTILE, "--exit-code", "7", "--always", "--hang")
        self.wait_for(job, "worker rank=1")
        page = self.open(self.forward(glob.glob(self.path("logs/*/ddprun.sock"))[0]))
        self.expect(page.locator("#legend")).to_contain_text("training 2")
        self.expect(self.facts(page, "Step")).to_have_text("7")
        self.touch("fail")
        self.expect(page.locator("#events")).to_contain_text("last words")
        self.expect(page.locator("#events")).to_contain_text("verdict")
        self.expect(page.locator("#sentence")).to_have_text(re.compile(
            rf"^Rank 1 on \S+ exited with code 7 at step 7: {re.escape(HOSTILE)}\.$"))
        page.locator("#find-rank").fill("1")
        page.locator("#find-rank").press("Enter")
        self.expect(page.locator("#rank-evidence")).to_contain_text("exited with code 7")
        self.expect(page.locator("#rank-evidence")).to_contain_text(HOSTILE)
        self.assertEqual(job.wait(PATIENCE_S), 7)
        self.expect(page.locator("#link")).to_contain_text("not live")
        self.assertIsNone(page.evaluate("() => window.hacked ?? null"))
        self.picture(page, "one-node")

    def order(self, page, button, **filled):
        """Presses it, and what the question that follows offers."""
        page.get_by_role("button", name=button, exact=True).click()
        for name, value in filled.items():
            page.locator(f"#act-{name}").fill(value)
        page.locator("#act-dialog button[type=submit]").click()
        self.expect(page.locator("#act-said")).to_contain_text("records it")
        page.locator("#act-dialog button[value=cancel]").click()

    def test_an_operator_gives_every_order(self):
        secret = self.path("operators")
        with open(secret, "w", encoding="utf-8", opener=lambda path, flags: os.open(
                path, flags, 0o600)) as file:
            file.write("cd" * 32 + "\n")
        endpoint = self.start_daemon("--operator-secret-file", secret)
        page = self.open(f"http://{endpoint}/")
        script = ("--leave-when-asked",)
        nodes = [self.start_node(endpoint, *script, nnodes="1:2") for _ in range(2)]
        self.expect(self.facts(page, "Nodes")).to_have_text("2 of 1:2")
        self.give_operator_token(page, hmac.digest(
            bytes.fromhex("cd" * 32), b"ddprun http orders\0", "sha256").hex())
        generation = int(self.facts(page, "Generation").inner_text())
        self.order(page, "Restart…")
        self.expect(self.facts(page, "Generation")).to_have_text(str(generation + 1))
        self.expect(self.facts(page, "Ranks")).to_have_text("4")
        page.locator("#find-rank").fill("2")
        page.locator("#find-rank").press("Enter")
        self.order(page, "Quarantine node…")
        self.expect(page.locator("#attention")).to_contain_text("in quarantine")
        self.expect(self.facts(page, "Ranks")).to_have_text("2")
        self.order(page, "Release node…")
        self.expect(self.facts(page, "Ranks")).to_have_text("4")
        page.locator("#rank-close").click()
        self.order(page, "Shrink…", count="1")
        self.expect(self.facts(page, "Ranks")).to_have_text("2")
        self.order(page, "Hold…", **{"for": "5"})
        release = page.get_by_role("button", name="Release…", exact=True)
        self.expect(release).to_be_visible()
        self.order(page, "Grow…", count="2")
        self.expect(self.facts(page, "Ranks")).to_have_text("2")  # held
        self.check_accessible(page)
        self.picture(page, "held")
        self.order(page, "Release…")
        self.expect(self.facts(page, "Ranks")).to_have_text("4")
        self.expect(release).to_have_count(0)
        page.locator("#find-rank").fill("2")
        page.locator("#find-rank").press("Enter")
        self.order(page, "Drain node…")
        self.expect(self.facts(page, "Ranks")).to_have_text("2")
        page.locator("#rank-close").click()
        self.order(page, "Stop…")
        self.expect(page.locator("#phase")).to_have_text("ended")
        self.assertEqual(sorted(node.wait(PATIENCE_S) for node in nodes), [75, 98])
        self.expect(page.locator("#events")).to_contain_text("quarantine, asked by")
        self.assertEqual(self.complaints, [])

    def test_a_hang_is_told_with_its_stacks(self):
        endpoint = self.start_daemon()
        page = self.open(f"http://{endpoint}/")
        self.start_node(endpoint, "--hang", nnodes="1",
                        flags=("--hang-timeout", "2", "--max-restarts", "0"))
        self.expect(page.locator("#phase")).to_have_text("failed")
        self.expect(page.locator("#events")).to_contain_text("no sign of life")
        page.locator("#find-rank").fill("0")
        page.locator("#find-rank").press("Enter")
        self.expect(page.locator("#rank-evidence")).to_contain_text("it hung")
        self.picture(page, "hung")
        self.check_unharmed(page)


def parse_arguments(arguments):
    global BIN, WORKER
    BIN, WORKER = (os.path.abspath(path) for path in arguments[:2])
    return arguments[2:]


if __name__ == "__main__":
    words = parse_arguments(sys.argv[1:])
    if missing():
        print(missing())
        sys.exit(0)
    unittest.main(argv=[sys.argv[0], *words], verbosity=2)
