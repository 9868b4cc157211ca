"""scripts/golden.sh: two snapshots of one build are the same, and what differs is shown.

usage: golden_test.py BUILD_DIR SOURCE_DIR [unittest's words]
"""

import os
import re
import subprocess
import sys
import tempfile
import unittest

import commands

BUILD = SOURCE = ""


def golden(*words):
    return subprocess.run([os.path.join(SOURCE, "scripts", "golden.sh"), *words], text=True,
                          stdin=subprocess.DEVNULL, capture_output=True, check=False)


class Golden(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = cls.enterClassContext(tempfile.TemporaryDirectory(prefix="ddprun-snapshots-"))
        cls.first, cls.second = (os.path.join(cls.folder, name) for name in ("first", "second"))
        for out in (cls.first, cls.second):
            done = golden("take", "--only", "texts", "--only", "commands", BUILD, out)
            if done.returncode != 0:
                raise AssertionError(done.stdout + done.stderr)

    def change(self, name, old, new):
        """Changes a file of the second snapshot, for this test."""
        path = os.path.join(self.second, name)
        with open(path, encoding="utf-8") as file:
            text = file.read()
        self.assertIn(old, text)
        self.addCleanup(self.write, path, text)
        self.write(path, text.replace(old, new, 1))

    @staticmethod
    def write(path, text):
        with open(path, "w", encoding="utf-8") as file:
            file.write(text)

    def test_one_build_is_the_same_twice(self):
        done = golden("compare", self.first, self.second)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)

    def test_another_help_text_and_exit_code_are_shown(self):
        self.change("texts/help/ddprun.txt", "out | usage: ", "out | use: ")
        self.change("commands/program.txt", "## ddprun missing\nexit 127\n",
                    "## ddprun missing\nexit 126\n")
        done = golden("compare", self.first, self.second)
        self.assertEqual(done.returncode, 1)
        self.assertIn("commands/program.txt\n## ddprun missing\n  -exit 127\n  +exit 126\n",
                      done.stdout)
        self.assertRegex(done.stdout, r"\n  -out \| usage: (.*)\n  \+out \| use: \1\n")
        self.assertIn("golden: 2 of ", done.stdout)

    def test_a_file_that_only_one_has_is_shown(self):
        path = os.path.join(self.second, "commands", "new.txt")
        self.write(path, "")
        self.addCleanup(os.remove, path)
        done = golden("compare", self.first, self.second)
        self.assertEqual(done.returncode, 1)
        self.assertIn("commands/new.txt\nonly in ", done.stdout)

    def test_command_lines_have_every_flag_once_as_it_works(self):
        with open(os.path.join(self.first, "texts/help/ddprun.txt"), encoding="utf-8") as file:
            flags = re.findall(r"^out \|   (?:-\w, )?(--[a-z-]+)", file.read(), re.MULTILINE)
        self.assertIn("--nnodes", flags)
        works = set()
        for section in {row[0] for row in commands.read_table()}:
            name = f"commands/{section.replace(' ', '-')}.txt"
            with open(os.path.join(self.first, name), encoding="utf-8") as file:
                for line in re.findall(r"^## (.*)\nexit 0$", file.read(), re.MULTILINE):
                    works.update(re.findall(r"--[a-z-]+", line))
        self.assertEqual(set(flags) - works, set())

    def test_a_folder_that_is_not_empty_is_left_alone(self):
        done = golden("take", "--only", "texts", BUILD, self.first)
        self.assertNotEqual(done.returncode, 0)
        self.assertIn("is not empty", done.stderr)


if __name__ == "__main__":
    BUILD, SOURCE = map(os.path.abspath, sys.argv[1:3])
    unittest.main(argv=[sys.argv[0], *sys.argv[3:]], verbosity=2)
