"""The shared page is laid out by hand twice: in worker_page.hpp for C++, and in Python.

Each thing that Page in worker_runtime/python/ddprun/_page.py tells must land on the member of
worker_page.hpp that is its own.
"""

import importlib.util
import os
import re
import unittest

ROOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..")
HEADER = "worker_runtime/contract/worker_page.hpp"
SIZES = {"std::uint32_t": 4, "std::uint64_t": 8, "std::int64_t": 8, "double": 8, "FatalSignal": 8,
         "std::byte": 1, "char": 1}
STRUCT = re.compile(r"struct alignas\(64\) (\w+) \{.*?\n(.*?)^\};", re.S | re.M)
MEMBER = re.compile(r"^    (alignas\(64\) )?(?:std::array<)?(?:std::atomic<)?([\w:]+)>?"
                    r"(?:, (\w+)>)? (\w+)(?: = |\{)", re.M)


def read(path):
    with open(os.path.join(ROOT, path), encoding="utf-8") as file:
        return file.read()


def layout():
    """{struct: ({member: (offset, size)}, bytes)}"""
    text = read(HEADER)
    numbers = dict(re.findall(r"constexpr std::\w+ (\w+) = (\w+);", text))
    structs = {}
    for name, body in STRUCT.findall(text):
        members, at = {}, 0
        for is_aligned, kind, count, member in MEMBER.findall(body):
            unit = SIZES[kind]
            size = unit * int(numbers.get(count, count) or 1)
            step = 64 if is_aligned else unit
            at = (at + step - 1) // step * step
            members[member] = (at, size)
            at += size
        structs[name] = (members, (at + 63) // 64 * 64)
    return structs, numbers


def load(path):
    spec = importlib.util.spec_from_file_location("page_under_test", os.path.join(ROOT, path))
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class Layout(unittest.TestCase):
    structs, numbers = layout()
    module = load("worker_runtime/python/ddprun/_page.py")

    def test_sizes_magic_and_versions_are_the_same(self):
        sizes = {name: size for name, (_, size) in self.structs.items()}
        life = read("worker_runtime/python/start/ddprun_start/life.py")
        constants = {name: int(value, 0) for name, value in
                     re.findall(r"^(_\w+) = (0x\w+|\d+)\b", life, re.M)}
        slot, header = (self.structs[name][0] for name in ("WorkerPageSlot", "WorkerPageHeader"))
        for known in (vars(self.module), constants):
            self.assertEqual(known["_HEADER_BYTES"], sizes["WorkerPageHeader"])
            self.assertEqual(known["_SLOT_BYTES"], sizes["WorkerPageSlot"])
            self.assertEqual(known["_MAGIC"], int(self.numbers["kWorkerPageMagic"], 0))
            self.assertEqual(known["_VERSION_MIN"], int(self.numbers["kWorkerPageVersionMin"]))
        self.assertEqual(constants["_LOCK_AT"], slot["life_lock"][0])
        self.assertEqual(constants["_BELL_AT"], header["bell"][0])
        for part in ("Figures", "Checkpoints", "Pace"):
            self.assertEqual(getattr(self.module, f"_{part.upper()}_BYTES"),
                             sizes["WorkerPage" + part])
            self.assertEqual(getattr(self.module, f"_VERSION_WITH_{part.upper()}"),
                             int(self.numbers["kWorkerPageVersionWith" + part]))

    def test_what_is_told_lands_on_its_own_member(self):
        cases = [("Slot", ("has_runtime",), "tell_that_it_looks"),
                 ("Slot", ("progress",), "tell_progress", 7),
                 ("Figures", ("main_ns",), "tell_main", 7),
                 ("Figures", ("group_ready_ns",), "tell_group_ready", 7),
                 ("Figures", ("resumed_ns",), "tell_resumed", 7),
                 ("Figures", ("first_step_ns", "first_step"), "tell_first_step", 7, 7),
                 ("Figures", ("samples",), "tell_samples", 7),
                 ("Figures", ("loss",), "tell_loss", 0.5),
                 ("Pace", ("writes", "step", "step_ns", "waited_ns", "first_waited_ns"),
                  "tell_pace", 7, 7, True),
                 ("Pace", ("waiting_ns",), "tell_waited", 7),
                 ("Pace", ("checkpointing_ns",), "tell_checkpointing", 7),
                 ("Pace", ("total_steps",), "tell_total_steps", 7),
                 ("Checkpoints", ("path_bytes", "path"), "tell_checkpoints", b"/a")]
        for part, told, method, *arguments in cases:
            with self.subTest(method):
                parts = {name.removeprefix("WorkerPage"): bytearray(size)
                         for name, (_, size) in self.structs.items()}
                page = self.module.Page(*(memoryview(parts[name]) for name in (
                    "Header", "Slot", "Figures", "Checkpoints", "Pace")))
                getattr(page, method)(*arguments)
                members = self.structs["WorkerPage" + part][0]
                changed = {name for name, (at, size) in members.items()
                           if any(parts[part][at:at + size])}
                self.assertEqual(changed, set(told))
                self.assertFalse(any(any(bytes_) for name, bytes_ in parts.items() if name != part))

    def test_what_is_asked_is_read_from_its_own_member(self):
        for member, ask, kind, expected in (
                ("publish_until_ns", "publish_until_ns", "q", 9),
                ("stop_deadline_ns", "stop_deadline_ns", "q", 9),
                ("stop_signal", "is_stop_wanted", "I", True)):
            header = bytearray(64)
            at = self.structs["WorkerPageHeader"][0][member][0]
            memoryview(header).cast(kind)[at // (8 if kind == "q" else 4)] = 9
            self.assertEqual(getattr(self.module.Page(memoryview(header)), ask)(), expected)


if __name__ == "__main__":
    unittest.main()
