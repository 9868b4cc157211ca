"""Saves and resumes of Python trainings that fail: on all ranks, and nothing is left or changed.

Method: each test forks its ranks; results are compared as bytes. Needs torch and the library.
"""

import ctypes
import os
import random
import signal
import subprocess
import threading
import unittest.mock

from forked import ForkedTest
from saved_training import HAS_TORCH, digest, network, run_tests, step_of

import ddprun
from ddprun import _library
from ddprun._library import Library, find_library

if HAS_TORCH:
    import torch
    import torch.distributed as dist


class TheLibrary(ForkedTest):
    def setUp(self):
        super().setUp()
        self.library = Library(find_library())
        self.c = self.library._c

    def refuses(self, what, name, *arguments):
        """The function fails with a text of one line."""
        error = _library._Error()
        self.assertNotEqual(getattr(self.c, "ddprun_checkpoint_" + name)(*arguments, error), 0)
        self.assertRegex(error.text.decode(), what)
        self.assertNotIn(b"\n", error.text)

    def test_null_pointers_are_errors(self):
        self.refuses("no text", "begin_probe", None)
        self.refuses("no partial checkpoint", "probe", None, None)
        self.refuses("no partial checkpoint", "begin", None, 0)
        self.refuses("no partial checkpoint", "publish", None, None)
        self.refuses("no partial checkpoint", "write_tensors", None, None, None, 1, None)
        self.refuses("no partial checkpoint", "write_model_index", None, None, 1, 0, None)
        self.refuses("no text", "file_name", None, 1, 1, None)
        self.refuses("no place for steps", "list", b"/", None, 1, None)
        self.refuses("too long, or none", "share_out", None, 1, 1, None)
        self.refuses("no parts", "check_parts", None, None, 1)
        self.refuses("no reader", "open", b"/", 1, 0, 1, None, None)
        self.refuses("no text", "verify", None, 1)
        self.c.ddprun_checkpoint_abandon(None)
        self.c.ddprun_checkpoint_remove_leftovers(None)
        self.c.ddprun_checkpoint_close(None)
        for name in ("value", "tensor"):
            self.assertEqual(getattr(self.c, "ddprun_checkpoint_" + name)(None, 0, None), 1)
        self.assertEqual(self.c.ddprun_checkpoint_part(None, 0, 0, None), 1)

    def test_names_that_lead_elsewhere_are_errors(self):
        begun = self.library.begin(self.folder, 1, 0)
        for name in ("../x", "", ".step-000000000002.0123456789abcdef.partial", "x" * 126):
            partial = _library._of(begun._replace(name=name))
            self.refuses("no partial checkpoint of this step", "write_tensors", partial, b"", None,
                         0, _library._File(b"a"))
            self.c.ddprun_checkpoint_abandon(partial)
        for name in (b"", b".hidden", b"../../escaped", b"a/b"):
            self.refuses("a file name that is none", "write_tensors", _library._of(begun), b"",
                         None, 0, _library._File(name))
        self.assertEqual(os.listdir(self.folder), [begun.name])
        self.assertEqual(os.listdir(self.top), ["checkpoints"])

    def test_tensors_that_cannot_be_are_errors(self):
        begun = self.library.begin(self.folder, 1, 0)
        data = ctypes.create_string_buffer(16)
        good = _library.Part("a", "F32", [4], ctypes.addressof(data), 16, None, None)
        for part, what in ((good._replace(size=15), "a.*15"), (good._replace(pointer=0), "lacks"),
                           (good._replace(shape=[-4]), "-4"), (good._replace(dtype="F128"), "F128"),
                           (good._replace(shape=[1] * 65), "lacks its shape"),
                           (good._replace(shape=[1 << 62, 4]), "a"),
                           (good._replace(global_shape=[4], offsets=[1]), "not within")):
            with self.assertRaisesRegex(ddprun.CheckpointError, what):
                self.library.write_tensors(begun, "a", "", [part])
        self.refuses("too long, or none", "write_tensors", _library._of(begun), b"", None, 1,
                     _library._File(b"a"))
        self.refuses("too long, or none", "write_tensors", _library._of(begun), b"", None,
                     (1 << 64) - 1, _library._File(b"a"))
        with self.assertRaisesRegex(ddprun.CheckpointError, "NUL"):
            self.library.write_tensors(begun, "a", "", [good._replace(name="a\0b")])

    def test_a_manifest_that_cannot_be_is_an_error_and_leaves_nothing(self):
        good = _library.Manifest(1, 1, 1, 0, {"a": "b"}, [])
        for manifest in (good._replace(world_size=0), good._replace(keep=0),
                         good._replace(keep_every=-1),
                         good._replace(values={"a": "x" * (17 << 20)})):
            begun = self.library.begin(self.folder, 1, 0)
            with self.assertRaises(ddprun.CheckpointError):
                self.library.publish(begun, manifest, lambda: False, print)
        self.assertEqual(os.listdir(self.folder), [])

    def test_it_shows_nothing_but_its_functions(self):
        told = subprocess.run(["nm", "-D", "--defined-only", find_library()], capture_output=True,
                              text=True)
        names = [line.split()[-1] for line in told.stdout.splitlines()]
        self.assertIn("ddprun_checkpoint_open", names)
        self.assertEqual([name for name in names if not name.startswith("ddprun_checkpoint_")], [])


class Failures(ForkedTest):
    def fails_on_all(self, checkpoints, what, **arguments):
        """resume() raises on every rank and changes nothing."""
        model = network(5)
        before = digest(model)
        with self.assertRaisesRegex(ddprun.CheckpointError, what):
            checkpoints.resume(model=model, **arguments)
        self.assertEqual(digest(model), before)

    def test_what_raises_on_one_rank_while_a_resume_plans_raises_on_all(self):
        class Fails(torch.nn.Linear):
            def state_dict(self, *arguments, **settings):
                raise KeyError("no state")

        def fails(name):
            raise KeyError("no name")

        def act(rank):
            checkpoints = ddprun.Checkpoints(self.folder)
            checkpoints.save(1, model=network())
            is_broken = rank == 1
            self.fails_on_all(checkpoints, "rank 1: KeyError.*no name",
                              rename=fails if is_broken else None)
            self.fails_on_all(checkpoints, "rank 1: KeyError.*no state",
                              head=Fails(1, 1) if is_broken else network())
            open_checkpoint = Library.open

            def damages(library, *arguments):
                opened = open_checkpoint(library, *arguments)
                opened.values.update(damaged if is_broken else {})
                return opened

            def damages_tensors(library, *arguments):
                opened = open_checkpoint(library, *arguments)
                if is_broken:
                    stored = opened.tensors["random.cpu"]
                    opened.tensors["random.cpu"] = stored._replace(shape=(2, 7))
                return opened

            with unittest.mock.patch.object(Library, "open", damages):
                for text in ('{"$ranks":[]}', '{"$ranks":', '{"$ranks":[3]}', '{"$tuple":3}',
                             "{", '{"$other":{}}'):
                    damaged = {"epoch": text}
                    self.fails_on_all(checkpoints, "rank 1: ")
            with unittest.mock.patch.object(Library, "open", damages_tensors):
                self.fails_on_all(checkpoints, r"rank 1: random.cpu is U8 \[2, 7\]")
            with unittest.mock.patch.object(Library, "begin_probe", side_effect=KeyError("disk")):
                self.fails_on_all(checkpoints, "disk")

        self.on_ranks(2, act)

    def test_what_raises_on_one_rank_in_a_save_is_no_save_on_any(self):
        def act(rank):
            checkpoints = ddprun.Checkpoints(self.folder)
            for owner, name, broken in ((Library, "begin", 0), (Library, "publish", 0),
                                        (Library, "write_tensors", 0)):
                with unittest.mock.patch.object(
                        owner, name, **({"side_effect": KeyError("odd")} if rank == broken else
                                        {"new": getattr(owner, name)})):
                    self.assertFalse(checkpoints.save(1, model=network()))
            with unittest.mock.patch("ddprun._memory.available", **(
                    {"side_effect": OSError("odd")} if rank == 1 else {"new": lambda: 1 << 40})):
                with self.assertRaisesRegex(ddprun.CheckpointError, "rank 1: .*odd"):
                    checkpoints.save_async(2, model=network()).wait()
            return os.listdir(self.folder)

        self.assertEqual([names for names, _ in self.on_ranks(2, act)], [[], []])

    def test_a_folder_that_one_node_does_not_see_fails_the_resume_on_all(self):
        def act(rank):
            checkpoints = ddprun.Checkpoints(f"{self.folder}{rank}")
            self.fails_on_all(checkpoints, "rank 1: node .*: .*checkpoints1 cannot hold")
            return os.listdir(f"{self.folder}0")

        (left, _), _ = self.on_ranks(2, act)
        self.assertEqual(left, [])

    def test_a_folder_may_have_any_name(self):
        def act():
            folder = os.fsencode(self.folder) + b"\xff"
            self.assertTrue(ddprun.Checkpoints(folder).save(1, a=1))
            self.assertEqual(ddprun.Checkpoints(os.fsdecode(folder)).resume(), 1)

        self.on_one(act)

    def test_a_full_disk_on_one_rank_leaves_nothing_and_the_training_goes_on(self):
        os.mkdir(self.folder)
        pid = os.fork()
        if pid == 0:
            try:
                mount_for_this_process_alone(self.folder)
            except OSError:
                os._exit(1)
            os._exit(0)
        if os.waitpid(pid, 0)[1] != 0:
            print("LEFT OUT in part: a full disk, which only root can mount")
            return

        def act(rank):
            model = torch.nn.ParameterList(torch.full((5 << 20,), float(i)) for i in range(2))
            checkpoints = ddprun.Checkpoints(self.folder)
            if rank == 1:
                mount_for_this_process_alone(self.folder)
            with unittest.mock.patch.object(Library, "write_tensors", in_a_folder_of_its_own):
                self.assertFalse(checkpoints.save(1, model=model))
                saving = checkpoints.save_async(2, model=model)
                with self.assertRaisesRegex(ddprun.CheckpointError, "rank 1: .*No space left"):
                    saving.wait()
            if rank == 1:
                unmount(self.folder)
            left = os.listdir(self.folder)
            dist.barrier()
            self.assertTrue(checkpoints.save(3, model=model))
            return left

        (left, said), (_, quiet) = self.on_ranks(2, act)
        self.assertEqual(left, [])
        self.assertEqual(os.listdir(self.folder), ["step-000000000003"])
        for line, step in zip(said.splitlines(), (1, 2)):
            self.assertRegex(line, f"checkpoint of step {step} is not saved to {self.folder}: rank "
                             "1: .*model-00002-of-00002.safetensors.* take 20971520 bytes there")
        self.assertEqual((said.count("\n"), quiet), (2, ""))

    def test_a_rank_whose_peer_is_gone_says_so_and_goes_on(self):
        def act(rank):
            checkpoints = ddprun.Checkpoints(self.folder)
            checkpoints.save(1, a=1)
            if rank == 1:
                os._exit(0)
            with self.assertRaisesRegex(ddprun.CheckpointError, "a peer or the process group"):
                checkpoints.save(2, a=1)
            os._exit(7)

        codes = [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
                 for pid, _ in self.fork(2, act)]
        self.assertEqual(codes, [7, 0])

    def test_killed_writers_leave_whole_checkpoints(self):
        """DDPRUN_KILL_ROUNDS=1000 kills longer, DDPRUN_KILL_SEED=2 at other moments."""
        library = Library(find_library())
        chance = random.Random(os.environ.get("DDPRUN_KILL_SEED", "1"))
        for number in range(int(os.environ.get("DDPRUN_KILL_ROUNDS", "10"))):
            world_size = 1 + number % 2
            last = self.save_until_killed(world_size, chance)
            steps = library.steps(self.folder)
            for step in steps:
                library.verify(self.folder, step)
            self.assertGreaterEqual(steps[0] if steps else 0, last, f"round {number}")

    def save_until_killed(self, world_size, chance):
        """The last step that was reported as saved."""
        reports, reporter = os.pipe()

        def act(rank):
            model = network(width=1000)
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
            things = {"model": model, "optimizer": optimizer}
            checkpoints = ddprun.Checkpoints(self.folder)
            step = checkpoints.resume(**things) or 0
            while True:
                step += 1
                step_of(model, optimizer)
                if step % 2:
                    checkpoints.save(step, **things)
                else:
                    checkpoints.save_async(step, **things).wait()
                if rank == 0:
                    os.write(reporter, b"%d\n" % step)

        ranks = self.fork(world_size, act)
        os.close(reporter)
        with os.fdopen(reports) as lines:
            last = [int(lines.readline()) for _ in range(chance.randint(1, 4))][-1]
            threading.Event().wait(chance.random() * 0.03)
            for pid, reader in chance.sample(ranks, world_size):
                os.kill(pid, signal.SIGKILL)
                os.waitpid(pid, 0)
                os.close(reader)
            return max([last, *map(int, lines.read().split())])


def mount_for_this_process_alone(folder):
    """A file system of 1 MiB, which no other process sees."""
    libc = ctypes.CDLL(None, use_errno=True)
    private, new_mounts = 1 << 18 | 1 << 14, 1 << 17
    if (libc.unshare(new_mounts) or libc.mount(b"none", b"/", None, private, None) or
            libc.mount(b"tmpfs", folder.encode(), b"tmpfs", 0, b"size=1m")):
        raise OSError(ctypes.get_errno(), "a file system cannot be mounted")


def unmount(folder):
    """Shows this process the folder that the others see."""
    ctypes.CDLL(None).umount2(folder.encode(), 2)


def in_a_folder_of_its_own(library, partial, *arguments, write=Library.write_tensors):
    """write_tensors() where the checkpoint's folder is not seen."""
    os.makedirs(os.path.join(partial.dir, partial.name), exist_ok=True)
    return write(library, partial, *arguments)


if __name__ == "__main__":
    run_tests()
