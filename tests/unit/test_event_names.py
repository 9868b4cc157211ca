"""Each kind of event has its name in event.cpp and its row in docs/events.md, for programs that
read events.
"""

import os
import re
import unittest

ROOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..")
TABLE = re.compile(r"^\| event \| when \|.*\n((?:\|.*\n)+)", re.M)


def read(path):
    with open(os.path.join(ROOT, path), encoding="utf-8") as file:
        return file.read()


def names_in_code():
    table = re.search(r"kEventKindNames = \{\{\n(.*?)\n\}\};", read("rendezvous/events/event.cpp"),
                      re.S)[1]
    return re.findall(r'\{"(\w+)", EventKind::\w+\}', table)


def names_in_document():
    rows = "".join(TABLE.findall(read("docs/events.md"))).splitlines()
    return [name for row in rows for name in re.findall(r"`(\w+)`", row.split("|")[1])]


class EventNames(unittest.TestCase):
    def test_the_document_has_a_row_for_each_event(self):
        missing = sorted(set(names_in_code()) - set(names_in_document()))
        self.assertEqual(missing, [], "docs/events.md has no row for these events")

    def test_each_row_of_the_document_is_of_an_event(self):
        unknown = sorted(set(names_in_document()) - set(names_in_code()))
        self.assertEqual(unknown, [], "event.cpp has no such event")

    def test_all_names_of_the_code_are_found(self):
        kinds = re.search(r"enum class EventKind \{\n(.*?)\n\};",
                          read("rendezvous/events/event.hpp"), re.S)[1]
        self.assertEqual(len(names_in_code()), len(re.findall(r"\w+,", kinds)))


if __name__ == "__main__":
    unittest.main()
