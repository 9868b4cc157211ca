"""The callbacks, each with the real library: stop at the same step, save, leave, go on.

Needs torch and the libraries.

usage: test_callbacks.py [Accelerate|Huggingface|Lightning[.test_NAME]]
"""

import contextlib
import importlib.util
import io
import itertools
import os
import re
import signal
import tempfile
import time
import types
import unittest
import warnings
from unittest import mock

from ranks import RanksTest
from test_worker import FOR_EVER

SCRIPT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "callback_training.py")
MANY = str(1 << 20)


class CallbackTest(RanksTest):
    """One library's. A subclass sets `library`, its name in the script, and `package`."""

    def setUp(self):
        super().setUp()
        missing = [name for name in ("torch", self.package)
                   if importlib.util.find_spec(name) is None]
        if missing:
            option = "" if self.library == "accelerate" else " --full"
            print(f"LEFT OUT: no {', '.join(missing)} here, run scripts/setup.sh{option}")
            self.skipTest("a library is missing")

    def train(self, steps, *options):
        self.start(SCRIPT, self.library, self.folder, "{store}", str(steps), *options)

    def ask_before_they_start(self):
        """They leave after their second step: the first one's word is answered then."""
        self.ask(1, signal.SIGTERM)

    def ask_no_more(self):
        for page in self.pages:
            page.put("I", 40, 0)

    def isolate(self, until_ns=1):
        """Isolates rank 0's node: the node may publish nothing after `until_ns`."""
        self.pages[0].put("q", 24, until_ns)

    def assert_they_left(self):
        results = self.results()
        self.assertEqual([code for code, *_ in results], [75, 75], results)

    def assert_they_went_on(self, begin, end):
        results = self.results()
        for code, text, said in results:
            self.assertEqual(code, 0, said)
            self.assertIn(f"begins at {begin}\n", text)
            self.assertIn(f"is done at {end}\n", text)

    def names(self):
        return sorted(os.listdir(self.folder)) if os.path.isdir(self.folder) else []

    def wait_until_said(self, rank, pattern):
        said = ""
        for line in self.ranks[rank].stderr:
            said += line
            if re.search(pattern, line):
                return
        self.fail(f"rank {rank} does not say {pattern}: {said}")

    def newest(self):
        """Returns what the library's own function finds in the folder, and its stderr."""
        said = io.StringIO()
        with contextlib.redirect_stderr(said):
            return self.find_newest(), said.getvalue()

    def check_that_they_stop_and_go_on(self):
        self.train(MANY)
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
        self.ask_no_more()
        self.train(steps[0] + 4)
        self.assert_they_went_on(steps[0], steps[0] + 4)
        self.assertGreater(self.pages[0].number("q", 192 + 16), 0)

    def check_that_an_isolated_node_publishes_nothing(self, *options):
        """It trains on, and leaves once it may publish again."""
        self.isolate()
        self.ask_before_they_start()
        self.train(MANY, *options)
        self.wait_until_said(0, "is not saved: this node is isolated")
        self.wait_until_they_train()
        self.assertEqual(self.checkpoints(), [])
        self.isolate(FOR_EVER)
        self.assert_they_left()
        self.assertNotEqual(self.checkpoints(), [])
        self.assertEqual([name for name in self.names() if "partial" in name], [])

    def checkpoints(self):
        """Paths of all that has the name of one, whole or not, but of partial ones."""
        return sorted(os.path.join(where, name)
                      for where, folders, files in os.walk(self.folder)
                      for name in (*folders, *files)
                      if re.fullmatch(r"ddprun-step=\d+|checkpoint[-_]\d+|.*\.ckpt", name))


def later(path, seconds):
    """Was written so much later than now."""
    os.utime(path, (time.time() + seconds,) * 2)


def cut(path):
    """Only a part of it was written."""
    os.truncate(path, os.path.getsize(path) * 2 // 3)


class Huggingface(CallbackTest):
    library, package = "huggingface", "transformers"

    def find_newest(self):
        from ddprun.huggingface import newest_checkpoint

        return newest_checkpoint(self.folder)

    def test_they_stop_and_go_on(self):
        self.check_that_they_stop_and_go_on()
        self.assertIn("checkpoint-", " ".join(self.names()))

    def test_an_isolated_node_publishes_nothing(self):
        self.check_that_an_isolated_node_publishes_nothing()

    def test_an_isolated_node_saves_none_of_the_trainers_own(self):
        self.isolate()
        self.train(4, "own")
        self.assert_they_went_on(0, 4)
        self.assertEqual(self.checkpoints(), [])

    def test_a_torn_one_is_passed_over(self):
        from transformers.trainer_utils import get_last_checkpoint

        self.assertEqual(self.newest(), (None, ""))
        self.train(11, "own")
        self.assert_they_went_on(0, 11)
        last, before = (os.path.join(self.folder, f"checkpoint-{n}") for n in (11, 10))
        self.assertEqual(self.newest(), (last, ""))
        for file in ("model.safetensors", "optimizer.pt", "trainer_state.json", "rng_state_1.pth"):
            with self.subTest(file):
                path = os.path.join(last, file)
                with open(path, "rb") as opened:
                    whole = opened.read()
                cut(path)
                found, said = self.newest()
                self.assertEqual(found, before)
                self.assertIn(f"checkpoint {last} is not whole", said)
                self.assertEqual(get_last_checkpoint(self.folder), last)  # what is to be mended
                with open(path, "wb") as opened:
                    opened.write(whole)
        os.unlink(os.path.join(last, "trainer_state.json"))
        self.assertEqual(self.newest()[0], before)
        # And the training goes on from it.
        self.train(12)
        self.assert_they_went_on(10, 12)


class Lightning(CallbackTest):
    library, package = "lightning", "lightning"

    def find_newest(self):
        from ddprun.lightning import newest_checkpoint

        return newest_checkpoint(self.folder)

    def test_they_stop_and_go_on(self):
        self.check_that_they_stop_and_go_on()

    def test_the_newest_is_lightnings_own_where_that_is_later(self):
        self.ask_before_they_start()
        self.train(MANY)
        self.assert_they_left()
        self.assertEqual(self.names(), ["ddprun-step=2.ckpt"])
        # It ends without being asked, as in a crash: its last is ModelCheckpoint's.
        self.ask_no_more()
        self.train(6, "own")
        self.assert_they_went_on(2, 6)
        self.assertEqual(len([path for path in self.checkpoints() if "step=6" in path]), 1)
        self.train(7)
        self.assert_they_went_on(6, 7)

    def test_a_torn_one_and_weights_alone_are_passed_over(self):
        self.train(4, "own")
        self.assert_they_went_on(0, 4)
        fourth = next(path for path in self.checkpoints() if "step=4" in path)
        self.assertEqual(self.newest(), (fourth, ""))
        cut(fourth)
        found, said = self.newest()
        self.assertIn("step=3", found)
        self.assertRegex(said, r"step=4\.ckpt is not whole; another one is looked for")
        os.rename(fourth, fourth + ".partial")
        self.weights_alone(os.path.join(self.folder, "weights.ckpt"))
        found, said = self.newest()
        self.assertIn("step=3", found)
        self.assertEqual(said, "")

    @staticmethod
    def weights_alone(path):
        import torch

        torch.save({"global_step": 9, "state_dict": {}, "epoch": 0}, path)

    def test_of_the_same_step_it_is_the_one_that_was_written_last(self):
        self.train(3, "own")
        self.assert_they_went_on(0, 3)
        third = next(path for path in self.checkpoints() if "step=3" in path)
        with open(third, "rb") as file:
            content = file.read()
        other = os.path.join(self.folder, "another.ckpt")
        with open(other, "wb") as file:
            file.write(content)
        later(other, 60)
        self.assertEqual(self.newest()[0], other)
        later(third, 120)
        self.assertEqual(self.newest()[0], third)

    def test_nothing_of_a_checkpoint_is_executed(self):
        import torch

        os.mkdir(self.folder)
        path = os.path.join(self.folder, "strange.ckpt")
        torch.save({"global_step": 5, "optimizer_states": [Deed(self.folder + "/done")]}, path)
        self.assertEqual(self.newest(), (path, ""))
        self.assertEqual(self.names(), ["strange.ckpt"])

    def test_an_isolated_node_publishes_nothing(self):
        self.check_that_an_isolated_node_publishes_nothing()

    def test_an_isolated_node_saves_none_of_lightnings_own(self):
        self.isolate()
        self.train(4, "own")
        self.assert_they_went_on(0, 4)
        self.assertEqual(self.checkpoints(), [])

    def test_an_isolated_node_removes_none_of_lightnings_own(self):
        self.train(5, "own", "last", "isolated")
        self.assert_they_went_on(0, 5)
        second = next(path for path in self.checkpoints() if "step=2" in path)
        last = next(path for path in self.checkpoints() if path.endswith("last.ckpt"))
        self.assertEqual(os.path.realpath(last), os.path.realpath(second))

    def train_here(self, steps, isolated, checkpoint):
        """One rank, in this process. isolated: answers of is_isolated() from the third step on."""
        import lightning.pytorch as lightning
        import torch

        import ddprun
        from ddprun.lightning import DdprunCallback

        os.environ["CUDA_VISIBLE_DEVICES"] = ""
        answers = iter(())

        class Module(lightning.LightningModule):
            def __init__(self):
                super().__init__()
                self.line = torch.nn.Linear(1, 1)

            def training_step(self, batch, _):
                self.log("quality", float(self.global_step))
                return self.line(batch).mean()

            def configure_optimizers(self):
                return torch.optim.SGD(self.parameters(), lr=0.01)

        class Isolates(lightning.Callback):
            def on_train_batch_end(self, trainer, *_):
                nonlocal answers
                if trainer.global_step == 3:
                    answers = iter(isolated)

        trainer = lightning.Trainer(
            max_steps=steps, accelerator="cpu", devices=1, logger=False,
            enable_progress_bar=False, enable_model_summary=False,
            callbacks=[DdprunCallback(self.folder), Isolates(), checkpoint])
        with mock.patch.object(ddprun.worker(), "is_isolated", lambda: next(answers, False)), \
                warnings.catch_warnings(), contextlib.redirect_stderr(io.StringIO()):
            warnings.simplefilter("ignore")
            trainer.fit(Module(), torch.utils.data.DataLoader(torch.ones(64, 1)))

    def steps(self):
        """Returns the step of every checkpoint and link; a link to nothing gives None."""
        from ddprun._checkpoints import contents

        return sorted(contents(path).get("global_step") for path in self.checkpoints())

    def test_what_a_refused_one_was_to_replace_stays(self):
        from lightning.pytorch.callbacks import ModelCheckpoint

        class NumbersLast(ModelCheckpoint):
            CHECKPOINT_NAME_LAST = "last-{step}"

        best = {"monitor": "quality", "mode": "max"}
        # Each kind names the steps left if the node is isolated from the third step on, and if it
        # is no longer when Lightning removes what the third step's checkpoint was to replace.
        kinds = {
            "the default": (ModelCheckpoint, {}, [2], [2]),
            "the best two": (ModelCheckpoint, {**best, "save_top_k": 2}, [1, 2], [1, 2]),
            "the best and the last": (ModelCheckpoint, {**best, "save_last": True}, [2, 2], [2, 3]),
            "the last alone": (NumbersLast, {"save_last": True, "save_top_k": 0}, [2], [2]),
            "a link": (ModelCheckpoint, {"save_last": "link"}, [2, 2], [2, 2]),
        }
        for name, (kind, options, *left) in kinds.items():
            for steps, isolated, expected in zip((5, 3), (itertools.repeat(True), [True]), left):
                with self.subTest(name, steps=steps), tempfile.TemporaryDirectory() as folder:
                    self.folder = folder
                    self.train_here(steps, isolated, kind(
                        dirpath=folder, every_n_train_steps=1, **options))
                    self.assertEqual(self.steps(), expected, self.names())

    def test_once_it_may_publish_again_old_ones_are_removed_again(self):
        from lightning.pytorch.callbacks import ModelCheckpoint

        self.train_here(6, [True], ModelCheckpoint(dirpath=self.folder, every_n_train_steps=1))
        self.assertEqual(self.steps(), [2, 6])


class Deed:
    """Makes a file when it is loaded."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return open, (self.path, "w")


class Accelerate(CallbackTest):
    library, package = "accelerate", "accelerate"

    def find_newest(self):
        from ddprun.accelerate import newest_state

        return newest_state(self.folder, types.SimpleNamespace(_custom_objects=[None]))

    def test_they_stop_and_go_on(self):
        self.check_that_they_stop_and_go_on()
        self.assertTrue(any(re.fullmatch(r"ddprun-step=\d+", name) for name in self.names()))

    def test_the_newest_is_accelerates_own_where_that_is_later(self):
        self.ask_before_they_start()
        self.train(MANY, "own")
        self.assert_they_left()
        # Under its own name with automatic_checkpoint_naming, too.
        self.assertEqual(self.names(), ["checkpoints", "ddprun-step=2"])
        self.ask_no_more()
        self.train(6, "own", "4")
        self.assert_they_went_on(2, 6)
        self.train(7)
        self.assert_they_went_on(6, 7)

    def state(self, name, seconds, objects=1):
        """A state as accelerate writes it, so much later than now."""
        import torch

        path = os.path.join(self.folder, name)
        os.makedirs(path)
        for file in ("optimizer.bin", "random_states_0.pkl",
                     *(f"custom_checkpoint_{i}.pkl" for i in range(objects))):
            torch.save({"a": torch.zeros(64)}, os.path.join(path, file))
        from safetensors.torch import save_file

        save_file({"a": torch.zeros(64)}, os.path.join(path, "model.safetensors"))
        later(os.path.join(path, "random_states_0.pkl"), seconds)
        return path

    def test_a_torn_one_is_passed_over(self):
        older = self.state("checkpoints/checkpoint_9", 60)
        newer = self.state("checkpoints/checkpoint_10", 60)
        self.state("ddprun-step=500", 0)
        self.state("ddprun-step=900.partial", 90)
        self.assertEqual(self.newest(), (newer, ""))
        for file in ("model.safetensors", "optimizer.bin", "custom_checkpoint_0.pkl"):
            with self.subTest(file):
                path = os.path.join(newer, file)
                with open(path, "rb") as opened:
                    whole = opened.read()
                cut(path)
                found, said = self.newest()
                self.assertEqual(found, older)
                self.assertIn(f"checkpoint {newer} is not whole", said)
                with open(path, "wb") as opened:
                    opened.write(whole)
        os.unlink(os.path.join(newer, "random_states_0.pkl"))
        self.assertEqual(self.newest()[0], older)

    def test_one_with_other_registered_objects_cannot_be_loaded(self):
        older = self.state("checkpoints/checkpoint_0", 0)
        newer = self.state("checkpoints/checkpoint_1", 0, objects=0)
        found, said = self.newest()
        self.assertEqual(found, older)
        self.assertIn(newer, said)

    def test_what_was_there_is_replaced_and_what_was_under_way_is_not_mixed_in(self):
        for name in ("ddprun-step=2", "ddprun-step=2.partial", "ddprun-step=1.partial"):
            os.makedirs(os.path.join(self.folder, name))
            with open(os.path.join(self.folder, name, "stale.bin"), "w") as file:
                file.write("stale")
        self.ask_before_they_start()
        self.train(MANY)
        self.assert_they_left()
        self.assertEqual(self.names(), ["ddprun-step=2"])
        written = os.listdir(os.path.join(self.folder, "ddprun-step=2"))
        self.assertNotIn("stale.bin", written)
        self.assertIn("random_states_1.pkl", written)

    def test_a_rank_that_cannot_put_it_in_place_fails_all(self):
        self.ask_before_they_start()
        self.train(MANY, "cannot-rename")
        first, second = self.results()
        self.assertEqual((first[0], second[0]), (1, 1), first[2] + second[2])
        self.assertIn("No space left on device", first[2])
        self.assertIn("another rank could not put it in place", second[2])

    def test_ranks_that_go_on_from_different_steps_fail(self):
        self.train(MANY, "apart")
        for code, _, said in self.results():
            self.assertEqual(code, 1, said)
            self.assertRegex(said, r"rank . goes on from step ., the ranks' steps are 1 to 2: they "
                                   "have found different checkpoints")

    def test_it_is_on_the_disk_before_it_has_its_name(self):
        self.ask_before_they_start()
        self.train(MANY, "tells-syncs")
        first, second = self.results()
        self.assertEqual((first[0], second[0]), (75, 75), first[2] + second[2])
        files = os.listdir(os.path.join(self.folder, "ddprun-step=2"))
        for _, text, _ in (first, second):
            synced = re.findall(r"syncs (\S+)", text)
            self.assertLessEqual(set(files), set(synced))
            self.assertIn("ddprun-step=2.partial", synced)
        before, _, after = first[1].partition("renames ddprun-step=2.partial")
        self.assertIn("model.safetensors", before)
        self.assertEqual(re.findall(r"syncs (\S+)", after), ["checkpoints"])

    def test_an_isolated_node_publishes_nothing(self):
        self.check_that_an_isolated_node_publishes_nothing()


if __name__ == "__main__":
    unittest.main()
