"""Standbys look for changes that a program makes in installed modules.

Each change is made twice: where dicts have versions (PEP 509), by which most modules need no look,
and where they have none.
"""

import os
import sys
import types
import unittest
import weakref

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)),
                                "../../worker_runtime/python/start"))
from ddprun_start import state  # noqa: E402


def own():
    pass


# Changes to a module with `function` and `number`, and the names that count as replaced.
CHANGES = [
    ("pass", []),
    ("module.function = own", ["function"]),
    ("module.function = module.function", []),
    ("saved = module.function; module.function = own; module.function = saved", []),
    ("del module.function", ["function"]),
    ("module.number = 2", []),
    ("module.number = own", []),
    ("del module.number", []),
    ("module.new = own", ["new"]),
    ("module.new = 3", []),
    ("module.new = types", []),
    ("module.__dict__.update(function=own, new=own)", ["function", "new"]),
    ("module.__dict__.pop('function')", ["function"]),
    ("module.__dict__.setdefault('new', own)", ["new"]),
    ("module.moved = module.function; del module.function", ["function", "moved"]),
    ("exec('def function(): pass', module.__dict__)", ["function"]),
    ("exec('global function\\nfunction = 1', module.__dict__)", ["function"]),
    ("module.number = 2; module.function = own", ["function"]),
    ("saved = dict(module.__dict__); module.__dict__.clear(); module.__dict__.update(saved)", []),
]


class MembersTest(unittest.TestCase):
    def setUp(self):
        self.addCleanup(setattr, state, "_VERSION", state._VERSION)

    def changed(self, change):
        """The names after the change, and once more after a change that does not count."""
        module = types.ModuleType("library")
        module.function, module.number = len, 1
        members = state._Members(module)
        self.assertEqual(members.replaced(), [])
        found = []
        for one in (change, "module.__doc__ = 'another'"):
            exec(one, {"module": module, "own": own, "types": types})
            found.append(sorted(name for _, name, _, _ in members.replaced()))
            self.assertEqual(sorted(name for _, name, _, _ in members.replaced()), found[-1])
        return found

    def test_what_counts_is_seen_with_versions_and_without(self):
        for version in (state._VERSION, None):
            state._VERSION = version
            for change, names in CHANGES:
                with self.subTest(change, has_versions=version is not None):
                    self.assertEqual(self.changed(change), [names, names])

    def test_this_python_has_versions_until_3_13(self):
        self.assertEqual(state._VERSION is not None,
                         sys.implementation.name == "cpython" and sys.version_info < (3, 14))

    def test_a_class_of_modules_may_have_another_dict(self):
        class Library(types.ModuleType):
            real = types.ModuleType.__dict__["__dict__"].__get__
            __dict__ = property(lambda self: dict(self.real(self)))

        module = Library("library")
        module.function = len
        members = state._Members(module)
        self.assertEqual(members.replaced(), [])
        module.function = own
        self.assertEqual(members.replaced(), [(module, "function", len, own)])

    def test_what_a_library_lets_go_of_is_gone(self):
        class Large:
            pass

        module = types.ModuleType("library")
        module.table = Large()
        gone = weakref.ref(module.table)
        members = state._Members(module)
        module.table = None
        self.assertIsNone(gone())
        self.assertEqual(members.replaced(), [])

    def test_what_has_changed_once_is_looked_at_again_when_it_changes_again(self):
        module = types.ModuleType("library")
        module.function, module.number = len, 1
        members = state._Members(module)
        module.number = 2
        self.assertEqual(members.replaced(), [])
        module.function = own
        self.assertEqual(members.replaced(), [(module, "function", len, own)])
        module.function = len
        self.assertEqual(members.replaced(), [])


if __name__ == "__main__":
    unittest.main()
