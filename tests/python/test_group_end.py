"""A destroyed default group leaves no thread of Gloo behind. Needs torch."""

import importlib.util
import unittest

from test_worker import AgentPage, environment_of, run_python

CODE = """
import glob, os, tempfile
import torch
import ddprun
ddprun.worker()
store = os.path.join(tempfile.mkdtemp(), "store")
torch.distributed.init_process_group("gloo", init_method="file://" + store, rank=0, world_size=1)

def of_gloo():
    told = [open(path).read().strip() for path in glob.glob("/proc/self/task/*/comm")]
    return [name for name in told if "gloo" in name]

model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(8, 8))
model(torch.ones(2, 8)).sum().backward()
del model
assert of_gloo(), "this torch names its threads otherwise"
torch.distributed.destroy_process_group()
print("left:", *of_gloo())
"""


class GroupEnd(unittest.TestCase):
    @unittest.skipUnless(importlib.util.find_spec("torch"), "LEFT OUT: there is no torch")
    def test_a_group_that_trained_with_ddp_and_was_destroyed_has_ended(self):
        page = AgentPage(version=8)
        told = run_python(CODE, environment_of(page))
        self.assertEqual(told.stdout, "left:\n", told.stderr)


if __name__ == "__main__":
    unittest.main()
