#!/usr/bin/env python3
"""Loading a checkpoint after a failure: the kernel reads it ahead, or does not.

Under ddprun, alternating: a worker fails, and the next one reads a checkpoint of which nothing is
in memory, as after the loss of a node or where the training data have pushed it out. The file is
read as a training does it, from start to end; the time that imports take before is a sleep. One
worker reports where its checkpoint is, the other does not. Nothing is asserted: the table says what
was measured in this run on the file system of --folder.
"""

import argparse
import os
import subprocess
import sys
import tempfile

from report import Table

ROOT = os.path.abspath(os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", ".."))
PROGRAM = """import os, sys, time
sys.path.insert(0, sys.argv[1])
import ddprun
path, tells, imports_s = sys.argv[2], sys.argv[3] == "told", float(sys.argv[4])
worker = ddprun.worker()
if tells:
    worker.checkpoints_in(path)
worker.group_ready()
with open(path, "rb", buffering=0) as file:
    if worker.restart_count == 0:
        os.fdatasync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        print("failed", time.monotonic(), flush=True)
        sys.exit(3)
    time.sleep(imports_s)
    block = bytearray(1 << 20)
    before = time.monotonic()
    while file.readinto(block):
        pass
    print("loaded", before, time.monotonic(), flush=True)
"""
PEERS = ("read ahead", "not read ahead")


def run(arguments, folder, checkpoint, peer, imports_s):
    """Milliseconds: the loading alone, and from the failure to its end."""
    done = subprocess.run(
        [os.path.join(arguments.build, "bin", "ddprun"), "--max-restarts", "1", "--log-dir",
         os.path.join(folder, "logs"), os.path.join(folder, "load.py"),
         os.path.join(ROOT, "worker_runtime/python"), checkpoint,
         "told" if peer == PEERS[0] else "silent", str(imports_s)],
        capture_output=True, text=True, check=False,
        env={**os.environ, "PYTHON_EXEC": sys.executable})
    times = {words[0]: [float(word) for word in words[1:]]
             for words in map(str.split, done.stdout.splitlines()) if words}
    if done.returncode != 0 or "loaded" not in times or "failed" not in times:
        raise SystemExit(f"resume: ddprun exited with {done.returncode}\n{done.stderr}")
    begun, ended = times["loaded"]
    return (ended - begun) * 1e3, (ended - times["failed"][0]) * 1e3


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=9, help="per row and way")
    parser.add_argument("--mebibytes", type=int, default=1024, help="of the checkpoint")
    parser.add_argument("--folder", help="for the checkpoint; by default that of temporary files")
    parser.add_argument("--build", default="build/release", help="where ddprun was built")
    parser.add_argument("--json", default="build/bench/resume.json")
    arguments = parser.parse_args()
    table = Table(PEERS)
    with tempfile.TemporaryDirectory(prefix="ddprun-resume-bench-", dir=arguments.folder) as folder:
        checkpoint = os.path.join(folder, "model.pt")
        with open(checkpoint, "wb") as file:
            for _ in range(arguments.mebibytes):
                file.write(os.urandom(1 << 20))
        with open(os.path.join(folder, "load.py"), "w", encoding="ascii") as file:
            file.write(PROGRAM)
        for imports_s in (0, 1, 3):
            for _ in range(arguments.runs):
                for peer in PEERS:
                    loading, all_of_it = run(arguments, folder, checkpoint, peer, imports_s)
                    what = f"{arguments.mebibytes} MiB, imports of {imports_s} s"
                    table.add(f"{what}: loading", "ms", "", peer, [loading])
                    table.add(f"{what}: failure to loaded", "ms", "", peer, [all_of_it])
    table.write_json(arguments.json, {"runs": arguments.runs, "bench": "resume"})
    print(table.text())
    return 0


if __name__ == "__main__":
    sys.exit(main())
