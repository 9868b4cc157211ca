"""A user who takes a Result for its value reads under the compiler's first error the right code.

usage: result_misuse.py COMPILER SOURCE
"""

import os
import subprocess
import sys
import unittest

COMPILER = sys.argv[1]
SOURCE = os.path.abspath(sys.argv[2])
PROGRAM = """
#include <string>
#include <vector>

#include "base/result.hpp"

struct Group {
    int rank() const;
};
ddprun::Result<Group> join();
ddprun::Result<bool> ask();
void train(const Group& group);

ddprun::Result<int> meant() {
    if (!ask()) {
        return -1;
    }
    const ddprun::Result<Group> group = join();
    if (!group) {
        return group.error();
    }
    train(*group);
    return group->rank();
}
"""
HINT = "`*result` is its value"


class ResultMisuse(unittest.TestCase):
    def first_error(self, statement):
        """With the lines that the compiler shows under it."""
        done = subprocess.run(
            [COMPILER, "-std=c++20", "-fsyntax-only", "-I", SOURCE, "-x", "c++", "-"],
            input=PROGRAM + f"void wrong() {{ {statement} }}\n", text=True, capture_output=True,
            check=False, cwd="/", env={"LC_ALL": "C", "PATH": "/usr/bin:/bin"})
        before, error, first = done.stderr.partition("error: ")
        self.assertEqual(done.returncode != 0, error != "", before)
        return first.partition("error: ")[0]

    def test_what_is_meant_compiles(self):
        self.assertEqual(self.first_error(""), "")

    def test_a_result_is_none_for_those_who_ask_whether_it_can_be_its_value(self):
        self.assertEqual(self.first_error(
            "static_assert(!std::is_convertible_v<ddprun::Result<int>, int>);"), "")

    def test_each_misuse_is_told_in_its_first_error(self):
        for statement in ("Group group = join();", "Group group(join());", "train(join());",
                          "Group group; group = join();", "const Group& group = join();",
                          "std::vector<Group> groups; groups.push_back(join());",
                          "bool is_ready = ask();"):
            with self.subTest(statement):
                told = self.first_error(statement)
                self.assertRegex(told, "^.*deleted")
                self.assertIn(HINT, told)

    def test_a_member_of_the_value_is_told_to_be_none_of_the_result(self):
        self.assertRegex(self.first_error("join().rank();"),
                         "no member named .rank.|Result<Group>.* has no member named .rank.")


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1], verbosity=2)
