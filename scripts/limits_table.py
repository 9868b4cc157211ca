#!/usr/bin/env python3
"""The table of limits, docs/limits.md, made from the comments of the headers with limits.

usage: scripts/limits_table.py [--write | --check]

Prints the document; --write puts it where it belongs; --check exits 1 if what is there is older.
"""

import re
import sys

from made_files import Unreadable, main, read

# Code that training programs link has limits of its own.
SOURCES = ("base/limits.hpp", "base/watch_limits.hpp", "base/read_ahead_limits.hpp",
           "base/log_limits.hpp", "base/runtime_limits.hpp", "base/memory_limits.hpp")
DOCUMENT = "docs/limits.md"
INTRODUCTION = f"""# Limits

Every queue, message, loop and wait has a bound. Each is a field of `Limits`
([{SOURCES[0]}](../{SOURCES[0]})), of who asks and is told of a run of `WatchLimits`
([{SOURCES[1]}](../{SOURCES[1]})), of reading checkpoints ahead of `ReadAheadLimits`
([{SOURCES[2]}](../{SOURCES[2]})), of logs that cannot be written of `LogLimits`
([{SOURCES[3]}](../{SOURCES[3]})), of the worker runtime of `RuntimeLimits`
([{SOURCES[4]}](../{SOURCES[4]})), of checkpoints in memory of `MemoryLimits`
([{SOURCES[5]}](../{SOURCES[5]})); this table is made from them by
`scripts/limits_table.py --write`.
"""
FIELD = re.compile(r"\s*(?P<type>[\w:]+) (?P<name>\w+)\s*(?:=\s*(?P<value>[^;]+)|"
                   r"\{(?P<braced>[^}]*)\});\s*(?:///<\s*(?P<what>.*))?$")
BYTES = ((30, "GiB"), (20, "MiB"), (10, "KiB"))


def number_of(expression):
    """The value of an integer constant: digits, their separators, `T{n}`, `<<`, `*` and `+`."""
    plain = re.sub(r"[\w:]+\{([^}]*)\}", r"(\1)", expression).replace("'", "")
    if not re.fullmatch(r"[\d\s()<*+]+", plain):
        raise Unreadable(f"`{expression}` is no integer constant")
    return eval(plain)  # Digits and operators only.


def text_of(kind, name, what, number):
    """A value as people read it, with its unit."""
    if kind == "Milliseconds":
        return f"{number / 1000:g} s" if number >= 1000 else f"{number} ms"
    if "bytes" in name or what.startswith("bytes"):
        for shift, unit in BYTES:
            if number >= 1 << shift and number % (1 << shift) == 0:
                return f"{number >> shift} {unit}"
        return f"{number:,} bytes"
    return f"{number:,}" if number >= 10000 else str(number)


def read_limits(header):
    """[(section, [(name, value, what)])] in the order of the header."""
    body = re.search(r"^struct (?:Runtime|Watch|ReadAhead|Log|Memory)?Limits \{\n(.*?)^\};", header,
                     re.DOTALL | re.MULTILINE)
    if not body:
        raise Unreadable("no struct of limits")
    # A comment that goes on in the next line is one comment.
    text = re.sub(r"(///<[^\n]*)\n\s*///<\s*", r"\1 ", body.group(1))
    text = re.sub(r"(///(?!<)[^\n]*)\n\s*///(?!<)\s*", r"\1 ", text)
    text = re.sub(r"=\n\s*", "= ", text)
    sections, above = [], ""
    for line in filter(None, map(str.strip, text.split("\n"))):
        if line.startswith("///"):
            above = line[3:].strip()
        elif line.startswith("//"):
            sections.append((line[2:].strip().rstrip("."), []))
        else:
            found = FIELD.match(line)
            if not found or not sections:
                raise Unreadable(f"`{line}` is neither a field with a value nor below a section")
            what = found["what"] or above
            number = number_of(found["value"] or found["braced"])
            sections[-1][1].append((found["name"],
                                    text_of(found["type"], found["name"], what, number), what))
            above = ""
    return sections


def document(headers):
    """The whole of docs/limits.md."""
    parts = [INTRODUCTION]
    for title, limits in (section for header in headers for section in read_limits(header)):
        rows = "".join(f"| `{name}` | {value} | {what} |\n" for name, value, what in limits)
        parts.append(f"## {title}\n\n| field | value | what |\n| --- | --- | --- |\n{rows}")
    return "\n".join(parts)


if __name__ == "__main__":
    sys.exit(main("limits_table", " or ".join(SOURCES),
                  lambda: {DOCUMENT: document(map(read, SOURCES))}))
