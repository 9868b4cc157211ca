"""Writes down what the programs of a build say and do: see scripts/golden.sh.

usage: take.py [--only PART]... [--seeds N] BUILD_DIR OUT_DIR
"""

import argparse
import os
import sys
import tempfile

import commands
import jobs
import texts
import traces
from build import Build

PARTS = {"texts": texts.take, "commands": commands.take, "jobs": jobs.take, "traces": traces.take}


def parse():
    parser = argparse.ArgumentParser(prog="golden.sh take")
    parser.add_argument("--only", action="append", choices=PARTS, metavar="PART")
    parser.add_argument("--seeds", type=int, default=1000)
    parser.add_argument("build")
    parser.add_argument("out")
    return parser.parse_args()


def main():
    arguments = parse()
    if os.path.isdir(arguments.out) and os.listdir(arguments.out):
        sys.exit(f"golden: {arguments.out} is not empty; remove it, or name another folder")
    # Reports of older builds wrap their lines: the length of the path is the same wherever a
    # snapshot is taken.
    with tempfile.TemporaryDirectory(prefix="ddprun-golden-", dir="/tmp") as work:
        build = Build(os.path.realpath(arguments.build), os.path.realpath(arguments.out), work,
                      arguments.seeds)
        for name in arguments.only or PARTS:
            PARTS[name](build)
            print(f"golden: took {name}", flush=True)


if __name__ == "__main__":
    main()
