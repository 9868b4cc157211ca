"""Samples of both peers as a table for people and JSON for machines."""

import json
import math
import os
import platform
import statistics


def percentile(samples, share):
    """Nearest rank: a value that was really measured."""
    ordered = sorted(samples)
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)]


def summary(samples):
    if not samples:
        return None
    return {"median": statistics.median(samples), "p95": percentile(samples, 0.95),
            "min": min(samples), "max": max(samples), "count": len(samples), "samples": samples}


class Table:
    """Rows of (what, unit, goal), each with samples per peer. `never` marks a peer that was waited
    for in vain, for the seconds it says. A ratio above 1 speaks for the first peer."""

    def __init__(self, names):
        self.names = names
        self.rows = {}

    def add(self, what, unit, goal, name, samples, never_s=None, more_is_better=False):
        row = self.rows.setdefault(what, {"unit": unit, "goal": goal, "samples": {}, "never": {},
                                          "more_is_better": more_is_better})
        row["samples"].setdefault(name, []).extend(samples)
        if never_s is not None:
            row["never"][name] = never_s

    def result(self):
        rows = []
        for what, row in self.rows.items():
            both = {name: summary(row["samples"].get(name, [])) for name in self.names}
            ours, theirs = both[self.names[0]], both[self.names[-1]]
            ratio = None
            if ours and theirs and len(self.names) > 1 and ours["median"] > 0:
                ratio = theirs["median"] / ours["median"]
                if row["more_is_better"]:
                    ratio = 1 / ratio
            rows.append({"what": what, "unit": row["unit"], "goal": row["goal"], **both,
                         "never_within_s": row["never"], "ratio": ratio})
        return rows

    def text(self):
        lines = [["what", "unit", "goal"]]
        for name in self.names:
            lines[0] += [f"{name} p50", "p95", "min-max"]
        lines[0].append("ratio")
        for row in self.result():
            cells = [row["what"], row["unit"], row["goal"]]
            for name in self.names:
                found = row[name]
                if found:
                    cells += [number(found["median"]), number(found["p95"]),
                              f"{number(found['min'])}-{number(found['max'])}"]
                elif name in row["never_within_s"]:
                    cells += ["never", f"(>{row['never_within_s'][name]:.0f} s)", ""]
                else:
                    cells += ["-", "-", ""]
            cells.append(f"{number(row['ratio'])}x" if row["ratio"] else "")
            lines.append(cells)
        widths = [max(map(len, column)) for column in zip(*lines)]
        return "\n".join(
            "  ".join(cell.ljust(width) if index == 0 else cell.rjust(width)
                      for index, (cell, width) in enumerate(zip(line, widths))).rstrip()
            for line in lines)

    def write_json(self, path, extra):
        os.makedirs(os.path.dirname(path) or ".", exist_ok=True)
        host = {"cpus": os.cpu_count(), "kernel": platform.release(),
                "python": platform.python_version()}
        with open(path, "w", encoding="utf-8") as file:
            json.dump({"host": host, **extra, "rows": self.result()}, file, indent=2)
            file.write("\n")


def number(value):
    return f"{value:.0f}" if value >= 100 else f"{value:.1f}" if value >= 10 else f"{value:.2f}"
