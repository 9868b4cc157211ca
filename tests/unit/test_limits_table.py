"""scripts/limits_table.py reads every form of field, refuses what it does not understand, and
notices a document that is older than the header."""

import os
import shutil
import subprocess
import sys
import tempfile
import unittest

ROOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..")
sys.path.insert(0, os.path.join(ROOT, "scripts"))

import limits_table  # noqa: E402


def rows(fields):
    return limits_table.read_limits(f"struct Limits {{\n    // Part.\n{fields}\n}};\n")[0][1]


class Fields(unittest.TestCase):
    def test_values_have_their_units(self):
        for field, value in [
            ("std::size_t a_bytes_max = std::size_t{1} << 20;", "1 MiB"),
            ("std::uint64_t a_bytes_max = std::uint64_t{16} << 30;", "16 GiB"),
            ("std::size_t a_bytes_max = 8192;", "8 KiB"),
            ("std::size_t a_bytes_max = 255;", "255 bytes"),
            ("Milliseconds a{20};", "20 ms"), ("Milliseconds a{1500};", "1.5 s"),
            ("Milliseconds a{600000};", "600 s"),
            ("int a_max = 10'000;", "10,000"), ("std::size_t a_max = 1024;", "1024"),
            ("int a_max = 1 << 16;", "65,536"), ("int a = 3 * 4;", "12"),
        ]:
            with self.subTest(field):
                self.assertEqual(rows(field + "  ///< why")[0][1:], (value, "why"))
        self.assertEqual(rows("int slack = 1 << 10;  ///< bytes; why")[0][1], "1 KiB")

    def test_a_comment_may_stand_above_or_go_on(self):
        self.assertEqual(rows("    /// one\n    /// two\n    int a = 1;\n"
                              "    int b = 2;  ///< three\n                ///< four\n"),
                         [("a", "1", "one two"), ("b", "2", "three four")])
        self.assertEqual(rows("    /// why\n    std::size_t name =\n        std::size_t{2} << 0;"),
                         [("name", "2", "why")])

    def test_sections_are_kept(self):
        text = "struct Limits {\n    // Wire.\n    int a = 1;  ///< a\n\n    // Hangs.\n" \
               "    int b = 2;  ///< b\n};\n"
        self.assertEqual([part[0] for part in limits_table.read_limits(text)], ["Wire", "Hangs"])
        self.assertIn("## Hangs\n\n| field | value | what |\n| --- | --- | --- |\n"
                      "| `b` | 2 | b |\n", limits_table.document([text]))

    def test_the_sections_of_several_headers_follow_one_another(self):
        first = "struct Limits {\n    // Wire.\n    int a = 1;  ///< a\n};\n"
        second = "struct RuntimeLimits {\n    // Runtime.\n    int b = 2;  ///< b\n};\n"
        self.assertRegex(limits_table.document([first, second]), "(?s)## Wire.*## Runtime.*`b` | 2")

    def test_what_is_not_understood_is_refused(self):
        for field in ["int a = other;  ///< a", "int a = f(1);  ///< a", "int a;  ///< a"]:
            with self.subTest(field), self.assertRaises(limits_table.Unreadable):
                rows(field)
        with self.assertRaises(limits_table.Unreadable):
            limits_table.read_limits("struct Other {};\n")


class Document(unittest.TestCase):
    def run_in(self, root, *arguments):
        script = os.path.join(root, "scripts", "limits_table.py")
        return subprocess.run([sys.executable, script, *arguments], capture_output=True, text=True,
                              check=False)

    def test_an_older_document_is_noticed(self):
        with tempfile.TemporaryDirectory() as root:
            for folder in ("scripts", "base", "docs"):
                os.makedirs(os.path.join(root, folder))
            runtime = os.path.join(root, "base", "runtime_limits.hpp")
            with open(runtime, "w", encoding="utf-8") as file:
                file.write("struct RuntimeLimits {\n    // B.\n    int b = 1;  ///< b\n};\n")
            watch = os.path.join(root, "base", "watch_limits.hpp")
            with open(watch, "w", encoding="utf-8") as file:
                file.write("struct WatchLimits {\n    // C.\n    int c = 1;  ///< c\n};\n")
            ahead = os.path.join(root, "base", "read_ahead_limits.hpp")
            with open(ahead, "w", encoding="utf-8") as file:
                file.write("struct ReadAheadLimits {\n    // D.\n    int d = 1;  ///< d\n};\n")
            logs = os.path.join(root, "base", "log_limits.hpp")
            with open(logs, "w", encoding="utf-8") as file:
                file.write("struct LogLimits {\n    // E.\n    int e = 1;  ///< e\n};\n")
            memory = os.path.join(root, "base", "memory_limits.hpp")
            with open(memory, "w", encoding="utf-8") as file:
                file.write("struct MemoryLimits {\n    // F.\n    int f = 1;  ///< f\n};\n")
            for script in ("limits_table.py", "made_files.py"):
                shutil.copy(os.path.join(ROOT, "scripts", script), os.path.join(root, "scripts"))
            header = os.path.join(root, "base", "limits.hpp")
            with open(header, "w", encoding="utf-8") as file:
                file.write("struct Limits {\n    // A.\n    int a = 1;  ///< a\n};\n")
            self.assertEqual(self.run_in(root, "--check").returncode, 1)
            self.assertEqual(self.run_in(root, "--write").returncode, 0)
            self.assertEqual(self.run_in(root, "--check").returncode, 0)
            with open(header, "a", encoding="utf-8") as file:
                file.write("// The table does not have this.\n")
            self.assertEqual(self.run_in(root, "--check").returncode, 0)
            with open(header, "w", encoding="utf-8") as file:
                file.write("struct Limits {\n    // A.\n    int a = 2;  ///< a\n};\n")
            older = self.run_in(root, "--check")
            self.assertEqual(older.returncode, 1)
            self.assertIn("docs/limits.md is older than base/limits.hpp", older.stderr)
            self.assertEqual(self.run_in(root, "--wrong").returncode, 2)


if __name__ == "__main__":
    unittest.main()
