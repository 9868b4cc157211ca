"""The same worker cold and warm, under ddprun with the same flags: what does it see?

Method: parity.py's runs and probe. The first generation fails, in the warm run once each slot has
its standby; what the second one sees is compared. ALLOWED names what may differ; the documents
repeat it. A difference that is not named fails, and so does a name for which no difference was
seen. The Python is an environment of its own, with the package. Needs no torch.

usage: parity_warm.py BIN_DIR DOCUMENT [--all | NAME...]
without names what is quick.
"""

import concurrent.futures
import dataclasses
import os
import platform
import re
import subprocess
import sys
import tempfile

import parity

ROOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..")
PACKAGE = os.path.join(ROOT, "worker_runtime", "python")
RECVMSG = {"x86_64": 47, "aarch64": 212}[platform.machine()]
QUICK = ["plain", "module", "redirects and tee by rank", "set by the user", "odd state"]
ATTEMPTS = 3  # A worker may fail before its agent has heard that the last standby is ready.
# `--no-python` has no standbys; the other Python, which is only a link, has no package.
NOT_WARM = ["no python", "another Python is active"]

# The last that a standby imports. A rehearsal has another function for starting threads.
MODULE = """
import _thread, os
if not hasattr(_thread.start_new_thread, "__func__"):
    with open(os.environ["TOLD"], "w") as told:
        told.write(f"{os.getpid()}\\n")
"""

WAIT = f"""
def fail_at_first():
    if os.environ["TORCHELASTIC_RESTART_COUNT"] != "0":
        return
    if os.environ["RANK"] != "0":
        signal.pause()
    with open(os.environ["TOLD"] + ".count") as file:
        count = int(file.read())
    if count:
        with open(os.environ["TOLD"]) as told:
            standbys = [told.readline().strip() for _ in range(count)]
        for pid in standbys:  # until it waits for its place
            while not open(f"/proc/{{pid}}/syscall").read().startswith("{RECVMSG} "):
                os.sched_yield()
    sys.exit(3)


def main():
    fail_at_first()
"""

# The program also reports these facts, which the probe of parity.py does not need.
MORE = """    seen = look()
    with open("/proc/self/environ", "rb") as file:
        seen["variables at exec"] = sorted(
            entry.partition("=")[0] for entry in file.read().decode().split(chr(0))[:-1])
    seen["order of variables"] = list(os.environ)
    seen["modules"] = sorted(sys.modules)
    seen["is warm"] = "DDPRUN_STANDBY" in seen["variables at exec"]
"""

ALLOWED = [
    parity.Allowed("`/proc/self/environ`", "variables at exec", lambda cold, warm:
                   "RANK" in cold and "DDPRUN_STANDBY" in warm),
    parity.Allowed("order of `os.environ`", "order of variables", lambda cold, warm:
                   sorted(cold) == sorted(warm), depends_on_machine=True),
]


class Both:
    """One run, cold and warm, which find the same names."""

    def __init__(self, bin_dir, python, parent):
        self.bin_dir = bin_dir
        self.python = python
        self.parent = parent

    def see(self, run):
        """Returns the workers' reports, cold and warm, or None if no attempt was entirely warm."""
        folder = tempfile.mkdtemp(dir=self.parent)
        told = os.path.join(folder, "told")
        os.mkfifo(told)
        # Both ends are open all the time: no process that opens it waits for another.
        held = os.open(told, os.O_RDWR | os.O_CLOEXEC)
        try:
            run = dataclasses.replace(run)
            run.port = parity.free_port()
            cold = self.observe(run, told, ["--warm", "off"], 0)
            for _ in range(ATTEMPTS):
                workers = run.nodes * workers_of(run)
                warm = self.observe(run, told, ["--warm", "json,ctypes,tells_test"], workers)
                were_warm = [warm.pop(place) for place in list(warm) if place.endswith("is warm")]
                if all(were_warm):
                    return {place: it for place, it in cold.items()
                            if not place.endswith("is warm")}, warm
        finally:
            os.close(held)
        return cold, None

    def observe(self, run, told, flags, standbys):
        with open(told + ".count", "w", encoding="ascii") as file:
            file.write(str(standbys))
        again = dataclasses.replace(
            run, flags=["--max-restarts", "1", *flags, *run.flags],
            variables={**run.variables, "TOLD": told, "PET_MAX_RESTARTS": "1"})
        seen = parity.observe(again, False, self.bin_dir, self.python, self.parent, run.port)
        if run.nodes > 1:  # Both write logs of one name.
            seen = {place: it for place, it in seen.items() if not place.startswith("log ")}
        return same_of_every_run(seen)


def same_of_every_run(seen):
    """Without what no two runs share, cold ones neither."""
    for name in ("events.jsonl", "status.json"):  # They have the times.
        seen.pop(f"log {name}", None)
    for place, it in seen.items():
        if re.search("environment (MASTER_PORT|TORCHELASTIC_RUN_ID|DDPRUN_RUN_ID)$", place):
            seen[place] = re.sub("[0-9a-f]", "x", it)
        elif place.endswith("environment DDPRUN_PAGE"):
            seen[place] = re.sub(r"\d+", "N", it)
        elif re.search("environment DDPRUN_(NODE_ID|START_REASON)$", place):
            seen[place] = re.sub("-[01]$|(?<= on )[^ ]+", "", it)  # of two, who came first
        elif place.endswith(": cgroup"):
            seen[place] = re.sub("/ddprun-[0-9a-f]+/[0-9]+-[12]", "/ddprun", it)
    return seen


def workers_of(run):
    words = " ".join([*run.flags, *(f"{key}={value}" for key, value in run.variables.items())])
    if "nproc-per-node=1" in words:
        return 1
    return 2 if re.search("nproc[-_]per[-_]node[= ]2|NPROC_PER_NODE=2", words) else 1


def make_environment(folder):
    """A Python with the package; returns its path."""
    prefix = os.path.join(folder, "environment")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", prefix], check=True)
    packages = os.path.join(prefix, "lib", "python{}.{}".format(*sys.version_info),
                            "site-packages")
    os.symlink(os.path.join(PACKAGE, "ddprun"), os.path.join(packages, "ddprun"))
    with open(os.path.join(packages, "tells_test.py"), "w", encoding="utf-8") as file:
        file.write(MODULE)
    return os.path.join(prefix, "bin", "python")


def make_probe(folder):
    """The probe that fails at first, and reports whether it is warm."""
    with open(parity.PROBE, encoding="utf-8") as file:
        text = file.read()
    text = text.replace("\ndef main():\n", WAIT, 1).replace("    seen = look()\n", MORE, 1)
    path = os.path.join(folder, "probe.py")
    with open(path, "w", encoding="utf-8") as file:
        file.write(text)
    return path


def wanted_runs(arguments):
    if arguments == ["--all"]:
        return [run for run in parity.RUNS + parity.wanted_runs(["--all-consoles"])
                if run.name.partition(",")[0] not in NOT_WARM and not run.refusal]
    return [run for run in parity.RUNS if run.name in (arguments or QUICK)]


def main():
    bin_dir, document, *arguments = sys.argv[1:]
    parity.ALLOWED[:] = ALLOWED
    failures = []
    with tempfile.TemporaryDirectory() as parent, \
            concurrent.futures.ThreadPoolExecutor(max_workers=len(QUICK)) as pool:
        parity.PROBE = make_probe(parent)
        both = Both(os.path.abspath(bin_dir), make_environment(parent), parent)
        runs = wanted_runs(arguments)
        for run, (cold, warm) in zip(runs, pool.map(both.see, runs)):
            wrong = ["  it was never warm"] if warm is None else [
                difference.replace("torchrun:", "cold:").replace("ddprun:  ", "warm:")
                for difference in parity.compare(run, cold, warm)]
            print(f"{'differs' if wrong else 'same   '}  {run.name}", *wrong, sep="\n", flush=True)
            failures += wrong
    with open(document, encoding="utf-8") as file:
        text = file.read()
    for allowed in ALLOWED:
        if not arguments and not allowed.is_seen and not allowed.depends_on_machine:
            failures.append(f"no run differs in: {allowed.name}")
        if f"| {allowed.name} |" not in text:
            failures.append(f"{document} does not name the difference: {allowed.name}")
    print(*failures[-len(ALLOWED):], sep="\n")
    sys.exit(1 if failures else 0)


if __name__ == "__main__":
    main()
