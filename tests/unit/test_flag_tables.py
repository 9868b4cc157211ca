"""scripts/flag_tables.py: rows become tables, and what it does not understand is refused."""

import os
import shutil
import subprocess
import sys
import tempfile
import unittest

ROOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..")
sys.path.insert(0, os.path.join(ROOT, "scripts"))
import flag_tables  # noqa: E402

ROWS = '''
constexpr std::array kFlags = {
    /// | number, 1 | ours: so many
    /// of them
    Flag{.name = "apples",
         .letter = 'a',
         .placeholder = "N",
         .group = Group::Fruit,
         .help = "a {basket} of them,\\n"
                 "and more"},
    /// | anything |
    Flag{.name = "old", .placeholder = "VALUE", .group = Group::Hidden},
};
'''
PAGE = '''# Page
<!-- flags: Fruit -->
<!-- end of flags -->
between
<!-- flags: Hidden -->
old text
<!-- end of flags -->
'''


class Tables(unittest.TestCase):
    def test_a_row_becomes_a_line_of_its_groups_table(self):
        self.assertEqual(flag_tables.document(ROWS, PAGE), '''# Page
<!-- flags: Fruit -->
| flag | value, default | against torchrun |
| --- | --- | --- |
| `-a`, `--apples` | number, 1 | ours: so many of them |
<!-- end of flags -->
between
<!-- flags: Hidden -->
| flag | accepted | otherwise |
| --- | --- | --- |
| `--old` | anything |  |
<!-- end of flags -->
''')

    def test_a_row_without_its_sentence_is_refused(self):
        rows = ROWS.replace("    /// | anything |\n", "")
        with self.assertRaisesRegex(flag_tables.Unreadable, "--old"):
            flag_tables.document(rows, PAGE)

    def test_a_group_without_a_table_and_a_table_without_a_group_are_refused(self):
        with self.assertRaisesRegex(flag_tables.Unreadable, "no table of Hidden"):
            flag_tables.document(ROWS, PAGE[:PAGE.index("between")])
        with self.assertRaisesRegex(flag_tables.Unreadable, "Fruits"):
            flag_tables.document(ROWS, PAGE.replace("Fruit", "Fruits"))


class Document(unittest.TestCase):
    def test_an_older_document_is_noticed(self):
        with tempfile.TemporaryDirectory() as root:
            def run(*arguments):
                script = os.path.join(root, "scripts", "flag_tables.py")
                return subprocess.run([sys.executable, script, *arguments], capture_output=True,
                                      text=True, check=False)

            for folder in ("scripts", "launcher/plan", "docs"):
                os.makedirs(os.path.join(root, folder))
            for script in ("flag_tables.py", "made_files.py"):
                shutil.copy(os.path.join(ROOT, "scripts", script), os.path.join(root, "scripts"))
            for path, text in ((flag_tables.SOURCE, ROWS), (flag_tables.DOCUMENT, PAGE)):
                with open(os.path.join(root, path), "w", encoding="utf-8") as file:
                    file.write(text)
            older = run("--check")
            self.assertEqual(older.returncode, 1)
            self.assertIn("docs/torchrun.md is older than launcher/plan/flag_table.cpp",
                          older.stderr)
            self.assertEqual(run("--write").returncode, 0)
            self.assertEqual(run("--check").returncode, 0)
            self.assertEqual(run("--wrong").returncode, 2)


if __name__ == "__main__":
    unittest.main()
