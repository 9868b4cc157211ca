"""scripts/pictures.py draws what the code and the record say, refuses what it does not show, and
notices a picture that is older."""

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import unittest
import xml.etree.ElementTree

ROOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..")
sys.path.insert(0, os.path.join(ROOT, "scripts"))
import pictures  # noqa: E402
import svg  # noqa: E402

SOURCES = sorted({pictures.RECORD, pictures.TIME_USE, pictures.MESSAGES,
                  pictures.CORE + "run.hpp", pictures.CORE + "nodes.hpp",
                  "agent/supervise/worker_group.hpp",
                  *(path for path, _ in pictures.SHOWN_BY.values()),
                  *(f"{pictures.CORE}{phase.lower()}.hpp" for phase in pictures.WAYS)})
SCRIPTS = ("pictures.py", "svg.py", "made_files.py")


def with_change(path, old, new):
    """Reads sources, one of them changed."""
    def source_of(asked):
        text = pictures.read(asked)
        if asked == path:
            assert old in text, f"{path} has no {old}"
            text = text.replace(old, new)
        return text
    return source_of


class Restart(unittest.TestCase):
    record = json.loads(pictures.read(pictures.RECORD))
    time_use = pictures.read(pictures.TIME_USE)

    def test_phases_follow_one_another_from_the_kill_to_the_last_step(self):
        for restart in self.record["restarts"].values():
            phases = pictures.phases_of(restart, self.time_use)
            self.assertEqual(phases[0][2], 0)
            self.assertEqual(phases[-1][3], restart["events"][-1]["us"])
            for one, following in zip(phases, phases[1:]):
                self.assertLessEqual(one[2], one[3])
                self.assertEqual(one[3], following[2])

    def test_its_figures_are_those_of_the_record(self):
        text = pictures.restart_picture(self.record, self.time_use)
        for event in self.record["restarts"]["warm"]["events"]:
            event["us"] *= 2
        try:
            self.assertNotEqual(pictures.restart_picture(self.record, self.time_use), text)
        finally:
            for event in self.record["restarts"]["warm"]["events"]:
                event["us"] //= 2

    def test_other_phases_in_the_code_are_refused(self):
        with self.assertRaisesRegex(pictures.Unreadable, "other phases"):
            pictures.restart_picture(self.record, self.time_use.replace('"spawn"', '"start"'))
        restart = {"events": [event for event in self.record["restarts"]["warm"]["events"]
                              if event["event"] != "resumed"]}
        with self.assertRaisesRegex(pictures.Unreadable, "`resumed`"):
            pictures.phases_of(restart, self.time_use)


class FromTheCode(unittest.TestCase):
    def test_a_connection_that_the_code_no_longer_has_is_refused(self):
        for what, (path, words) in pictures.SHOWN_BY.items():
            with self.subTest(what), self.assertRaisesRegex(pictures.Unreadable, what):
                pictures.connections_picture(with_change(path, words, ""))

    def test_another_phase_or_way_is_refused(self):
        for path, old, new, error in (
                ("rendezvous/core/run.hpp", "Closed, Adopting,", "Closed, Paused, Adopting,",
                 "the phases Forming, .*Paused"),
                ("rendezvous/core/running.hpp", "Leads to: Stopping", "Leads to: Forming, Stopping",
                 "Running leads to Adopting, Closed, Forming, Stopping"),
                ("rendezvous/core/closed.hpp", "Leads to: nothing", "Leads to: Forming",
                 "Closed leads to Forming; the picture shows nothing"),
                ("rendezvous/core/restored.hpp", "variant<Forming, Running,", "variant<Running,",
                 "Restored leads to Adopting, Running, Stopping"),
                ("rendezvous/core/stopping.hpp", "Leads to:", "Ends in:", "does not say"),
                ("agent/supervise/worker_group.hpp", "WorkersHang, WorkersStop", "WorkersStop",
                 "other states")):
            with self.subTest(error), self.assertRaisesRegex(pictures.Unreadable, error):
                pictures.generation_picture(with_change(path, old, new))

    def test_names_of_enums_are_drawn_as_they_are(self):
        text = pictures.generation_picture(with_change(
            pictures.MESSAGES, "    Incomplete,", "    Unfinished,"))
        self.assertIn(">Unfinished</text>", text)
        self.assertNotIn(">Incomplete</text>", text)
        self.assertEqual(pictures.names_of_enum(
            "enum class A : char {\n    One = 'o',  ///< With a comma, Two\n    Three };", "A"),
            ["One", "Three"])


class Card(unittest.TestCase):
    def test_texts_that_meet_or_have_no_room_are_refused(self):
        card = svg.Picture(200, 100, "Card", "A card.")
        card.text(10, 20, "one text")
        with self.assertRaisesRegex(pictures.Unreadable, "`another` meets `one text`"):
            card.text(40, 26, "another")
        for words, options in (("a text that is longer than the card", {}),
                               ("wide", {"room": 10}), ("end", {"anchor": "end"})):
            with self.subTest(words), self.assertRaisesRegex(pictures.Unreadable, "no room"):
                card.text(8, 60, words, **options)

    def test_a_document_is_xml_that_says_what_it_shows(self):
        for path, text in pictures.make().items():
            root = xml.etree.ElementTree.fromstring(text)
            name = "{http://www.w3.org/2000/svg}"
            self.assertTrue(root.findtext(name + "title"), path)
            self.assertTrue(root.findtext(name + "desc"), path)
            self.assertLessEqual(int(root.get("width")), 900, path)
            self.assertIn("prefers-color-scheme: dark", root.findtext(name + "style"), path)
            drawn = set(re.findall(r'class="([\w-]+)"', text))
            styled = set(re.findall(r"\.([a-z][\w-]*) \{", text))
            self.assertEqual(drawn - styled, set(), path)


class Files(unittest.TestCase):
    def test_an_older_picture_is_noticed(self):
        with tempfile.TemporaryDirectory() as root:
            def run(*arguments):
                script = os.path.join(root, "scripts", "pictures.py")
                return subprocess.run([sys.executable, script, *arguments], capture_output=True,
                                      text=True, check=False)

            for path in (*SOURCES, *(f"scripts/{script}" for script in SCRIPTS)):
                os.makedirs(os.path.dirname(os.path.join(root, path)), exist_ok=True)
                shutil.copy(os.path.join(ROOT, path), os.path.join(root, path))
            older = run("--check")
            self.assertEqual(older.returncode, 1)
            for name in ("restart", "connections", "generation"):
                self.assertIn(f"docs/pictures/{name}.svg is older than its sources; run "
                              "scripts/pictures.py --write", older.stderr)
            self.assertEqual(run("--write").returncode, 0)
            self.assertEqual(run("--check").returncode, 0)
            with open(os.path.join(root, "docs/pictures/generation.svg"), "a",
                      encoding="utf-8") as file:
                file.write("<!-- by hand -->\n")
            self.assertEqual(run("--check").returncode, 1)
            self.assertEqual(run("--wrong").returncode, 2)
            os.remove(os.path.join(root, pictures.TIME_USE))
            self.assertIn(f"there is no {pictures.TIME_USE}", run("--check").stderr)


if __name__ == "__main__":
    unittest.main()
