"""Checkpoints of Python trainings in the memory of a node: which of them a resume takes.

Method: the test is ddprun, which starts a real ddprun-memory; the ranks are forks of the test.
tests/cluster/memory_checkpoints.py has whole jobs, whose workers and machines are killed.
"""

import json
import os
import socket
import subprocess
import unittest
import unittest.mock

from forked import ForkedTest, built
from saved_training import HAS_TORCH, LIBRARY
from test_worker import AgentPage, environment_of

MEMORY = built("ddprun-memory", "DDPRUN_MEMORY")
if HAS_TORCH:
    import torch

import ddprun  # noqa: E402
from ddprun._library import CheckpointError  # noqa: E402

LISTENER = 3  # kWorkersListenerFd
NEVER = 1 << 62
ROOM = 256 << 20


def take_listener(fd):
    """In the child: the program finds its listening socket there."""
    os.dup2(fd, LISTENER)
    os.set_inheritable(LISTENER, True)


class Node:
    """A node's ddprun-memory."""

    def __init__(self, room):
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        listener.bind("")
        listener.listen()
        self.name = "@" + listener.getsockname()[1:].decode()
        self._end, end = socket.socketpair()
        with listener, end:
            self.process = subprocess.Popen(
                [MEMORY], stdin=end, preexec_fn=lambda: take_listener(listener.fileno()),
                pass_fds=(LISTENER,))
        settings = {"bytes_max": room, "has_peers": False, "job": "test"}
        self._end.sendall(json.dumps(settings).encode() + b"\n")

    def end(self):
        self._end.close()
        self.process.wait()

    def spoil(self):
        """Changes the first byte of each tensor file's data, in memory."""
        folder = f"/proc/{self.process.pid}/fd"
        spoiled = 0
        for name in os.listdir(folder):
            path = os.path.join(folder, name)
            if os.readlink(path).startswith("/memfd:") and os.path.getsize(path) > 4096:
                with open(path, "r+b", buffering=0) as file:
                    at = 8 + int.from_bytes(file.read(8), "little")
                    file.seek(at)
                    byte = file.read(1)
                    file.seek(at)
                    file.write(bytes([byte[0] ^ 1]))
                spoiled += 1
        return spoiled


class Memory(ForkedTest):
    def setUp(self):
        super().setUp()
        self.node = self.start(ROOM)
        self.generation = 0

    def start(self, room):
        node = Node(room)
        self.addCleanup(node.end)
        return node

    def on_node(self, act, ranks=2, memory=None):
        """act(rank) on the ranks of the next generation; what it returned and said."""
        self.generation += 1
        page = AgentPage(version=8, generation=self.generation, slots=ranks)

        def placed(rank):
            ddprun._the_worker = ddprun.Worker(environment_of(
                page, RANK=str(rank), WORLD_SIZE=str(ranks), LOCAL_RANK=str(rank),
                LOCAL_WORLD_SIZE=str(ranks), GROUP_RANK="0", GROUP_WORLD_SIZE="1",
                DDPRUN_SLOT=str(rank), DDPRUN_GENERATION=str(self.generation),
                DDPRUN_MEMORY_CHECKPOINTS=(memory or self.node.name)))
            return act(rank)

        return self.on_ranks(ranks, placed)

    def checkpoints(self, disk_every=NEVER, folder=None):
        return ddprun.Checkpoints(folder or self.folder, disk_every=disk_every)

    def keep(self, *steps, **settings):
        """A generation that saves these steps beside the training."""
        def act(rank):
            checkpoints = self.checkpoints(**settings)
            checkpoints.resume(**tensors(0))
            for step in steps:
                checkpoints.save_async(step, **tensors(step)).wait()

        return self.on_node(act)

    def resumed(self, **settings):
        """The step from which the next generation goes on, on all ranks; what rank 0 has said."""
        def act(rank):
            things = tensors(0)
            step = self.checkpoints(**settings).resume(**things)
            return step, {float(tensor[0]) for tensor in things.values()}

        found = self.on_node(act)
        step, values = found[0][0]
        self.assertEqual([result for result, _ in found], [(step, values)] * 2)
        self.assertEqual(values, {float(step or 0)})
        return step, found[0][1]

    def disk(self):
        return sorted(os.listdir(self.folder)) if os.path.exists(self.folder) else []

    def test_the_next_generation_goes_on_from_memory(self):
        self.keep(1, 2)
        self.assertEqual(self.resumed(), (2, ""))
        self.assertEqual(self.disk(), [])

    def test_a_second_save_of_a_step_replaces_the_first(self):
        def act(rank):
            checkpoints = self.checkpoints()
            for value in (5, 7):
                checkpoints.save_async(7, **tensors(value)).wait()

        self.assertEqual(self.on_node(act), [(None, "")] * 2)
        self.assertEqual(self.resumed(), (7, ""))

    def test_another_number_of_ranks_goes_on_from_memory(self):
        self.keep(1, 2)

        def act(rank):
            return self.checkpoints().resume(**tensors(0))

        self.assertEqual(self.on_node(act, ranks=3), [(2, "")] * 3)
        self.assertEqual(self.on_node(act, ranks=1), [(2, "")])

    def test_a_checkpoint_of_the_disk_that_is_newer_is_taken(self):
        self.keep(1)
        self.on_node(lambda rank: self.checkpoints().save(2, **tensors(2)))
        self.assertEqual(self.resumed(), (2, ""))

    def test_of_two_saves_of_a_step_the_later_one_is_taken(self):
        """To the disk, or beside the training, which is into memory."""
        for step, ways in enumerate(("ad", "da", "dad", "ada", "daa"), 7):
            def act(rank, step=step, ways=ways):
                checkpoints = self.checkpoints()
                for value, way in enumerate(ways, step - len(ways) + 1):
                    if way == "d":
                        self.assertTrue(checkpoints.save(step, **tensors(value)))
                    else:
                        checkpoints.save_async(step, **tensors(value)).wait()

            with self.subTest(ways):
                self.assertEqual(self.on_node(act), [(None, "")] * 2)
                self.assertEqual(self.resumed(), (step, ""))

    def test_saves_of_a_step_are_counted_on_after_a_resume(self):
        self.on_node(lambda rank: [self.checkpoints().save(7, **tensors(1))])

        def act(rank):
            checkpoints = self.checkpoints()
            self.assertEqual(checkpoints.resume(**tensors(0)), 7)
            checkpoints.save_async(7, **tensors(2)).wait()
            self.assertEqual(checkpoints.resume(**tensors(0)), 7)
            self.assertTrue(checkpoints.save(7, **tensors(7)))

        self.assertEqual(self.on_node(act), [(None, "")] * 2)
        self.assertEqual(self.resumed(), (7, ""))

    def test_an_earlier_save_in_memory_is_taken_if_the_later_one_on_the_disk_is_damaged(self):
        def act(rank):
            checkpoints = self.checkpoints()
            checkpoints.save_async(7, **tensors(7)).wait()
            self.assertTrue(checkpoints.save(7, **tensors(8)))

        self.on_node(act)
        folder = os.path.join(self.folder, "step-000000000007")
        name = next(name for name in os.listdir(folder) if name.endswith(".safetensors"))
        with open(os.path.join(folder, name), "r+b") as file:
            file.seek(-1, os.SEEK_END)
            file.write(b"\x55")
        step, said = self.resumed()
        self.assertEqual(step, 7)
        self.assertIn("an older one is tried", said)

    def test_one_in_memory_that_is_newer_is_taken(self):
        self.on_node(lambda rank: self.checkpoints().save(2, **tensors(2)))
        self.keep(3)
        self.assertEqual(self.resumed(), (3, ""))
        self.assertEqual(self.disk(), ["step-000000000002"])

    def test_a_save_that_a_rank_did_not_finish_is_not_taken(self):
        from ddprun._memory_library import NodeMemory

        self.keep(1)

        def act(rank):
            checkpoints = self.checkpoints()
            checkpoints.resume(**tensors(0))
            with unittest.mock.patch.object(NodeMemory, "write",
                                            lambda *_: os._exit(0) if rank == 1 else ([], "")):
                checkpoints.save_async(2, **tensors(2)).wait()

        pids = self.fork_on_node(act)
        for pid, reader in pids:
            os.waitpid(pid, 0)
            os.close(reader)
        self.assertEqual(self.resumed(), (1, ""))

    def fork_on_node(self, act):
        with unittest.mock.patch.object(self, "on_ranks", self.fork):
            return self.on_node(act)

    def test_no_node_seals_before_all_have_the_manifest(self):
        """One that seals forgets the step before."""
        from ddprun._memory_library import NodeMemory
        write = NodeMemory.write_manifest

        def act(rank):
            def refuse(memory, *arguments):
                if rank == 1:
                    raise CheckpointError("no")
                write(memory, *arguments)

            checkpoints = self.checkpoints()
            checkpoints.save_async(1, **tensors(1)).wait()
            with unittest.mock.patch.object(NodeMemory, "write_manifest", refuse), \
                    unittest.mock.patch.object(NodeMemory, "seal") as seal:
                saving = checkpoints.save_async(2, **tensors(2))
                with self.assertRaisesRegex(CheckpointError,
                                            "step 2 is not kept in memory: rank 1: no$"):
                    saving.wait()
            seal.assert_not_called()

        (_, said), (_, quiet) = self.on_node(act)
        self.assertEqual(said, "ddprun: rank 0: step 2 is not kept in memory: rank 1: no; the "
                               "training goes on\n")
        self.assertEqual(quiet, "")
        self.assertEqual(self.resumed(), (2, ""))  # all its files are there

    def test_damaged_bytes_in_memory_are_not_taken(self):
        self.on_node(lambda rank: self.checkpoints().save(1, **tensors(1)))
        self.keep(2)
        self.assertGreater(self.node.spoil(), 0)
        step, said = self.resumed()
        self.assertEqual(step, 1)
        self.assertRegex(said, r"^ddprun: rank 0: step 2 in memory is passed over: rank \d: .* in "
                               r"memory.*checksum.*\n$")

    def test_a_training_in_another_folder_finds_nothing(self):
        self.keep(1)
        step, said = self.resumed(folder=self.folder + "2")
        self.assertIsNone(step)
        self.assertRegex(said, f"saves go to the disk only: rank 0: the checkpoints of "
                               f"{self.folder} are in memory; those of .* go to the disk\n$")

    def test_one_rank_without_memory_has_all_save_to_the_disk_only(self):
        def act(rank):
            if rank == 1:
                ddprun._the_worker._memory_socket = "@nobody"
            checkpoints = self.checkpoints(disk_every=2)
            for step in (1, 2):
                checkpoints.save_async(step, **tensors(step)).wait()

        (_, said), (_, quiet) = self.on_node(act)
        self.assertRegex(said, "^ddprun: rank 0: no checkpoint is kept in memory, saves go to the "
                               "disk only: rank 1: .*\n$")
        self.assertEqual((quiet, self.disk()), ("", ["step-000000000002"]))

    def test_memory_that_is_short_is_a_line_and_the_disk_has_its_steps(self):
        small = self.start(1 << 20)

        def act(rank):
            checkpoints = self.checkpoints(disk_every=2)
            for step in (1, 2):
                saving = checkpoints.save_async(step, **tensors(step))
                if step == 2:
                    saving.wait()
                else:
                    with self.assertRaisesRegex(CheckpointError, "step 1 is not kept in memory"):
                        saving.wait()

        (_, said), _ = self.on_node(act, memory=small.name)
        first, second = said.splitlines()
        self.assertRegex(first, r"step 1 is not kept in memory: rank \d: .*; the training goes on$")
        self.assertRegex(second, r"step 2 is not kept in memory: rank \d: .*memory-checkpoints")
        self.assertEqual(self.disk(), ["step-000000000002"])

    def test_an_isolated_node_keeps_nothing(self):
        def act(rank):
            checkpoints = self.checkpoints()
            checkpoints.save_async(1, **tensors(1)).wait()
            with unittest.mock.patch.object(ddprun.Worker, "is_isolated", lambda _: True):
                with self.assertRaisesRegex(CheckpointError, "rank 0: this node is isolated"):
                    checkpoints.save_async(2, **tensors(2)).wait()

        self.on_node(act)
        self.assertEqual(self.resumed(), (1, ""))

    def test_verify_resume_leaves_the_memory_to_the_training(self):
        def act(rank):
            model = torch.nn.Linear(2, 2)
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
            checkpoints = self.checkpoints()
            ddprun.verify_resume(model, optimizer)
            checkpoints.save_async(1, **tensors(1)).wait()

        self.on_node(act)
        self.assertEqual(self.resumed(), (1, ""))

    def test_arguments_that_cannot_be_are_errors(self):
        from ddprun import _library, _memory_library
        from ddprun._library import Library, find_library

        library = Library(find_library())
        place = _memory_library.MemoryPlace("", "/run", 1, 0, 0, 1, 0)
        with self.assertRaisesRegex(CheckpointError, "no place of a worker"):
            _memory_library.NodeMemory(library, place._replace(local_world_size=0))
        memory = _memory_library.NodeMemory(library, place)
        self.assertIn("its node keeps no checkpoints", memory.text)
        for call in (lambda: memory.write([]), lambda: memory.write_manifest("", False),
                     memory.seal, memory.copies, lambda: memory.read_manifest(0),
                     memory.open, memory.keep):
            with self.assertRaisesRegex(CheckpointError, "no connection"):
                call()
        with self.assertRaises(CheckpointError):
            memory.agree(["{"], None)
        with self.assertRaises(CheckpointError):
            memory.candidates(["no reply"], (0, 0))
        memory.close()
        c, error = library._c, _library._Error()
        self.assertNotEqual(c.ddprun_checkpoint_memory_connect(None, None, None, error), 0)
        self.assertNotEqual(c.ddprun_checkpoint_memory_manifest(None, 1, None, None, error), 0)
        self.assertNotEqual(c.ddprun_checkpoint_memory_candidate(None, 0, None), 0)


def tensors(step):
    """State that every rank has, and of which each writes a share: kShareBytesMin and more."""
    return {f"t{number}": torch.full(((16 << 20) // 4 + 1,), float(step)) for number in range(2)}


if __name__ == "__main__":
    if not HAS_TORCH:
        print("LEFT OUT: no torch here, run scripts/setup.sh")
    elif LIBRARY is None or MEMORY is None:
        print("LEFT OUT: no ddprun-checkpoint.so or ddprun-memory is built here")
    else:
        unittest.main()
