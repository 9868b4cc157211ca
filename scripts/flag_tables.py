#!/usr/bin/env python3
"""The tables of flags in docs/torchrun.md, made from the rows of launcher/plan/flag_table.cpp.

usage: scripts/flag_tables.py [--write | --check]

Prints the document; --write puts it where it belongs; --check exits 1 if what is there is older.
The comment above a row is `| value and default | how it compares`.
"""

import os
import re
import sys

ROOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..")
SOURCE = "launcher/plan/flag_table.cpp"
DOCUMENT = "docs/torchrun.md"
ROW = re.compile(r"(?P<comment>(?:^    ///[^\n]*\n)*)    Flag\{(?P<fields>.*?)\},?\n", re.M | re.S)
TABLE = re.compile(r"(<!-- flags: (\w+) -->\n).*?(<!-- end of flags -->\n)", re.S)
HEADS = {"Hidden": "| flag | accepted | otherwise |"}
HEAD = "| flag | value, default | against torchrun |"


class Unreadable(Exception):
    """A row or a place in the document that this script does not understand."""


def field(fields, name):
    found = re.search(rf"\.{name} = (?:Group::|[\"'])?([\w-]+)", fields)
    return found[1] if found else ""


def read_rows(source):
    """{group: [(flag as typed, value, text)]} in the order of the table."""
    groups = {}
    for row in ROW.finditer(source):
        name, group = field(row["fields"], "name"), field(row["fields"], "group")
        letter = field(row["fields"], "letter")
        comment = " ".join(line.strip().removeprefix("///").strip()
                           for line in row["comment"].splitlines())
        cells = [cell.strip() for cell in comment.split("|")]
        if not name or not group or len(cells) != 3 or cells[0]:
            raise Unreadable(f"the row of --{name or '?'} has no comment `| value | text`")
        typed = (f"`-{letter}`, " if letter else "") + f"`--{name}`"
        groups.setdefault(group, []).append((typed, cells[1], cells[2]))
    return groups


def document(source, there):
    """The whole of docs/torchrun.md: what is there, with the tables of `source`."""
    groups = read_rows(source)

    def table(found):
        head = HEADS.get(found[2], HEAD)
        if found[2] not in groups:
            raise Unreadable(f"{DOCUMENT} has a table of {found[2]}, and {SOURCE} no such group")
        rows = "".join(f"| {' | '.join(row)} |\n" for row in groups.pop(found[2]))
        return f"{found[1]}{head}\n| --- | --- | --- |\n{rows}{found[3]}"

    text = TABLE.sub(table, there)
    if groups:
        raise Unreadable(f"{DOCUMENT} has no table of {' and of '.join(groups)}")
    return text


def main():
    mode = sys.argv[1] if len(sys.argv) == 2 else ""
    if len(sys.argv) > 2 or mode not in ("", "--write", "--check"):
        print(__doc__.split("\n\n")[1], file=sys.stderr)
        return 2
    path = os.path.join(ROOT, DOCUMENT)
    with open(os.path.join(ROOT, SOURCE), encoding="utf-8") as file:
        source = file.read()
    with open(path, encoding="utf-8") as file:
        there = file.read()
    try:
        wanted = document(source, there)
    except Unreadable as error:
        print(f"flag_tables: {error}", file=sys.stderr)
        return 1
    if mode == "--write":
        with open(path, "w", encoding="utf-8") as file:
            file.write(wanted)
    elif mode == "--check":
        if there != wanted:
            print(f"flag_tables: {DOCUMENT} is older than {SOURCE}; run scripts/flag_tables.py "
                  "--write", file=sys.stderr)
            return 1
    else:
        print(wanted, end="")
    return 0


if __name__ == "__main__":
    sys.exit(main())
