#!/usr/bin/env python3
"""The tables of flags in docs/torchrun.md, made from the rows of launcher/plan/flag_table.cpp.

usage: scripts/flag_tables.py [--write | --check]

Prints the document; --write puts it where it belongs; --check exits 1 if what is there is older.
The comment above a row is `| value and default | how it compares`.
"""

import re
import sys

from made_files import Unreadable, main, read

SOURCE = "launcher/plan/flag_table.cpp"
DOCUMENT = "docs/torchrun.md"
ROW = re.compile(r"(?P<comment>(?:^    ///[^\n]*\n)*)    Flag\{(?P<fields>.*?)\},?\n", re.M | re.S)
TABLE = re.compile(r"(<!-- flags: (\w+) -->\n).*?(<!-- end of flags -->\n)", re.S)
HEADS = {"Hidden": "| flag | accepted | otherwise |"}
HEAD = "| flag | value, default | against torchrun |"


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


if __name__ == "__main__":
    sys.exit(main("flag_tables", SOURCE,
                  lambda: {DOCUMENT: document(read(SOURCE), read(DOCUMENT))}))
