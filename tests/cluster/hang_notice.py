"""ddprun reports workers that look alive and make no progress: by NCCL's RAS, by their GPUs' power
and by their store.

RAS is a recorded answer, served again and again; the driver is tests/unit/plan_fake_nvml.cpp. With
--gpu in its place both are NVIDIA's, and PyTorch with CUDA and NCCL waits on real GPUs: one shows
the power, two are needed for RAS. BIN_DIR is then of any build or package of ddprun.

usage: hang_notice.py BIN_DIR FAKE_NVML_DIR|--gpu [unittest's words]
"""

import glob
import http.client
import importlib.util
import json
import os
import re
import socket
import subprocess
import sys
import tempfile
import threading
import unittest

PATIENCE_S = 300  # on a machine that has no time for it
BIN = ""
FAKE_NVML = ""

# Tells no steps.
WAITS = """
import os, sys, time
while not os.path.exists(os.path.join(sys.argv[1], "end")):
    time.sleep(0.05)
"""


# Rank 1 has not come to what rank 0 waits for in the store; both look alive.
WAITS_IN_STORE = """
import os, sys, time
from datetime import timedelta
from torch.distributed import TCPStore
store = TCPStore(os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]), is_master=False,
                 timeout=timedelta(hours=1))
if os.environ["RANK"] == "0":
    store.get("rank 1 is there")
else:
    while not os.path.exists(os.path.join(sys.argv[1], "end")):
        store.check(["looked at, as NCCL's threads do"])
        time.sleep(0.1)
    store.set("rank 1 is there", "")
"""


# On GPUs. Rank 1 does not launch what rank 0 waits for.
WAITS_FOR_RANK = """
import os, sys, time
import torch
torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
torch.distributed.init_process_group("nccl")
ones = torch.ones(1 << 20, device="cuda")
for _ in range(10):
    torch.distributed.all_reduce(ones)
torch.cuda.synchronize()
if os.environ["RANK"] == "0":
    torch.distributed.all_reduce(ones)
while not os.path.exists(os.path.join(sys.argv[1], "end")):
    time.sleep(0.05)
if os.environ["RANK"] != "0":
    torch.distributed.all_reduce(ones)
torch.cuda.synchronize()
torch.distributed.destroy_process_group()
"""

# Works for some looks, then spins, as a kernel of NCCL does that waits.
SPINS = """
import os, sys, time
import torch
torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
factor = torch.randn(8192, 8192, device="cuda", dtype=torch.bfloat16)
until = time.monotonic() + 10
while time.monotonic() < until:
    for _ in range(20):
        factor @ factor
    torch.cuda.synchronize()
while not os.path.exists(os.path.join(sys.argv[1], "end")):
    torch.cuda._sleep(100_000_000)
    torch.cuda.synchronize()
"""


def ras_rank(rank, count):
    """One rank in the words of NCCL 2.29."""
    return {"rank": rank, "host": "127.0.0.1", "pid": 4711 + rank, "cuda_dev": rank,
            "nvml_dev": rank,
            "status": {"init_state": 0, "async_error": 0, "finalize_called": False,
                       "destroy_flag": False, "abort_flag": False},
            "collective_counts": {"Broadcast": 1, "Reduce": 0, "AllGather": 0, "ReduceScatter": 0,
                                  "AllReduce": count}}


RAS_ANSWER = "SERVER PROTOCOL 2\nOK\nOK\n" + json.dumps({
    "nccl_version": "2.29.1", "cuda_runtime_version": 13000, "cuda_driver_version": 13000,
    "timestamp": "2025-12-19 13:06:53", "communicators_count": 1,
    "communicators": [{
        "hash": "0xae94423cfbb2ef4a", "secondary_hash": "0xb7e7187447156001:0xb8242ed28a71381e",
        "size": 2, "ranks_count": 2, "missing_ranks_count": 0,
        "ranks": [ras_rank(0, 6650), ras_rank(1, 6649)], "missing_ranks": []}],
    "ras": {"collection_time_sec": 0.0, "timeouts_count": 0}}) + "\n"


class RunSocket(http.client.HTTPConnection):
    def __init__(self, path):
        super().__init__("localhost", timeout=PATIENCE_S)
        self.path = path

    def connect(self):
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(PATIENCE_S)
        self.sock.connect(self.path)


class HangNoticeTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = folder.name
        self.said = ""

    def write(self, name, text):
        path = os.path.join(self.folder, name)
        with open(path + ".new", "w", encoding="utf-8") as file:
            file.write(text)
        os.rename(path + ".new", path)
        return path

    def start(self, training, workers, seconds, **variables):
        script = self.write("train.py", training)
        run = subprocess.Popen(
            [os.path.join(BIN, "ddprun"), "--nproc-per-node", str(workers), "--hang-notice",
             str(seconds), "--log-dir", os.path.join(self.folder, "logs"), sys.executable, script,
             self.folder],
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
            env={**os.environ, **variables})
        self.addCleanup(run.stdout.close)
        self.addCleanup(run.wait)
        self.addCleanup(run.kill)
        return run

    def read_until(self, run, words):
        while words not in self.said:
            line = run.stdout.readline()
            self.assertTrue(line, self.said)
            self.said += line

    def end(self, run):
        """The only notice, as an event."""
        self.write("end", "")
        self.said += run.stdout.read()
        self.assertEqual(run.wait(PATIENCE_S), 0, self.said)
        [events] = {os.path.realpath(path) for path in
                    glob.glob(os.path.join(self.folder, "logs", "*", "events.jsonl"))}
        with open(events, encoding="utf-8") as file:
            [notice] = [event for event in map(json.loads, file)
                        if event["event"] == "hang_notice"]
        return notice

    def status(self):
        [path] = {os.path.realpath(path) for path in
                  glob.glob(os.path.join(self.folder, "logs", "*", "*.sock"))}
        connection = RunSocket(path)
        connection.request("GET", "/status")
        told = json.loads(connection.getresponse().read())
        connection.close()
        return told

    def check_ras(self, run):
        """Rank 1 is one AllReduce behind."""
        self.read_until(run, "stands still")
        notice = self.end(run)
        found = re.search(r"rank 1 on (\S+) has launched (\d+) AllReduce, others (\d+);", self.said)
        self.assertTrue(found, self.said)
        self.assertEqual(int(found[2]) + 1, int(found[3]))
        self.assertEqual((notice["rank"], notice["host"], notice["collective"]),
                         (1, found[1], "AllReduce"))
        self.assertEqual(self.said.count("stands still"), 1)

    def check_power(self, run):
        """How much the GPU of rank 0 draws while it waits, and before."""
        self.read_until(run, "only wait for")
        self.assertEqual(self.end(run)["rank"], 0)
        found = re.search(r"least draws GPU \d+ \(rank 0\), (\d+) W of (\d+) W before", self.said)
        self.assertTrue(found, self.said)
        return int(found[1]), int(found[2])


class MadeUp(HangNoticeTest):
    def serve_ras(self):
        """Each connection gets the recorded answer, once it has asked. Returns the address."""
        self.asked = []
        server = socket.create_server(("127.0.0.1", 0))
        self.addCleanup(server.close)

        def serve():
            while True:
                try:
                    client, _ = server.accept()
                except OSError:
                    return
                with client:
                    question = b""
                    while not question.endswith(b"STATUS\n"):
                        got = client.recv(4096)
                        if not got:
                            break
                        question += got
                    else:
                        self.asked.append(question)
                        client.sendall(RAS_ANSWER.encode())

        threading.Thread(target=serve, daemon=True).start()
        return "127.0.0.1:%d" % server.getsockname()[1]

    def start_here(self, training, ras_address="nobody"):
        return self.start(training, 2, 1, LD_LIBRARY_PATH=FAKE_NVML, NCCL_RAS_ADDR=ras_address,
                          DDPRUN_FAKE_GPU_USE=os.path.join(self.folder, "gpus"))

    def test_ranks_whose_launch_counts_differ_and_stand_still_are_told(self):
        self.write("gpus", "")
        self.check_ras(self.start_here(WAITS, self.serve_ras()))
        self.assertIn("rank 1 on 127.0.0.1 has launched 6649 AllReduce", self.said)
        self.assertIn(b"SET FORMAT json\nVERBOSE STATUS\n", self.asked[0])

    def test_that_gpus_draw_little_of_what_they_drew_is_told(self):
        self.write("gpus", "work 0 97 400000\nwork 1 97 400000\n")
        run = self.start_here(WAITS)
        while not glob.glob(os.path.join(self.folder, "logs", "*", "*.sock")):
            pass
        while self.status()["ranks"][0:1] == [] or \
                self.status()["ranks"][0].get("gpu_power_w") != 400:
            pass
        rank = self.status()["ranks"][0]
        self.assertEqual(rank["gpu_use"], 0.97)
        self.assertEqual(rank["gpu_memory_total_bytes"], 80 << 30)
        self.assertEqual(rank["gpu_memory_bytes"], 20 << 30)
        self.write("gpus", "work 0 100 120000\nwork 1 100 150000\n")
        self.assertEqual(self.check_power(run), (120, 400))

    @unittest.skipUnless(importlib.util.find_spec("torch"), "LEFT OUT: there is no torch")
    def test_that_somebody_waits_in_a_store_that_nobody_asks_is_told(self):
        self.write("gpus", "")
        run = self.start_here(WAITS_IN_STORE)
        self.read_until(run, "in it, 1 for the key /rank 1 is there")
        notice = self.end(run)
        self.assertIn("and 1 of its 2 clients waits in it", notice["text"])
        self.assertEqual(notice["host"], socket.gethostname())
        self.assertNotIn("rank", notice)


class OnGpu(HangNoticeTest):
    def setUp(self):
        super().setUp()
        import torch
        self.gpus = torch.cuda.device_count()
        if self.gpus == 0 or not os.path.exists(os.path.join(BIN, "ddprun")):
            self.skipTest(f"LEFT OUT: hang notices on GPUs: {self.gpus} GPUs, ddprun from {BIN}")

    def test_ranks_whose_launch_counts_differ_and_stand_still_are_told(self):
        if self.gpus < 2:
            self.skipTest("LEFT OUT: RAS on GPUs needs two of them")
        self.check_ras(self.start(WAITS_FOR_RANK, 2, 8))

    def test_that_gpus_draw_little_of_what_they_drew_is_told(self):
        waiting, working = self.check_power(self.start(SPINS, 1, 8))
        print(f"gpu: a kernel that spins draws {waiting} W, one that works {working} W", flush=True)


def load_tests(loader, _tests, _pattern):
    return loader.loadTestsFromTestCase(OnGpu if FAKE_NVML == "--gpu" else MadeUp)


if __name__ == "__main__":
    BIN, FAKE_NVML = sys.argv[1:3]
    unittest.main(argv=[sys.argv[0], *sys.argv[3:]])
