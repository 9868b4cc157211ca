"""A rank of two nodes gets no further: ddpctl status names it, and says what it does.

usage: stalls.py BIN_DIR [unittest's words]
"""

import re

from two_nodes import TwoNodeTest, main


class StallTest(TwoNodeTest):
    def test_a_rank_that_sleeps_is_named(self):
        self.start_job("steps", "sleeps")
        said = self.status_with(
            r"no step for \d+ s; all at step 19: rank 1 on \S+ sleeps, the other waits")
        self.assertNotIn("steps/s", said)
        self.assertNotIn("slowest", said)

    def test_a_rank_that_computes_without_end_is_named(self):
        self.start_job("steps", "computes")
        self.status_with(
            r"no step for \d+ s; all at step 19: rank 1 on \S+ computes, the other waits")

    def test_a_rank_that_waits_for_a_key_that_nobody_sets_is_named(self):
        self.start_job("steps", "waits_for_store")
        self.status_with(r"no step for \d+ s; all at step 19: rank 1 on \S+ waits for the workers' "
                         "store, the other waits")

    def test_a_rank_of_a_program_that_tells_no_steps_is_named(self):
        for fault, does in (("sleeps", "sleeps"), ("computes", "computes"),
                            ("waits_for_store", "waits for the workers' store")):
            with self.subTest(fault):
                self.setUp()
                self.start_job("output", fault)
                said = self.status_with(
                    rf"no output for \d+ s; rank 1 on \S+ {does}, the other waits")
                self.assertRegex(said, "time: at work .* % ")
                self.assertNotIn("training", said)

    def test_a_slow_rank_is_named_with_steps_and_without(self):
        for tells in ("steps", "output"):
            with self.subTest(tells):
                self.setUp()
                self.start_job(tells, "slow")
                self.status_with(
                    r"slowest: rank 1 on \S+; the others wait for it \d+ % of the time")

    def test_the_first_status_has_the_steps(self):
        self.start_job("steps", "sleeps")
        # Both ranks have reported their last step; the rendezvous has had no request yet.
        self.await_steps()
        said = self.ctl("status")
        self.assertEqual(len(re.findall("step 19", said)), 2, said)


if __name__ == "__main__":
    main()
