"""Ranks of a training as forks of the test, so that torch is imported once."""

import os
import pickle
import sys
import tempfile
import traceback
import unittest

from test_worker import ROOT

BUILDS = [os.getcwd(), os.path.join(ROOT, "build", "release"), os.path.join(ROOT, "build", "dev")]


def built(name, variable):
    """The program or library that the variable names, or that a build has made, or None."""
    named = [os.environ[variable]] if variable in os.environ else []
    paths = named + [os.path.join(build, "bin", name) for build in BUILDS]
    return next((path for path in paths if os.path.exists(path)), None)


class ForkedTest(unittest.TestCase):
    """Has a folder, and runs functions on ranks. The test itself must use no torch: a fork of its
    threads would hang."""

    def setUp(self):
        owner = tempfile.TemporaryDirectory()
        self.addCleanup(owner.cleanup)
        self.top = owner.name
        self.folder = os.path.join(owner.name, "checkpoints")
        self._starts = 0

    def fork(self, world_size, act):
        """Starts act(rank) on each rank, with a process group of several; (pid, pipe) of each."""
        self._starts += 1
        store = os.path.join(self.top, f"store{self._starts}")
        ranks = []
        for rank in range(world_size):
            reader, writer = os.pipe()
            pid = os.fork()
            if pid == 0:
                os.close(reader)
                _run(act, rank, world_size, store, writer)
            os.close(writer)
            ranks.append((pid, reader))
        return ranks

    def on_ranks(self, world_size, act):
        """(result of act(rank), what the rank wrote to stderr) of each rank."""
        results = [(pid, _all_of(reader)) for pid, reader in self.fork(world_size, act)]
        found = []
        for rank, (pid, data) in enumerate(results):
            os.waitpid(pid, 0)
            self.assertTrue(data, f"rank {rank} of {world_size} died")
            result, said, failure = pickle.loads(data)
            self.assertIsNone(failure, f"rank {rank} of {world_size}: {failure}\n{said}")
            found.append((result, said))
        return found

    def on_one(self, act):
        """The same in a world of one, without a process group."""
        return self.on_ranks(1, lambda rank: act())[0]


def _run(act, rank, world_size, store, writer):
    import torch.distributed as dist

    result = failure = None
    with tempfile.TemporaryFile("w+") as said:
        os.dup2(said.fileno(), 2)
        try:
            if world_size > 1:
                dist.init_process_group("gloo", init_method="file://" + store, rank=rank,
                                        world_size=world_size)
            result = act(rank)
        except BaseException:
            failure = traceback.format_exc()
        sys.stderr.flush()
        said.seek(0)
        data = pickle.dumps((result, said.read(), failure))
    with os.fdopen(writer, "wb") as pipe:
        pipe.write(data)
    if world_size > 1 and failure is None:
        dist.barrier()
    os._exit(0)


def _all_of(reader):
    with os.fdopen(reader, "rb") as pipe:
        return pipe.read()
