"""Ranks agree on a stop, and on nothing outside ddprun. Needs torch."""

import importlib.util
import os
import re
import signal
import unittest

from ranks import DEADLINE_S, RanksTest
from test_worker import ROOT

SCRIPT = os.path.join(ROOT, "tests", "cluster", "workers", "asks_each_step.py")


class Stop(RanksTest):
    def test_a_stop_asked_of_one_is_answered_by_all_at_the_same_step(self):
        self.start(SCRIPT, "--init", "file://{store}")
        self.wait_until_they_train()
        for page in self.pages:
            self.assertEqual(page.number("I", 64), 1)
        self.ask(1, signal.SIGTERM)
        first, second = self.results()
        self.assertEqual((first[0], second[0]), (75, 75), first[2] + second[2])
        steps = [int(re.search(r"leaves after step (\d+)", text)[1])
                 for _, text, _ in (first, second)]
        self.assertEqual(steps[0], steps[1])
        self.assertIn("deadline False", first[1])
        self.assertIn("deadline True", second[1])
        self.assertEqual([page.number("Q", 72) for page in self.pages], steps)

    def test_a_program_may_destroy_its_process_groups_before_it_leaves(self):
        self.start(SCRIPT, "--init", "file://{store}", "--destroys")
        self.ask(0, signal.SIGTERM)
        for code, _, said in self.results():
            self.assertEqual((code, said), (75, ""))

    def test_a_rank_whose_peer_is_gone_is_told_once_and_goes_on(self):
        self.start(SCRIPT, "--init", "file://{store}", "--dies-after", "5", "--steps", "50")
        survivor, gone = self.results()
        self.assertEqual(gone[0], 0)
        self.assertEqual(survivor[0], 0, survivor[2])
        self.assertIn("rank 0 is done", survivor[1])
        self.assertEqual(survivor[2].count("agreeing on a stop request failed"), 1, survivor[2])

    def test_a_rank_that_fails_waits_for_no_other(self):
        self.start(SCRIPT, "--init", "file://{store}", "--steps", "5", "--raises-after", "5")
        late, failed = self.ranks
        # Its word is on its way, and rank 0 does not answer.
        _, said = failed.communicate(timeout=DEADLINE_S)
        self.assertEqual(failed.returncode, 1, said)
        self.assertIn("as it was told to", said)
        _, said = late.communicate(timeout=DEADLINE_S)
        self.assertEqual((late.returncode, said), (0, ""))

    def test_an_answer_that_comes_while_the_interpreter_is_taken_down_harms_nothing(self):
        self.start(SCRIPT, "--init", "file://{store}", "--steps", "5", "--raises-after", "5",
                   "--lingers")
        late, failed = self.ranks
        heard = []
        for line in failed.stdout:
            heard.append(line)
            if line == "is taken down\n":
                break
        else:
            self.fail(f"{heard} code {failed.wait()} {failed.stderr.read()}")
        _, said = late.communicate(timeout=DEADLINE_S)
        self.assertEqual((late.returncode, said), (0, ""))
        _, said = failed.communicate(timeout=DEADLINE_S)
        self.assertEqual(failed.returncode, 1, said)

    def test_outside_ddprun_it_is_never_asked_and_sigterm_ends_it(self):
        self.start(SCRIPT, "--init", "file://{store}", is_under_ddprun=False)
        self.wait_until_they_train()
        for process in self.ranks:
            process.send_signal(signal.SIGTERM)
        for code, text, _ in self.results():
            self.assertEqual(code, -signal.SIGTERM)
            self.assertNotIn("leaves", text)

    def test_a_training_ends_by_itself_with_a_word_on_its_way(self):
        self.start(SCRIPT, "--init", "file://{store}", "--steps", "20")
        for code, text, said in self.results():
            self.assertEqual(code, 0, said)
            self.assertIn(" is done", text)


if __name__ == "__main__":
    if importlib.util.find_spec("torch") is None:
        print("LEFT OUT: no torch here, run scripts/setup.sh")
    else:
        unittest.main()
