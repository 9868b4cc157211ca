"""Resumes of Python trainings: state comes back bit for bit, in any world size.

Method: each test forks its ranks; results are compared as bytes. Needs torch and the library.
"""

import json
import os
import threading
import unittest.mock

from forked import ForkedTest
from saved_training import HAS_TORCH, bytes_of, digest, network, run_tests, step_of, training_of

import ddprun

if HAS_TORCH:
    from safetensors import safe_open
    import torch
    import torch.distributed as dist
    import torch.distributed.checkpoint as dcp
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard
    from torch.distributed.optim import ZeroRedundancyOptimizer
    from torch.nn.parallel import DistributedDataParallel


class SeveralRanks(ForkedTest):
    def test_ddp_of_two_goes_on_with_one_and_three(self):
        def train():
            model = DistributedDataParallel(network())
            optimizer = torch.optim.AdamW(model.parameters())
            torch.manual_seed(dist.get_rank())
            for _ in range(3):
                step_of(model, optimizer)
            ddprun.Checkpoints(self.folder).save(3, model=model, optimizer=optimizer)
            return digest(model, optimizer), torch.randn(2).tolist()

        def resume(wraps):
            model = network(2)
            model = DistributedDataParallel(model) if wraps else model
            optimizer = torch.optim.AdamW(model.parameters())
            self.assertEqual(ddprun.Checkpoints(self.folder).resume(
                model=model, optimizer=optimizer), 3)
            return digest(model, optimizer), torch.randn(2).tolist()

        saved = self.on_ranks(2, lambda rank: train())
        wanted = saved[0][0][0]
        for world_size in (1, 2, 3):
            found = self.on_ranks(world_size, lambda rank: resume(world_size > 1))
            for (state, numbers), said in found:
                self.assertEqual(state, wanted)
                self.assertEqual(said, "")
            draws = [numbers for (_, numbers), _ in found]
            self.assertEqual(len(set(map(tuple, draws))), world_size)
            if world_size == 2:
                self.assertEqual(draws, [numbers for (_, numbers), _ in saved])

    def test_fsdp_of_four_goes_on_with_one_to_four(self):
        def made(seed, shards):
            model = torch.nn.Sequential(torch.nn.Linear(5, 10), torch.nn.ReLU(),
                                        torch.nn.Linear(10, 3))
            torch.manual_seed(seed)
            for parameter in model.parameters():
                torch.nn.init.normal_(parameter)
            if shards:
                mesh = init_device_mesh("cpu", (dist.get_world_size(),), mesh_dim_names=("shard",))
                for layer in (model[0], model[2], model):
                    fully_shard(layer, mesh=mesh)
            return model, torch.optim.AdamW(model.parameters(), lr=0.1)

        def train():
            model, optimizer = made(1, True)
            for _ in range(2):
                step_of(model, optimizer)
            self.assertTrue(ddprun.Checkpoints(self.folder).save(
                2, model=model, optimizer=optimizer))
            return digest(model, optimizer)

        def resume(shards):
            model, optimizer = made(2, shards)
            self.assertEqual(ddprun.Checkpoints(self.folder).resume(
                model=model, optimizer=optimizer), 2)
            found = digest(model, optimizer)
            step_of(model, optimizer)
            return found

        wanted = self.on_ranks(4, lambda rank: train())[0][0]
        self.assertEqual(len(wanted), 16)
        for world_size in (1, 2, 3, 4):
            for found, said in self.on_ranks(world_size, lambda rank: resume(world_size > 1)):
                self.assertEqual(found, wanted)
                self.assertEqual(said, "")

        folder = os.path.join(self.folder, "step-000000000002")
        for name in os.listdir(folder):
            if name.endswith(".safetensors"):
                with safe_open(os.path.join(folder, name), "pt") as file:
                    places = json.loads(file.metadata()["DCP_SHARDING_INFO"])
                    self.assertEqual({place.get("mesh_dimension") for place in places.values()
                                      if place["global_shape"]} - {None}, {"shard"}, name)

        def read_by_torch():
            model, _ = made(2, False)
            tensors = model.state_dict()
            dcp.load(tensors, storage_reader=dcp.HuggingFaceStorageReader(
                os.path.join(self.folder, "step-000000000002")))
            model.load_state_dict(tensors)
            return digest(model)

        found, _ = self.on_one(read_by_torch)
        self.assertEqual(found, {name: wanted[name] for name in found})

    def test_a_redundancy_optimizer_of_two_goes_on_with_one_to_three(self):
        def made(seed, is_shared):
            model = network(seed)
            if is_shared:
                return model, ZeroRedundancyOptimizer(model.parameters(), torch.optim.Adam, lr=0.1)
            return model, torch.optim.Adam(model.parameters(), lr=0.1)

        def state_of(model, optimizer):
            inner = getattr(optimizer, "optim", optimizer)
            return {f"{name}:{field}": bytes_of(tensor)
                    for name, parameter in model.named_parameters() if parameter in inner.state
                    for field, tensor in inner.state[parameter].items()}

        def train():
            model, optimizer = made(1, True)
            step_of(DistributedDataParallel(model), optimizer)
            ddprun.Checkpoints(self.folder).save(1, model=model, optimizer=optimizer)
            return state_of(model, optimizer)

        def resume(is_shared):
            model, optimizer = made(2, is_shared)
            ddprun.Checkpoints(self.folder).resume(model=model, optimizer=optimizer)
            return state_of(model, optimizer)

        (first, _), (second, _) = self.on_ranks(2, lambda rank: train())
        wanted = {**first, **second}
        self.assertEqual((len(wanted), len(first) + len(second)), (18, 18))
        for world_size in (1, 2, 3):
            found = {}
            for state, _ in self.on_ranks(world_size, lambda rank: resume(world_size > 1)):
                self.assertFalse(found.keys() & state.keys())
                found.update(state)
            self.assertEqual(found, wanted)

    def test_parts_that_several_ranks_hold_are_written_once(self):
        def made(seed, shape):
            torch.manual_seed(seed)
            model = torch.nn.Linear(6, 4)
            mesh = init_device_mesh("cpu", shape, mesh_dim_names=("copies", "parts"))
            fully_shard(model, mesh=mesh)
            return model

        def act(rank):
            model = made(1, (2, 2))
            checkpoints = ddprun.Checkpoints(self.folder)
            checkpoints.save(1, model=model)
            other = made(2, (1, 4))
            checkpoints.resume(model=other)
            self.assertEqual(digest(other), digest(model))

        self.on_ranks(4, act)
        folder = os.path.join(self.folder, "step-000000000001")
        sizes = [os.path.getsize(os.path.join(folder, name)) for name in os.listdir(folder)
                 if name.startswith("model-")]
        self.assertEqual(len(sizes), 4)  # a rank each: weight and bias by two holders

    def test_a_resume_takes_no_memory_but_the_state(self):
        size = 64 << 20

        def anonymous():
            with open("/proc/self/smaps_rollup", encoding="ascii") as file:
                return next(int(line.split()[1]) << 10 for line in file
                            if line.startswith("Anonymous:"))

        def made():
            model = torch.nn.ParameterList([torch.ones(size // 4)])
            return model, torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)

        def act(saves):
            model, optimizer = made()
            checkpoints = ddprun.Checkpoints(self.folder)
            if saves:
                model[0].grad = torch.ones_like(model[0])
                optimizer.step()
                checkpoints.save(1, model=model, optimizer=optimizer)
                return None
            stop, most = threading.Event(), [0]

            def watch():
                while not stop.is_set():
                    most.append(max(anonymous(), most.pop()))

            before = anonymous()
            watcher = threading.Thread(target=watch)
            watcher.start()
            self.assertEqual(checkpoints.resume(model=model, optimizer=optimizer), 1)
            stop.set()
            watcher.join()
            return most[0] - before

        self.on_one(lambda: act(True))
        grown, _ = self.on_one(lambda: act(False))
        self.assertLess(grown, size * 1.1 + (8 << 20))  # the momentum

    def test_ranks_may_have_different_models(self):
        def made(seed, rank):
            torch.manual_seed(seed)
            model = torch.nn.ModuleDict({f"stage{rank}": torch.nn.Linear(2, 2 + rank)})
            return model, torch.optim.SGD(model.parameters(), lr=0.1 + rank, momentum=0.9)

        def act(rank):
            model, optimizer = made(1, rank)
            model[f"stage{rank}"](torch.ones(2)).sum().backward()
            optimizer.step()
            checkpoints = ddprun.Checkpoints(self.folder)
            checkpoints.save(1, model=model, optimizer=optimizer)
            other, other_optimizer = made(2, rank)
            self.assertEqual(checkpoints.resume(model=other, optimizer=other_optimizer), 1)
            self.assertEqual(digest(other, other_optimizer), digest(model, optimizer))

        self.on_ranks(2, act)

    def test_values_that_differ_come_back_to_their_ranks(self):
        def save(rank):
            ddprun.Checkpoints(self.folder).save(1, place=rank * 10, epoch=4)

        def resume(rank):
            checkpoints = ddprun.Checkpoints(self.folder)
            checkpoints.resume()
            return checkpoints.values

        self.on_ranks(2, save)
        found = self.on_ranks(2, resume)
        self.assertEqual([values for values, _ in found],
                         [{"epoch": 4, "place": 0}, {"epoch": 4, "place": 10}])
        (values, said), = self.on_ranks(1, resume)
        self.assertEqual(values, {"epoch": 4, "place": 0})
        self.assertIn("place differed from rank to rank", said)

    def test_the_default_device_does_not_matter(self):
        import numpy

        def act(rank):
            model, optimizer, scheduler = training_of(1 + rank)
            step_of(model, optimizer)
            checkpoints = ddprun.Checkpoints(self.folder)
            torch.set_default_device("meta")
            things = {"model": model, "optimizer": optimizer, "array": numpy.ones(3)}
            self.assertTrue(checkpoints.save(1, **things, tree={"t": torch.ones(3, device="cpu")}))
            checkpoints.save_async(2, **things, tree={"t": torch.ones(3, device="cpu")}).wait()
            optimizer.state.clear()
            self.assertEqual(checkpoints.resume(**things), 2)
            self.assertEqual(checkpoints.values["tree"]["t"].tolist(), [1, 1, 1])
            ddprun.verify_resume(model, optimizer, scheduler=scheduler)
            torch.set_default_device("cpu")
            return digest(model, optimizer)

        (state, _), (other_state, _) = self.on_ranks(2, act)
        self.assertEqual({name: state[name] for name in state if "running" not in name},
                         {name: other_state[name] for name in state if "running" not in name})

    def test_the_old_interface_of_fsdp_is_refused_by_name(self):
        def act(rank):
            sharded = FullyShardedDataParallel(torch.nn.Linear(5, 3),
                                               device_id=torch.device("cpu"))
            model = torch.nn.Sequential(sharded)
            checkpoints = ddprun.Checkpoints(self.folder)
            what = r"model\.0 is a FullyShardedDataParallel.*fully_shard"
            with self.assertRaisesRegex(ddprun.CheckpointError, what):
                checkpoints.save(1, model=model)
            checkpoints.save(1, model=torch.nn.Sequential(torch.nn.Linear(5, 3)))
            with self.assertRaisesRegex(ddprun.CheckpointError, what):
                checkpoints.resume(model=model)

        self.on_ranks(2, act)

    def test_a_rank_that_cannot_save_has_all_raise(self):
        def act(rank):
            thing = object() if rank == 1 else 1
            with self.assertRaisesRegex(ddprun.CheckpointError, "rank 1: thing is a .*object"):
                ddprun.Checkpoints(self.folder).save(1, thing=thing)

        self.on_ranks(2, act)


class Verified(ForkedTest):
    def test_a_whole_training_passes_and_is_left_as_it_is(self):
        def act():
            model, optimizer, scheduler = training_of()
            step_of(model, optimizer, scheduler)
            scaler = torch.amp.GradScaler("cpu")
            scaler.scale(torch.ones(1))
            before = digest(model, optimizer), torch.get_rng_state().tolist()
            ddprun.verify_resume(model, optimizer, scheduler=scheduler, scaler=scaler, epoch=3,
                                 average=torch.ones(2))
            self.assertEqual((digest(model, optimizer), torch.get_rng_state().tolist()), before)

        _, said = self.on_one(act)
        self.assertEqual(said, "ddprun: a resume restores all of model, optimizer, scheduler, "
                               "scaler, epoch, average and the random states, bit for bit\n")

    def test_lost_state_is_named(self):
        class KeepsMomentumAside(torch.optim.SGD):
            def state_dict(self):
                return {**super().state_dict(), "momentum": 1}

        class Forgets:
            position = 0

            def __init__(self):
                self.position = 5

            def state_dict(self):
                return {"position": self.position}

            def load_state_dict(self, state):
                pass

        def act():
            model, optimizer, scheduler = training_of()
            step_of(model, optimizer, scheduler)
            aside = KeepsMomentumAside(model.parameters())
            scaler = torch.amp.GradScaler("cpu")
            for arguments, what in (
                    ((optimizer, {"scaler": scaler}), "a StepLR of the optimizer is not saved"),
                    ((optimizer, {"scheduler": scheduler}), "a GradScaler is not saved"),
                    ((optimizer, {"scheduler": scheduler, "scaler": scaler, "rng": False}),
                     "random states are not saved"),
                    ((aside, {"scaler": scaler}), r"state_dict\(\)\['momentum'\] is not saved"),
                    ((optimizer, {"scheduler": scheduler, "scaler": scaler, "data": Forgets()}),
                     "rank 0: data.position is 6 in place of 5$")):
                with self.assertRaisesRegex(ddprun.CheckpointError, what):
                    ddprun.verify_resume(model, arguments[0], **arguments[1])

        self.on_one(act)

    def test_a_lost_momentum_is_named(self):
        from ddprun import _restore

        def act():
            model, optimizer, scheduler = training_of()
            step_of(model, optimizer, scheduler)
            with unittest.mock.patch.object(_restore, "_set_state", lambda *_: None):
                with self.assertRaisesRegex(
                        ddprun.CheckpointError,
                        r"optimizer\.0\.bias\.momentum_buffer is not restored"):
                    ddprun.verify_resume(model, optimizer, scheduler=scheduler)

        self.on_one(act)

    def test_a_thing_that_fails_on_one_rank_while_it_is_verified_raises_on_all(self):
        class Fails:
            calls = 0

            def __init__(self, calls_max):
                self.calls_max = calls_max

            def state_dict(self):
                Fails.calls += 1
                if Fails.calls > self.calls_max:
                    raise KeyError("no state")
                return {"position": 1}

            def load_state_dict(self, state):
                pass

        def act(rank):
            model, optimizer, scheduler = training_of()
            step_of(model, optimizer)
            for calls in range(4):
                Fails.calls = 0
                with self.assertRaisesRegex(ddprun.CheckpointError, "rank 1: .*no state"):
                    ddprun.verify_resume(model, optimizer, scheduler=scheduler,
                                         data=Fails(calls if rank == 1 else 9))
            with unittest.mock.patch("tempfile.mkdtemp", side_effect=OSError("no folder")):
                with self.assertRaisesRegex(ddprun.CheckpointError, "no folder"):
                    ddprun.verify_resume(model, optimizer, scheduler=scheduler)

        self.on_ranks(2, act)

    def test_ranks_verify_ddp_and_fsdp(self):
        def act(rank):
            wrapped = DistributedDataParallel(network())
            optimizer = torch.optim.SGD(wrapped.parameters(), lr=0.1, momentum=0.9)
            torch.manual_seed(rank)  # each rank has its own batch, and so its own averages
            step_of(wrapped, optimizer)
            ddprun.verify_resume(wrapped, optimizer)
            with self.assertRaisesRegex(ddprun.CheckpointError, "rank 1: model.1.running_mean is"):
                ddprun.verify_resume(wrapped.module, optimizer)
            torch.manual_seed(0)
            sharded = fully_shard(torch.nn.Linear(5, 3))
            optimizer = torch.optim.AdamW(sharded.parameters())
            step_of(sharded, optimizer)
            before = digest(sharded, optimizer)
            ddprun.verify_resume(sharded, optimizer)
            self.assertEqual(digest(sharded, optimizer), before)
            with unittest.mock.patch("ddprun._restore._set_state", lambda *_: None):
                with self.assertRaisesRegex(ddprun.CheckpointError, "weight.exp_avg is not"):
                    ddprun.verify_resume(sharded, optimizer)
            self.assertEqual(digest(sharded, optimizer), before)

        (_, said), (_, quiet) = self.on_ranks(2, act)
        self.assertEqual((said.count("restores all"), quiet), (2, ""))


if __name__ == "__main__":
    run_tests()
