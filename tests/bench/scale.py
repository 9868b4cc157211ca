#!/usr/bin/env python3
"""The cost of a daemon's decisions by number of nodes.

tests/bench/daemon_scale.cpp drives the daemon's host with made-up agents of 8 ranks each. Processor
time of its thread. A turn is an input with all that it causes: a message opened and decoded, the
decision, each answer encoded and sealed, each record encoded. Nothing is asserted: the table says
what was measured.
"""

import argparse
import json
import os
import subprocess
import sys

from report import number

PARTS = ("job", "failure", "journal", "adoption")
COLUMNS = (("nodes", "nodes"), ("inputs", "inputs"), ("CPU ms", "cpu_ms"), ("us each", "us_each"),
           ("turn us: p50", "median_us"), ("p95", "p95_us"), ("p99", "p99_us"), ("max", "max_us"),
           ("messages", "messages"), ("KiB", "message_bytes"), ("records", "records"))


def cell(row, name):
    if name == "message_bytes":
        return number(row[name] / 1024)
    return str(row[name]) if isinstance(row[name], int) else number(row[name])


def table(rows):
    lines = [["event", *(title for title, _ in COLUMNS)]]
    for event in dict.fromkeys(row["event"] for row in rows):
        for row in rows:
            if row["event"] == event:
                lines.append([event, *(cell(row, name) for _, name in COLUMNS)])
    widths = [max(map(len, column)) for column in zip(*lines)]
    return "\n".join(
        "  ".join(text.ljust(width) if index == 0 else text.rjust(width)
                  for index, (text, width) in enumerate(zip(line, widths)))
        for line in lines)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--nodes", type=int, action="append", help="100, 1000 and 10000 unless set")
    parser.add_argument("--only", choices=PARTS, action="append")
    parser.add_argument("--build", default="build/release", help="where ddprun was built")
    parser.add_argument("--json", default="build/bench/scale.json")
    arguments = parser.parse_args()
    rows = []
    for part in arguments.only or PARTS:
        for nodes in arguments.nodes or (100, 1000, 10000):
            done = subprocess.run([os.path.join(arguments.build, "tests", "daemon_scale"),
                                   "--nodes", str(nodes), part],
                                  stdout=subprocess.PIPE, text=True, check=True)
            rows += json.loads(done.stdout)
    print(table(rows))
    os.makedirs(os.path.dirname(arguments.json) or ".", exist_ok=True)
    with open(arguments.json, "w", encoding="utf-8") as file:
        json.dump({"bench": "scale", "cpus": os.cpu_count(), "rows": rows}, file, indent=2)
        file.write("\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
