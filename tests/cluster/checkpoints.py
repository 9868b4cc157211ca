"""ddpctl checkpoints: what it says of a folder of checkpoints, whole and damaged ones.

usage: checkpoints.py BIN_DIR CHECKPOINT_NODE [unittest's words]
"""

import json
import os
import re
import subprocess
import sys
import tempfile
import unittest

PATIENCE_S = 120  # on a machine that has no time for it
BIN, NODE = "", ""
MODEL = "model-00001-of-00001.safetensors"


class Checkpoints(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="ddprun-checkpoints-")
        self.addCleanup(folder.cleanup)
        self.folder = folder.name
        # Three are kept.
        subprocess.run([NODE, "publish", self.folder, "8", "10", "5"], check=True,
                       capture_output=True, timeout=PATIENCE_S)

    def ctl(self, action, *words, code=0):
        done = subprocess.run(
            [os.path.join(BIN, "ddpctl"), "checkpoints", action, *words], text=True,
            stdin=subprocess.DEVNULL, capture_output=True, timeout=PATIENCE_S, check=False)
        self.assertEqual(done.returncode, code, done.stdout + done.stderr)
        return done.stdout + done.stderr

    def file(self, step, name):
        return os.path.join(self.folder, f"step-{step:012}", name)

    def flip_a_bit(self, step):
        with open(self.file(step, MODEL), "r+b") as file:
            file.seek(1000)
            byte = file.read(1)[0]
            file.seek(1000)
            file.write(bytes([byte ^ 1]))

    def test_whole_ones(self):
        for action, state in (("list", "complete"), ("verify", "verified")):
            lines = self.ctl(action, self.folder).splitlines()
            self.assertRegex(lines[0], r"^STEP +SAVED +GENERATION +RANKS +SIZE +STATE$")
            self.assertEqual([line.split()[0] for line in lines[1:]], ["10", "9", "8"])
            for line in lines[1:]:
                self.assertRegex(line, r"^\d+ +20\S+ \S+ +1 +1 +293\.1 KiB +" + state + "$")
        told = [json.loads(line) for line in self.ctl("verify", self.folder, "--step", "9",
                                                      "--json").splitlines()]
        self.assertEqual(len(told), 1)
        self.assertEqual({key: told[0][key] for key in ("step", "state", "generation",
                                                        "world_size")},
                         {"step": 9, "state": "verified", "generation": 1, "world_size": 1})
        self.assertEqual(told[0]["bytes"], os.path.getsize(self.file(9, MODEL)))

    def test_a_flipped_bit_is_found_by_reading_alone(self):
        self.flip_a_bit(9)
        self.assertNotIn("damaged", self.ctl("list", self.folder))
        text = self.ctl("verify", self.folder, code=1)
        self.assertRegex(text, rf"(?m)^9 +- +- +- +- +damaged: {self.file(9, MODEL)}: its checksum "
                               r"is [0-9a-f]{32}, the manifest says [0-9a-f]{32}$")
        self.assertEqual(len(re.findall(" verified$", text, re.MULTILINE)), 2)
        told = json.loads(self.ctl("verify", self.folder, "--step", "9", "--json", code=1))
        self.assertEqual(told["state"], "damaged")
        self.assertIn("its checksum is", told["error"])
        self.ctl("verify", self.folder, "--step", "10")

    def test_what_can_be_seen_without_reading(self):
        os.truncate(self.file(8, MODEL), 7)
        os.remove(self.file(9, MODEL))
        os.remove(self.file(10, "manifest.json"))
        for action in ("list", "verify"):
            text = self.ctl(action, self.folder, code=1)
            self.assertRegex(text, r"(?m)^8 .* damaged: \S+ has 7 bytes, the manifest says 300")
            self.assertRegex(text, r"(?m)^9 .* damaged: \S+\.safetensors is missing")
            self.assertRegex(text, r"(?m)^10 .* damaged: \S+manifest\.json is missing")

    def test_who_reads_no_further_ends_it(self):
        for flags in ([], ["--json"]):
            listing = subprocess.Popen(
                [os.path.join(BIN, "ddpctl"), "checkpoints", "list", self.folder, *flags],
                stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
            listing.stdout.close()
            self.assertEqual(listing.stderr.read(), "")
            listing.stderr.close()
            self.assertEqual(listing.wait(PATIENCE_S), 0)

    def test_what_is_none(self):
        with tempfile.TemporaryDirectory() as empty:
            self.assertRegex(self.ctl("list", empty, code=1),
                             f"^ddpctl: {empty} has no checkpoint; ")
        self.assertIn("has no checkpoint", self.ctl("verify", self.folder + "/none", code=1))
        self.assertIn("has no checkpoint of step 7; it has those of steps 8 to 10",
                      self.ctl("verify", self.folder, "--step", "7", code=1))
        self.ctl("list", self.file(8, MODEL), code=2)
        self.assertIn("list", self.ctl("shred", self.folder, code=2))
        self.assertIn("DIR", self.ctl("list", code=2))


if __name__ == "__main__":
    BIN, NODE = map(os.path.abspath, sys.argv[1:3])
    unittest.main(argv=[sys.argv[0], *sys.argv[3:]], verbosity=2)
