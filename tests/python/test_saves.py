"""Saves of Python trainings: what is saved comes back bit for bit.

Method: each test forks its ranks; results are compared as bytes. Needs torch and the library.
"""

import functools
import os
import subprocess
import sys
import threading
import unittest.mock

from forked import ForkedTest, built
from saved_training import HAS_TORCH, bytes_of, digest, network, run_tests, step_of, training_of
from test_worker import AgentPage, environment_of

import ddprun
from ddprun._library import Library, find_library

CTL = built("ddpctl", "DDPRUN_CTL")
if HAS_TORCH:
    import torch
    import torch.distributed as dist
    from ddprun._write import Write
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard


class OneRank(ForkedTest):
    def test_a_tensor_of_every_type_comes_back_bit_for_bit(self):
        from ddprun._tensors import _TORCH_OF

        def act():
            saved = {}
            for number, dtype in enumerate(_TORCH_OF.values()):
                raw = torch.arange(48, dtype=torch.uint8) * 5 + number
                raw = raw % 2 if dtype == torch.bool else raw
                saved[f"t{number}"] = raw.view(dtype).reshape(2, -1)
            saved.update(scalar=torch.tensor(1.5), empty=torch.zeros(0, 3),
                         turned=torch.arange(6.0).reshape(2, 3).t())
            checkpoints = ddprun.Checkpoints(self.folder)
            self.assertTrue(checkpoints.save(1, **saved))
            found = {name: torch.zeros_like(tensor) for name, tensor in saved.items()}
            self.assertEqual(checkpoints.resume(**found), 1)
            for name, tensor in saved.items():
                self.assertEqual(bytes_of(found[name]), bytes_of(tensor), name)

        self.on_one(act)

    def test_values_come_back_exactly(self):
        import numpy

        value = {"a": (1, None, -0.0, float("inf"), [True, "\u00e9\n", 10 ** 30]), 3: {"$x": []},
                 "inner": {"t": torch.arange(3), "n": numpy.float32(0.1), "m": numpy.eye(2)}}

        def act():
            checkpoints = ddprun.Checkpoints(self.folder)
            checkpoints.save(1, value=value, nan=float("nan"), count=7, empty={})
            checkpoints.resume()
            self.assertEqual(repr(checkpoints.values),
                             repr({"count": 7, "empty": {}, "nan": float("nan"), "value": value}))

        self.on_one(act)

    def test_anything_else_is_refused_by_name_and_type(self):
        def act():
            checkpoints = ddprun.Checkpoints(self.folder)
            for thing, what in (
                    ({"a": [1, {2}]}, r"thing\.a\.1 is a builtins\.set"),
                    (object(), r"thing is a builtins\.object"),
                    ({"b": b"x"}, r"thing\.b is a builtins\.bytes"),
                    (torch.eye(2).to_sparse(), r"thing is a torch\.Tensor \(torch\.sparse_coo"),
                    (torch.zeros(1, dtype=torch.complex128), "thing is a tensor of .*complex128")):
                with self.assertRaisesRegex(ddprun.CheckpointError, what):
                    checkpoints.save(1, thing=thing)
            with self.assertRaisesRegex(ddprun.CheckpointError, "a.b.* is no name"):
                checkpoints.save(1, **{"a.b": 1})
            self.assertEqual(os.path.exists(self.folder) and os.listdir(self.folder), False)

        self.on_one(act)

    def test_a_resumed_training_ends_as_the_undisturbed_one(self):
        def train(steps, resumes=False, saves_at=None):
            model, optimizer, scheduler = training_of(2 if resumes else 1)
            things = {"model": model, "optimizer": optimizer, "scheduler": scheduler}
            checkpoints = ddprun.Checkpoints(self.folder)
            done = checkpoints.resume(**things) if resumes else 0
            for step in range(done + 1, steps + 1):
                step_of(model, optimizer, scheduler)
                if step == saves_at:
                    checkpoints.save(step, **things)
            return digest(model, optimizer), optimizer.param_groups[0]["lr"]

        wanted, _ = self.on_one(lambda: train(5, saves_at=3))
        found, said = self.on_one(lambda: train(5, resumes=True))
        self.assertEqual(found, wanted)
        self.assertEqual(said, "")

    def test_a_resume_takes_back_later_steps(self):
        def act():
            model, optimizer, scheduler = training_of()
            checkpoints = ddprun.Checkpoints(self.folder)
            things = {"model": model, "optimizer": optimizer, "scheduler": scheduler}
            checkpoints.save(0, **things)
            step_of(model, optimizer, scheduler)
            wanted = digest(model, optimizer)
            step_of(model, optimizer, scheduler)
            self.assertEqual(checkpoints.resume(**things), 0)
            self.assertFalse(optimizer.state)
            step_of(model, optimizer, scheduler)
            self.assertEqual(digest(model, optimizer), wanted)

        self.on_one(act)

    def test_state_in_lists_comes_back(self):
        def act():
            model = torch.nn.Linear(5, 3)
            optimizer = torch.optim.LBFGS(model.parameters(), max_iter=3)

            def loss():
                optimizer.zero_grad()
                value = model(torch.ones(2, 5)).square().mean()
                value.backward()
                return value

            checkpoints = ddprun.Checkpoints(self.folder)
            optimizer.step(loss)
            checkpoints.save(1, model=model, optimizer=optimizer)
            optimizer.step(loss)
            wanted = digest(model)
            checkpoints.resume(model=model, optimizer=optimizer)
            optimizer.step(loss)
            self.assertEqual(digest(model), wanted)
            checkpoints.save(2, optimizer=optimizer)  # without its model it has numbers
            checkpoints.resume(optimizer=optimizer)

        self.on_one(act)

    def test_new_state_lies_in_memory_as_its_parameter(self):
        def made(seed):
            torch.manual_seed(seed)
            model = torch.nn.Conv2d(3, 4, 3).to(memory_format=torch.channels_last)
            return model, torch.optim.Adam(model.parameters(), lr=0.1, fused=True)

        def step(model, optimizer):
            optimizer.zero_grad()
            model(torch.randn(2, 3, 5, 5)).square().mean().backward()
            optimizer.step()

        def act():
            model, optimizer = made(1)
            checkpoints = ddprun.Checkpoints(self.folder)
            step(model, optimizer)
            checkpoints.save(1, model=model, optimizer=optimizer)
            step(model, optimizer)
            other, other_optimizer = made(2)
            checkpoints.resume(model=other, optimizer=other_optimizer)
            step(other, other_optimizer)
            self.assertEqual(digest(other, other_optimizer), digest(model, optimizer))

        self.on_one(act)

    def test_the_numbers_of_checkpoints_to_keep_have_bounds(self):
        for settings, what in (({"keep": 0}, "keep=0 .* 1 to 2147483647"),
                               ({"keep": 1 << 31}, "keep=2147483648 .* 1 to 2147483647"),
                               ({"keep": 1.5}, "keep=1.5 .* 1 to"),
                               ({"keep_every": -1}, "keep_every=-1 .* 0 to 9223372036854775807"),
                               ({"keep_every": 1 << 63}, "keep_every=9223372036854775808 ")):
            with self.assertRaisesRegex(ValueError, what):
                ddprun.Checkpoints(self.folder, **settings)

    def test_numpys_numbers_are_values(self):
        import numpy

        def act():
            checkpoints = ddprun.Checkpoints(self.folder)
            saved = {"scale": numpy.float32(0.1), "count": numpy.array(7)}
            checkpoints.save(1, **saved)
            checkpoints.resume(scale=numpy.float32(0), count=numpy.array(0))
            self.assertEqual(repr(dict(sorted(checkpoints.values.items()))),
                             repr(dict(sorted(saved.items()))))

        self.on_one(act)

    def test_a_module_that_saves_other_values_than_its_parameter_keeps_these(self):
        def made(seed):
            torch.manual_seed(seed)
            model = torch.nn.Linear(2, 3)
            model._register_state_dict_hook(
                lambda module, state, prefix, _: state.update(weight=state["weight"] * 2))
            model.register_load_state_dict_pre_hook(
                lambda module, state, prefix, *_: state.update(weight=state["weight"] / 2))
            return model

        def act():
            model, other = made(1), made(2)
            checkpoints = ddprun.Checkpoints(self.folder)
            checkpoints.save(1, model=model)
            checkpoints.resume(model=other)
            self.assertEqual(digest(other), digest(model))

        self.on_one(act)

    def test_a_save_before_the_first_step_changes_nothing(self):
        def act(saves):
            model = network()
            optimizer = torch.optim.Adam(model.parameters())
            if saves:
                ddprun.Checkpoints(self.folder).save(0, model=model, optimizer=optimizer)
            step_of(model, optimizer)
            return digest(model, optimizer)

        self.assertEqual(self.on_one(lambda: act(True)), self.on_one(lambda: act(False)))

    def test_what_does_not_fit_is_named_and_nothing_is_changed(self):
        def act():
            model, optimizer, scheduler = training_of()
            step_of(model, optimizer)
            checkpoints = ddprun.Checkpoints(self.folder)
            checkpoints.save(1, model=model, optimizer=optimizer, scheduler=scheduler)
            other = network(3, width=7)
            before = digest(other)
            other_optimizer = torch.optim.SGD(other.parameters(), momentum=0.9)
            with self.assertRaisesRegex(
                    ddprun.CheckpointError,
                    r"model\.0\.weight is F32 \[8, 5\], this program's is F32 \[7, 5\]"):
                checkpoints.resume(model=other, optimizer=other_optimizer, scheduler=scheduler)
            with self.assertRaisesRegex(ddprun.CheckpointError, "scheduler.* is unknown"):
                checkpoints.resume(model=model, optimizer=optimizer)
            self.assertEqual(digest(other), before)

        self.on_one(act)

    def test_without_strict_new_and_gone_things_are_named(self):
        def act():
            model, optimizer, _ = training_of()
            step_of(model, optimizer)
            checkpoints = ddprun.Checkpoints(self.folder)
            checkpoints.save(1, model=model, optimizer=optimizer)
            grown = torch.nn.ModuleDict({"body": network(4), "head": torch.nn.Linear(3, 2)})
            kept = digest(grown["head"])
            new_optimizer = torch.optim.SGD(grown.parameters(), lr=0.1, momentum=0.9)
            self.assertEqual(checkpoints.resume(
                model=grown, optimizer=new_optimizer, strict=False,
                rename=lambda name: name.replace("model.", "model.body.").replace(
                    "optimizer.", "optimizer.body.") if "param_groups" not in name else name), 1)
            self.assertEqual(digest(grown["head"]), kept)
            self.assertEqual(digest(grown["body"], new_optimizer), digest(model, optimizer))

            checkpoints.resume(model=model[0], strict=False, rename=lambda name: name.replace(
                "model.0.", "model."))

        _, said = self.on_one(act)
        self.assertEqual([line.split()[3] for line in said.splitlines() if "is new" in line],
                         ["model.head.bias", "model.head.weight", "optimizer.head.bias",
                          "optimizer.head.weight"])
        self.assertIn("model.3.bias of the checkpoint is gone", said)

    def test_the_newest_valid_one_is_taken_and_torn_ones_are_named(self):
        def act():
            checkpoints = ddprun.Checkpoints(self.folder)
            self.assertIsNone(checkpoints.resume())
            for step in (1, 2):
                checkpoints.save(step, epoch=step)
            torn = os.path.join(self.folder, "step-000000000002",
                                "training-00001-of-00001.safetensors")
            os.truncate(torn, os.path.getsize(torn) - 1)
            self.assertEqual(checkpoints.resume(), 1)
            self.assertEqual(checkpoints.values, {"epoch": 1})
            os.unlink(os.path.join(self.folder, "step-000000000001", "manifest.json"))
            with self.assertRaisesRegex(ddprun.CheckpointError, "none of the 2 checkpoints"):
                checkpoints.resume()

        _, said = self.on_one(act)
        self.assertIn("checkpoint of step 2 cannot be used", said.splitlines()[0])

    def test_old_ones_go_but_for_milestones(self):
        def act():
            checkpoints = ddprun.Checkpoints(self.folder, keep=2, keep_every=4)
            for step in range(1, 8):
                checkpoints.save(step, rng=False, a=step)
            return sorted(os.listdir(self.folder))

        steps, _ = self.on_one(act)
        self.assertEqual([int(name[5:]) for name in steps], [4, 6, 7])

    def test_safetensors_and_ddpctl_read_it(self):
        from safetensors.torch import load_file

        def act():
            model, optimizer, _ = training_of()
            step_of(model, optimizer)
            ddprun.Checkpoints(self.folder).save(1, model=model, optimizer=optimizer)
            other = network(2)
            other.load_state_dict(load_file(os.path.join(
                self.folder, "step-000000000001", "model-00001-of-00001.safetensors")),
                strict=True)
            self.assertEqual(digest(other), digest(model))

        self.on_one(act)
        if CTL is None:
            print("LEFT OUT in part: no ddpctl is built here")
            return
        told = subprocess.run([CTL, "checkpoints", "verify", self.folder], capture_output=True,
                              text=True)
        self.assertEqual(told.returncode, 0, told.stdout + told.stderr)

    def test_a_package_without_the_library_says_how_to_get_it(self):
        code = ("import ddprun._library as l, os; l.__file__ = '/nowhere/ddprun/_library.py'\n"
                "try: l.find_library()\nexcept ddprun.CheckpointError as e: print(e)"
                ).replace("ddprun.Ch", "l.Ch")
        environment = {key: value for key, value in os.environ.items() if "DDPRUN" not in key}
        told = subprocess.run([sys.executable, "-B", "-c", code], capture_output=True, text=True,
                              env={**environment, "PYTHONPATH": os.pathsep.join(sys.path)})
        self.assertIn("install ddprun's wheel", told.stdout, told.stderr)
        self.assertEqual(told.stdout.count("\n"), 1)


class Asynchronous(ForkedTest):
    def saved_while_a_step_is_tried(self, is_gated):
        """The state before the step, and the saved one. The copies begin once the step waits for
        them, or, if it does not, once it is done."""
        from ddprun import _staging

        model, optimizer, _ = training_of()
        step_of(model, optimizer)
        checkpoints = ddprun.Checkpoints(self.folder)
        checkpoints.save_async(1, model=model, optimizer=optimizer).wait()
        may_copy = threading.Event()
        copy = _staging.Buffers.copy

        def late_copy(buffers, items, after={}):
            if threading.current_thread() is not threading.main_thread():
                may_copy.wait()
            copy(buffers, items, after)

        def wait_for_copies(wait):
            may_copy.set()
            wait()

        if not is_gated:
            for hook in checkpoints._hooked.values():
                hook.remove()
        before = digest(model, optimizer)
        with unittest.mock.patch.object(_staging.Buffers, "copy", late_copy):
            saving = checkpoints.save_async(2, model=model, optimizer=optimizer)
            saving._is_copied.wait = functools.partial(wait_for_copies, saving._is_copied.wait)
            self.assertFalse(saving.done())
            with self.assertRaises(TimeoutError):
                saving.wait(timeout=0)
            with torch.no_grad():
                model[1].running_mean.fill_(7)
            torch.rand(3)
            for parameter in model.parameters():
                parameter.grad = torch.ones_like(parameter)
            optimizer.step()
            may_copy.set()
            saving.wait()
        self.assertNotEqual(digest(model, optimizer), before)
        other, other_optimizer, _ = training_of(2)
        self.assertEqual(checkpoints.resume(model=other, optimizer=other_optimizer), 2)
        return before, digest(other, other_optimizer)

    def test_an_optimizers_step_waits_for_the_copies(self):
        before, saved = self.on_one(lambda: self.saved_while_a_step_is_tried(True))[0]
        self.assertEqual(saved, before)

    def test_without_its_hook_the_step_would_be_in_the_checkpoint(self):
        before, saved = self.on_one(lambda: self.saved_while_a_step_is_tried(False))[0]
        changed = {name for name in saved if saved[name] != before[name]}
        self.assertIn("0.weight", changed)
        self.assertNotIn("1.running_mean", changed)

    def test_a_model_whose_optimizer_is_not_given_is_copied_before_the_call_returns(self):
        from ddprun import _staging

        def act():
            model, optimizer, _ = training_of()
            average = network(3)
            checkpoints = ddprun.Checkpoints(self.folder)
            before = digest(model)
            may_copy = threading.Event()
            copy = _staging.Buffers.copy

            def late_copy(buffers, items, after={}):
                if threading.current_thread() is not threading.main_thread():
                    may_copy.wait()
                copy(buffers, items, after)

            other_optimizer = torch.optim.SGD(average.parameters())
            with unittest.mock.patch.object(_staging.Buffers, "copy", late_copy):
                saving = checkpoints.save_async(1, model=model, average=average,
                                                optimizer=other_optimizer)
                for parameter in model.parameters():
                    parameter.grad = torch.ones_like(parameter)
                optimizer.step()
                may_copy.set()
                saving.wait()
            self.assertNotEqual(digest(model), before)
            checkpoints.resume(model=model, average=average, optimizer=other_optimizer)
            self.assertEqual(digest(model), before)

        self.on_one(act)

    def test_a_second_save_waits_or_is_refused_on_all_ranks(self):
        def act(rank):
            checkpoints = ddprun.Checkpoints(self.folder)
            free = threading.Event()
            write = Write.write

            def held(*arguments):
                free.wait()
                write(*arguments)

            with unittest.mock.patch.object(Write, "write", held):
                first = checkpoints.save_async(1, a=1)
                if rank == 1:
                    first.done = lambda: True  # as if it had ended sooner here
                refused = checkpoints.save_async(2, while_saving="refuse", a=2)
                self.assertTrue(refused.done())
                with self.assertRaisesRegex(ddprun.CheckpointError, "step 2 is not saved"):
                    refused.wait()
                free.set()
                third = checkpoints.save_async(3, a=3)
            first.wait(timeout=0)
            third.wait()
            return sorted(os.listdir(self.folder))

        (names, said), (_, quiet) = self.on_ranks(2, act)
        self.assertEqual([int(name[5:]) for name in names], [1, 3])
        self.assertEqual(said.count("\n"), 1, said)
        self.assertIn("step 2 is not saved: an earlier one is being written", said)
        self.assertEqual(quiet, "")

    def test_too_little_memory_on_one_rank_is_no_save_on_any(self):
        def act(rank):
            checkpoints = ddprun.Checkpoints(self.folder)
            model = network()
            with unittest.mock.patch("ddprun._memory.available",
                                     lambda: 100 if rank == 1 else 1 << 40):
                saving = checkpoints.save_async(1, model=model)
            with self.assertRaisesRegex(ddprun.CheckpointError, "and 100 are available"):
                saving.wait()
            checkpoints.save_async(2, model=model).wait()
            with unittest.mock.patch("ddprun._memory.available", lambda: 0):
                checkpoints.save_async(3, model=model, rng=True).wait()  # it has its buffers

        (_, said), _ = self.on_ranks(2, act)
        self.assertEqual(said.count("\n"), 1, said)
        self.assertEqual(len(os.listdir(self.folder)), 2)

    def test_a_copy_that_fails_on_one_rank_is_no_save_on_any(self):
        from ddprun import _staging

        def act(rank):
            checkpoints = ddprun.Checkpoints(self.folder)
            model, optimizer, _ = training_of()
            for is_late in (False, True):
                def fails(buffers, items, after={}):
                    if rank == 0 and any(item.is_late == is_late for item in items):
                        raise MemoryError("no memory")

                with unittest.mock.patch.object(_staging.Buffers, "copy", fails):
                    saving = checkpoints.save_async(1, model=model, optimizer=optimizer)
                    with self.assertRaisesRegex(ddprun.CheckpointError, "rank 0: .*no memory"):
                        saving.wait()
            return os.listdir(self.folder) if os.path.exists(self.folder) else []

        (names, said), (_, quiet) = self.on_ranks(2, act)
        self.assertEqual((names, said.count("\n"), quiet), ([], 2, ""))

    def test_a_thread_that_cannot_start_is_no_save_on_any_rank(self):
        def act(rank):
            checkpoints = ddprun.Checkpoints(self.folder)
            model, optimizer, _ = training_of()
            start = threading.Thread.start

            def fails(thread):
                if rank == 1:
                    raise RuntimeError("can't start new thread")
                start(thread)

            with unittest.mock.patch.object(threading.Thread, "start", fails):
                saving = checkpoints.save_async(1, model=model, optimizer=optimizer)
            checkpoints.before_step()
            with self.assertRaisesRegex(ddprun.CheckpointError, "rank 1: .*start new thread"):
                saving.wait()
            return checkpoints.save(2, model=model, optimizer=optimizer)

        self.assertEqual([saved for saved, _ in self.on_ranks(2, act)], [True, True])

    def test_sharded_ranks_train_on_while_each_step_is_saved(self):
        def made(seed):
            torch.manual_seed(seed)
            model = torch.nn.Sequential(torch.nn.Linear(5, 64), torch.nn.BatchNorm1d(64),
                                        torch.nn.Linear(64, 3))
            fully_shard(model)
            return model, torch.optim.AdamW(model.parameters(), lr=0.1)

        def act(rank):
            model, optimizer = made(1)
            checkpoints = ddprun.Checkpoints(self.folder, keep=100)
            wanted = []
            for step in range(8):
                step_of(model, optimizer)
                wanted.append(digest(model, optimizer))
                saving = checkpoints.save_async(step, model=model, optimizer=optimizer)
            saving.wait()
            library = Library(find_library())
            for step in reversed(range(8)):
                other, other_optimizer = made(2)
                self.assertEqual(checkpoints.resume(model=other, optimizer=other_optimizer), step)
                found = digest(other, other_optimizer)
                # Each rank has buffers of its own; rank 0's are saved.
                same = {name for name in found if rank == 0 or not name.startswith("1.running")}
                self.assertEqual({name: found[name] for name in same},
                                 {name: wanted[step][name] for name in same})
                dist.barrier()
                if rank == 0:
                    library.verify(self.folder, step)
                    os.unlink(os.path.join(self.folder, f"step-{step:012}", "manifest.json"))
                dist.barrier()

        self.on_ranks(2, act)

    def test_memory_is_what_the_kernel_has(self):
        from ddprun import _memory

        self.assertGreater(_memory.available(), 1 << 20)

    def test_an_isolated_worker_publishes_nothing(self):
        def act():
            page = AgentPage(version=8, slots=1)
            ddprun._the_worker = ddprun.Worker(environment_of(
                page, RANK="0", WORLD_SIZE="1", LOCAL_RANK="0", LOCAL_WORLD_SIZE="1",
                GROUP_RANK="0", GROUP_WORLD_SIZE="1", DDPRUN_SLOT="0"))
            checkpoints = ddprun.Checkpoints(self.folder)
            self.assertTrue(checkpoints.save(1, a=1))
            page.put("q", 24, 0)
            self.assertFalse(checkpoints.save(2, a=1))
            with self.assertRaisesRegex(ddprun.CheckpointError, "isolated"):
                checkpoints.save_async(3, a=1).wait()
            return os.listdir(self.folder)

        names, said = self.on_one(act)
        self.assertEqual(names, ["step-000000000001"])
        self.assertEqual(said.count("isolated"), 2)


class Parts(ForkedTest):
    def test_parts_that_are_not_the_whole_are_no_save_on_any_rank(self):
        from torch.distributed.tensor import Shard, distribute_tensor

        def act(rank):
            mesh = init_device_mesh("cpu", (2,))
            table = distribute_tensor(torch.arange(8.0).reshape(4, 2), mesh, [Shard(0)])
            checkpoints = ddprun.Checkpoints(self.folder)
            own = {"table": table} if rank == 0 else {}
            what = (r'is not saved: tensor "table": the element at \[2,0\] of a tensor of shape '
                    r"\[4,2\] is in none of its parts: rank 0 has \[2,2\] at \[0,0\]$")
            for save in (checkpoints.save, checkpoints.save_async):
                with self.assertRaisesRegex(ddprun.CheckpointError, what):
                    save(1, epoch=1, **own)
            self.assertTrue(checkpoints.save(2, table=table))
            return os.listdir(self.folder)

        self.assertEqual([names for names, _ in self.on_ranks(2, act)],
                         [["step-000000000002"]] * 2)

    def test_parts_that_do_not_fit_are_named_with_their_ranks(self):
        from ddprun._shares import Shares

        def part(row, rows, dimension=""):
            return ["model.table", "F32", [rows, 2], [6, 2], [row, 0], rows * 8, "shared",
                    dimension]

        library = Library(find_library())
        Shares(library, [[part(0, 2)], [part(0, 2)], [part(2, 4)]])
        with self.assertRaisesRegex(
                ddprun.CheckpointError,
                r'tensor "model.table": the element at \[3,0\] .* is in several of its parts: '
                r"rank 1 has \[2,2\] at \[2,0\], rank 2 has \[3,2\] at \[3,0\]$"):
            Shares(library, [[part(0, 2)], [part(2, 2)], [part(3, 3)]])
        with self.assertRaisesRegex(
                ddprun.CheckpointError,
                r'tensor "model.table" is F32 \[6,2\] sharded along `data` on rank 0 and '
                r"F32 \[6,2\] sharded along `shard` on rank 1$"):
            Shares(library, [[part(0, 2, "data")], [part(2, 4, "shard")]])
        with self.assertRaisesRegex(ddprun.CheckpointError,
                                    r"along `data` on rank 0 and along `shard` on rank 1$"):
            Shares(library, [[part(0, 6, "data")], [part(0, 6, "shard")]])


if __name__ == "__main__":
    run_tests()
