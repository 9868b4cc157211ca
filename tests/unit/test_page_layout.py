"""scripts/page_layout.py gives Python the layout of the header, refuses what it does not
understand, and notices a block that is older; what Page in worker_runtime/python/ddprun/_page.py
writes lands on the member that is its own."""

import importlib.util
import os
import shutil
import subprocess
import sys
import tempfile
import unittest

ROOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..")
sys.path.insert(0, os.path.join(ROOT, "scripts"))
import page_layout  # noqa: E402

HEADER = '''
inline constexpr std::uint64_t kWorkerPageMagic = 0x47;
inline constexpr std::size_t kNameBytesMax = 60;
struct alignas(64) WorkerPagePart {
    std::uint32_t version = 1;  ///< of all; what follows is newer
    std::atomic<double> loss{0};
    alignas(64) std::array<std::byte, 4> lock{};
    std::array<std::atomic<char>, kNameBytesMax> name{};
    std::atomic<std::int64_t> last_ns{0};
};
static_assert(sizeof(WorkerPagePart) == 192);
'''
PYTHON = '''import os

# Made by scripts/page_layout.py --write from worker_page.hpp:
old text
# End of what is made.
_OTHER = 1
print(_MAGIC, _PART_BYTES, _PART_LAST_NS, _OTHER)
'''


class Constants(unittest.TestCase):
    def test_a_member_is_the_index_in_a_view_of_its_type(self):
        self.assertEqual(page_layout.constants(HEADER), {
            "_MAGIC": "0x47", "_NAME_BYTES_MAX": "60", "_PART_BYTES": 192, "_PART_VERSION": 0,
            "_PART_LOSS": 1, "_PART_LOCK": 64, "_PART_NAME": 68, "_PART_LAST_NS": 16})

    def test_a_block_holds_what_its_file_uses(self):
        self.assertEqual(page_layout.document(HEADER, "x.py", PYTHON), PYTHON.replace(
            "old text\n", "_MAGIC = 0x47\n_PART_BYTES = 192\n_PART_LAST_NS = 16\n"))

    def test_what_is_not_understood_is_refused(self):
        for header, python, error in (
                (HEADER.replace("std::atomic<double>", "std::atomic<float>"), PYTHON, "loss"),
                (HEADER.replace("loss{0};", "loss;"), PYTHON, "loss"),
                (HEADER.replace("== 192", "== 128"), PYTHON, "192 bytes"),
                (HEADER, PYTHON.replace("_LAST_NS", "_NEXT_NS"), "_PART_NEXT_NS"),
                (HEADER, PYTHON.replace("# End", "#"), "0 blocks"),
                (HEADER, PYTHON * 2, "2 blocks")):
            with self.subTest(error), self.assertRaisesRegex(page_layout.Unreadable, error):
                page_layout.document(header, "x.py", python)

    def test_an_older_block_is_noticed(self):
        with tempfile.TemporaryDirectory() as root:
            def run(*arguments):
                script = os.path.join(root, "scripts", "page_layout.py")
                return subprocess.run([sys.executable, script, *arguments], capture_output=True,
                                      text=True, check=False)

            os.makedirs(os.path.join(root, "scripts"))
            for script in ("page_layout.py", "made_files.py"):
                shutil.copy(os.path.join(ROOT, "scripts", script), os.path.join(root, "scripts"))
            for path in (page_layout.SOURCE, *page_layout.FILES):
                os.makedirs(os.path.dirname(os.path.join(root, path)), exist_ok=True)
                with open(os.path.join(root, path), "w", encoding="utf-8") as file:
                    file.write(HEADER if path == page_layout.SOURCE else PYTHON)
            older = run("--check")
            self.assertEqual(older.returncode, 1)
            for path in page_layout.FILES:
                self.assertIn(f"{path} is older than {page_layout.SOURCE}; run "
                              "scripts/page_layout.py --write", older.stderr)
            self.assertEqual(run("--write").returncode, 0)
            self.assertEqual(run("--check").returncode, 0)
            self.assertEqual(run("--wrong").returncode, 2)


def load(path):
    spec = importlib.util.spec_from_file_location("page_under_test", os.path.join(ROOT, path))
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class Told(unittest.TestCase):
    _, structs = page_layout.read_layout(page_layout.read(page_layout.SOURCE))
    module = load(page_layout.FILES[0])

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
                 ("Checkpoints", ("path_bytes", "path"), "tell_checkpoints", b"/a"),
                 ("Saves", ("writes", "late"), "tell_save_asked", True),
                 ("Saves", ("writes", "in_time"), "tell_save_asked", False),
                 ("Saves", ("writes", "begun_step", "begun_ns"), "tell_save_begun", 7)]
        for part, told, method, *arguments in cases:
            with self.subTest(method):
                parts = {name: bytearray(size) for name, (size, _) in self.structs.items()}
                page = self.module.Page(*(memoryview(parts[name]) for name in (
                    "Header", "Slot", "Figures", "Checkpoints", "Pace", "Saves")))
                getattr(page, method)(*arguments)
                members = self.structs[part][1]
                changed = {name for name, (at, size) in members.items()
                           if any(parts[part][at:at + size])}
                self.assertEqual(changed, set(told))
                self.assertFalse(any(any(bytes_) for name, bytes_ in parts.items() if name != part))

    def test_a_whole_save_lands_on_its_own_members(self):
        for size, told in ((7, ("saved", "step", "saved_ns", "state_bytes", "stall_ns", "took_ns",
                                "places")),
                           (None, ("failed", "failed_step", "failed_ns"))):
            with self.subTest(size):
                saves = memoryview(bytearray(self.structs["Saves"][0]))
                reason = memoryview(bytearray(self.structs["Reason"][0]))
                page, bells = self.module.Page(saves=saves, reason=reason), []
                page.ring_with(lambda bell, bells=bells: bells.append(bell.nbytes))
                page.tell_save_begun(7)
                page.tell_save_ended(size, self.module.IN_MEMORY, "full")
                before = bytes(saves)
                self.assertEqual(bells, [])
                page.tell_save_stalled(7)
                self.assertEqual(bells, [4])
                changed = {name for name, (at, width) in self.structs["Saves"][1].items()
                           if saves[at:at + width] != before[at:at + width]}
                self.assertEqual(changed, {"writes", *told})
                at = self.structs["Saves"][1]["writes"][0]
                self.assertEqual(saves[at] % 2, 0)
                self.assertEqual(self.reason_in(reason), b"" if size else b"full")

    def reason_in(self, part):
        members = self.structs["Reason"][1]
        at, width = members["text_bytes"]
        size = int.from_bytes(part[at:at + width], sys.byteorder)
        return bytes(part[members["text"][0]:][:size])

    def test_a_reason_is_cut_between_two_characters(self):
        most = 508
        for text, told in (("x" * most, "x" * most), ("x" * most + "x", "x" * (most - 3) + "…"),
                           ("x" * (most - 4) + "äöü", "x" * (most - 4) + "…"),
                           ("a\udcffb", "a?b"), ("", "")):
            with self.subTest(text[-5:]):
                part = memoryview(bytearray(self.structs["Reason"][0]))
                page = self.module.Page(reason=part)
                page.tell_save_begun(7)
                page.tell_save_stalled(7)
                page.tell_save_ended(None, 0, text)
                self.assertEqual(self.reason_in(part).decode(), told)

    def test_what_is_asked_is_read_from_its_own_member(self):
        for member, ask, kind, expected in (
                ("publish_until_ns", "publish_until_ns", "q", 9),
                ("stop_deadline_ns", "stop_deadline_ns", "q", 9),
                ("stop_signal", "is_stop_wanted", "I", True)):
            header = bytearray(64)
            at = self.structs["Header"][1][member][0]
            memoryview(header).cast(kind)[at // (8 if kind == "q" else 4)] = 9
            self.assertEqual(getattr(self.module.Page(memoryview(header)), ask)(), expected)


if __name__ == "__main__":
    unittest.main()
