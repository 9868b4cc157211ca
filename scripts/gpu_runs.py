#!/usr/bin/env python3
"""Which tests on GPUs have run on what: tests/gpu/ran.json, and its block in the guide.

usage: scripts/gpu_runs.py [--write | --check]
       scripts/gpu_runs.py --record REPORT

Prints docs/training-on-gpus.md; --write puts it where it belongs; --check exits 1 if what is there
is older. --record replaces the run of the same GPU and LibTorch in tests/gpu/ran.json by the one of
a JUnit report of ctest, in which all tests passed, and writes the guide. scripts/test.sh --gpu and
--fake-gpu do. The run has the commit, and "with changes" behind it if tracked files differ from it.
"""

import datetime
import json
import os
import re
import subprocess
import sys
import xml.etree.ElementTree

from count_tests import count
from made_files import ROOT, Unreadable, main, read

RUNS, PINS, DOCUMENT = "tests/gpu/ran.json", "scripts/setup.sh", "docs/training-on-gpus.md"
FAKE = "Fake GPU"
# The arrays of setup.sh that pin a torch, the array that pins the nccl.h it is compiled with, what
# compiles the runtime with the two, and what runs that on CPUs.
PINNED = (
    ("oldest_torch_wheels", "oldest_torch_wheels", "`scripts/test.sh --full`", "no"),
    ("python_packages", "cuda_header_wheels", "`scripts/test.sh`", "`scripts/test.sh`"),
    ("fake_gpu_torch_wheels", "fake_gpu_header_wheels", "`scripts/test.sh --fake-gpu`", "no"),
    ("newest_torch_wheels", "newest_torch_wheels", "`scripts/test.sh --full`", "no"))
HEAD = ("| LibTorch | `nccl.h` | compiled by | run on CPUs by | has run on the fake GPU | "
        "has run on GPUs |\n" + "| --- " * 6 + "|\n")
BLOCK = re.compile(r"(?<=<!-- runs on GPUs -->\n).*(?=<!-- end of runs on GPUs -->\n)", re.S)
# The line of tests/gpu/runtime_on_gpu.py about the machine, as the program and the driver tell it.
MACHINE = re.compile(r"gpu: (?P<gpus>\d+) x (?P<device>.+), LibTorch (?P<libtorch>\S+), "
                     r"NCCL (?P<nccl>\S+), CUDA (?P<cuda>\S+)\s")
# A test of Python's that was left out, with its docstring's first line, and what a test says of it.
LEFT_OUT = re.compile(r"^(test_\w+) \([^)]*\)\n?[^\n]* \.\.\. skipped ['\"](.*)['\"]$|"
                      r"LEFT OUT: (.*)$", re.M)


def run_of(report, date):
    """The run that a report is of."""
    passed, failed, skipped = count(report)
    if failed or not passed:
        raise Unreadable(f"{passed} tests passed, {failed} failed: only a run that passed is kept")
    machine, names, left_out = None, [], []
    for case in xml.etree.ElementTree.parse(report).getroot().iter("testcase"):
        name, said = case.get("name"), case.findtext("system-out", "")
        machine = machine or MACHINE.search(said)
        reasons = [": ".join(filter(None, found)) for found in LEFT_OUT.findall(said)]
        left_out += [f"{name}: {reason}" for reason in reasons]
        if name not in skipped:
            names.append(name)
        elif not reasons:
            left_out.append(name)
    if not machine:
        raise Unreadable("no test says what it ran on")
    return {**machine.groupdict(), "date": date, "passed": names, "left_out": left_out}


def git(*arguments):
    return subprocess.run(["git", "-C", ROOT, *arguments], check=True, capture_output=True,
                          text=True).stdout.strip()


def commit_tested():
    """The commit of this tree, and whether more than the record differs from it; a copied tree has
    none."""
    try:
        commit = git("rev-parse", "--short=10", "HEAD")
        changed = git("status", "--porcelain", "--untracked-files=no", "--",
                      f":(top,exclude){RUNS}", f":(top,exclude){DOCUMENT}")
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
    return f"{commit} with changes" if changed else commit


def record(report):
    run = run_of(report, datetime.datetime.now(datetime.timezone.utc).date().isoformat())
    run["commit"] = commit_tested()
    run["kills"] = int(os.environ.get("DDPRUN_GPU_KILLS", 4))
    runs = [other for other in json.loads(read(RUNS))
            if (other["device"], other["libtorch"]) != (run["device"], run["libtorch"])]
    with open(os.path.join(ROOT, RUNS), "w", encoding="utf-8") as file:
        file.write(json.dumps(runs + [run], indent=1) + "\n")


def pins(setup):
    """[[LibTorch, nccl.h, compiled by, run on CPUs by]] of setup.sh."""
    arrays = dict(re.findall(r"^(\w+)=\(\n(.*?)^\)", setup, re.M | re.S))

    def pinned(array, package):
        found = re.search(rf"\b{package}==([\d.]+)", arrays.get(array, ""))
        if not found:
            raise Unreadable(f"{PINS} has no array {array} with {package}==VERSION")
        return found[1]

    return [[pinned(torch, "torch"), pinned(nccl, "nvidia-nccl-cu13"), *by]
            for torch, nccl, *by in PINNED]


def text_of(run):
    names = ", ".join(f"`{name}`" for name in run["passed"])
    left_out = "; ".join(run["left_out"]) or "nothing"
    return (f"* {run['gpus']} x {run['device']}, LibTorch {run['libtorch']}, NCCL {run['nccl']}, "
            f"CUDA {run['cuda']}, {run['date']}, commit {run['commit']}, "
            f"{run['kills']} kills at each place: {names}. Left out: {left_out}.\n")


def document(runs, setup, there):
    """The whole of the guide: what is there, with the block of these runs."""
    rows = pins(setup)
    known = {row[0] for row in rows}
    rows += [list(row) for row in sorted({(run["libtorch"], run["nccl"],
                                           "`scripts/test.sh --gpu`", "no")
                                          for run in runs if run["libtorch"] not in known})]
    parts = {"the fake GPU": [run for run in runs if run["device"] == FAKE],
             "GPUs": [run for run in runs if run["device"] != FAKE]}
    for row in rows:
        row += [", ".join(f"{run['device']}, {run['date']}" if where == "GPUs" else run["date"]
                          for run in ran if run["libtorch"] == row[0]) or "no"
                for where, ran in parts.items()]
    rows.sort(key=lambda row: [int(number) for number in re.findall(r"\d+", row[0])])
    lists = [f"\nHas run on {where}: nothing yet.\n" if not ran else
             f"\nHas run on {where}:\n\n" + "".join(map(text_of, ran))
             for where, ran in reversed(parts.items())]
    block = HEAD + "".join(f"| {' | '.join(row)} |\n" for row in rows) + "".join(lists)
    text, count_of_blocks = BLOCK.subn(lambda _: block, there)
    if count_of_blocks != 1:
        raise Unreadable(f"{DOCUMENT} has {count_of_blocks} blocks of runs, and needs one")
    return text


def make():
    return {DOCUMENT: document(json.loads(read(RUNS)), read(PINS), read(DOCUMENT))}


if __name__ == "__main__":
    if len(sys.argv) == 3 and sys.argv[1] == "--record":
        try:
            record(sys.argv.pop())
        except Unreadable as error:
            sys.exit(f"gpu_runs: nothing is recorded: {error}")
        sys.argv[1] = "--write"
    sys.exit(main("gpu_runs", f"{RUNS} or {PINS}", make))
