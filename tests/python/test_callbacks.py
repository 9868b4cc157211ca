"""The callbacks, each with the real library: stop at the same step, save, leave, go on.

Needs torch and the libraries.

usage: test_callbacks.py [Callbacks.test_NAME]
"""

import importlib.util
import os
import re
import signal
import unittest

from ranks import RanksTest

SCRIPT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "callback_training.py")
MANY = str(1 << 20)
LIBRARIES = {"huggingface": "transformers", "lightning": "lightning", "accelerate": "accelerate"}


class Callbacks(RanksTest):
    def run_library(self, library):
        missing = [name for name in ("torch", LIBRARIES[library])
                   if importlib.util.find_spec(name) is None]
        if missing:
            option = "" if library == "accelerate" else " --full"
            print(f"LEFT OUT: no {', '.join(missing)} here, run scripts/setup.sh{option}")
            self.skipTest("a library is missing")
        self.start(SCRIPT, library, self.folder, "{store}", MANY)
        self.wait_until_they_train()
        self.ask(1, signal.SIGTERM)
        stopped = self.results()
        self.assertEqual([code for code, *_ in stopped], [75, 75], stopped)
        steps = [page.number("Q", 72) for page in self.pages]
        self.assertEqual(steps[0], steps[1])
        self.assertGreaterEqual(steps[0], 3)
        for _, text, _ in stopped:
            self.assertNotIn("is done", text)
            self.assertNotIn("evaluates", text)
        times = [self.pages[0].number("q", 192 + 8 * i) for i in range(4)]
        self.assertTrue(times[0] <= times[1] <= times[3], times)
        saved_ns = self.pages[0].number("q", 64 + 1216 + 56)
        self.assertTrue(0 < saved_ns < 60e9, saved_ns)

        # Once more, for four steps: from where it has stopped, to its end.
        for page in self.pages:
            page.put("I", 40, 0)
        end = steps[0] + 4
        self.start(SCRIPT, library, self.folder, "{store}", str(end))
        for code, text, said in self.results():
            self.assertEqual(code, 0, said)
            self.assertIn(f"begins at {steps[0]}\n", text)
            self.assertIn(f"is done at {end}\n", text)
        self.assertGreater(self.pages[0].number("q", 192 + 16), 0)

    def test_huggingface_trainer(self):
        self.run_library("huggingface")
        self.assertIn("checkpoint-", " ".join(os.listdir(self.folder)))

    def test_lightning(self):
        self.run_library("lightning")

    def test_accelerate(self):
        self.run_library("accelerate")
        names = os.listdir(self.folder)
        self.assertTrue(any(re.fullmatch(r"ddprun-step=\d+", name) for name in names), names)


if __name__ == "__main__":
    unittest.main()
