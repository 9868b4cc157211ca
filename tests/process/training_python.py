"""Compares C++ training with PyTorch's Python: training_python.py PEER. Both do the same
at worlds 1 and 2, and what they compute is compared: fp64 to 1e-12, fp32 to 1e-6. Exit code 0 if
all is equal. A resumed C++ training is compared with an undisturbed one, bit for bit."""

import math
import os
import pickle
import subprocess
import sys
import tempfile

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim import lr_scheduler
from torch.utils.checkpoint import checkpoint

TOLERANCE = {"f64": 1e-12, "f32": 1e-6}
DTYPES = {"f64": torch.float64, "f32": torch.float32}
LOOPBACK = "127.0.0.1"


def with_weights(network, dtype):
    network.to(dtype)
    start = 1.0
    with torch.no_grad():
        for parameter in network.parameters():
            values = torch.arange(start, start + parameter.numel(), dtype=torch.float64)
            parameter.copy_((values.sin() * 0.5).reshape(parameter.shape))
            start += parameter.numel()
    return network


def make_network(dtype):
    return with_weights(nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 5), nn.Tanh(),
                                      nn.Linear(5, 3)), dtype)


def loss_of(outputs):
    return outputs.to(torch.promote_types(outputs.dtype, torch.float32)).pow(2).mean()


class Counting(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Dropout(0.4), nn.Linear(8, 5),
                                   nn.Tanh())

    def forward(self, inputs):
        return self.inner(inputs)


class Checkpointed(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Dropout(0.2))
        self.middle = Counting()
        self.last = nn.Sequential(nn.Dropout(0.3), nn.Linear(5, 3))

    def forward(self, inputs):
        hidden = checkpoint(self.first, inputs, use_reentrant=False)
        return self.last(checkpoint(self.middle, hidden, use_reentrant=False))


class Rank:
    """One rank of the Python side; `record` holds what it computes, by name."""

    def __init__(self, rank, world):
        self.rank = rank
        self.world = world
        self.record = {}

    def note(self, name, value):
        value = torch.as_tensor(value, dtype=torch.float64).detach()
        self.record[name] = value.flatten().tolist()

    def note_all(self, name, network):
        for key, parameter in network.named_parameters():
            self.note(f"{name}.{key}", parameter)
            self.note(f"{name}.{key}.grad", parameter.grad)

    def inputs(self, step, dtype):
        start = 24.0 * (step * self.world + self.rank)
        return torch.arange(start, start + 24, dtype=torch.float64).cos().reshape(4, 6).to(dtype)

    def optimizers(self):
        kinds = {
            "adamw": {"amsgrad": False},
            "adamw-amsgrad": {"amsgrad": True},
            "sgd": {},
            "sgd-momentum": {"momentum": 0.9},
            "sgd-nesterov": {"momentum": 0.9, "nesterov": True},
        }
        for short, dtype in DTYPES.items():
            for kind, options in kinds.items():
                name = f"optimizer.{kind}.{short}"
                network = make_network(dtype)
                model = DistributedDataParallel(network)
                matrices = [one for one in network.parameters() if one.dim() == 2]
                vectors = [one for one in network.parameters() if one.dim() == 1]
                if kind.startswith("adamw"):
                    optimizer = torch.optim.AdamW(
                        [{"params": matrices}, {"params": vectors, "lr": 0.03,
                                                "betas": (0.8, 0.99)}],
                        lr=0.02, weight_decay=0.05, fused=True, **options)
                else:
                    optimizer = torch.optim.SGD(
                        [{"params": matrices}, {"params": vectors, "lr": 0.1}], lr=0.2,
                        weight_decay=0.01, fused=True, **options)
                schedule = lr_scheduler.LambdaLR(optimizer, lambda step: (
                    0.1 + 0.9 * step / 3 if step < 3 else
                    (1 + math.cos(math.pi * min(step - 3, 7) / 7)) / 2))
                for step in range(12):
                    optimizer.zero_grad()
                    loss = loss_of(model(self.inputs(step, dtype)))
                    loss.backward()
                    optimizer.step()
                    self.note(f"{name}.loss.{step}", loss)
                    for i, group in enumerate(optimizer.param_groups):
                        self.note(f"{name}.lr.{i}.{step}", group["lr"])
                    schedule.step()
                self.note_all(name, network)

    def schedules(self):
        optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=0.3)
        warmup = lr_scheduler.LinearLR(optimizer, start_factor=0.25, total_iters=4)
        cosine = lr_scheduler.CosineAnnealingLR(optimizer, T_max=16, eta_min=0.05 * 0.3)
        schedule = lr_scheduler.SequentialLR(optimizer, [warmup, cosine], milestones=[4])
        for step in range(21):
            self.note(f"schedule.{step}", optimizer.param_groups[0]["lr"])
            optimizer.step()
            schedule.step()

    def autocast(self):
        for low, name in ((torch.bfloat16, "autocast.BFloat16"), (torch.float16, "autocast.Half")):
            network = make_network(torch.float32)
            model = DistributedDataParallel(network)
            inputs = self.inputs(0, torch.float32)
            with torch.autocast("cpu", dtype=low):
                outputs = model(inputs)
                with torch.autocast("cpu", enabled=False):
                    self.note(f"{name}.inner", network(inputs))
                self.note(f"{name}.outputs", outputs)
                loss = loss_of(outputs)
            loss.backward()
            self.note_all(name, network)

    def scaler(self):
        network = make_network(torch.float32)
        model = DistributedDataParallel(network)
        # Python's fused one takes an uninitialised momentum for good if its first step is skipped.
        optimizer = torch.optim.SGD(network.parameters(), lr=0.2, momentum=0.9)
        scaler = torch.amp.GradScaler("cpu", init_scale=2.0**20, growth_factor=4,
                                      growth_interval=3)
        parameters = list(network.parameters())
        for step in range(16):
            name = f"scaler.{step}"
            optimizer.zero_grad()
            with torch.autocast("cpu", dtype=torch.float16):
                loss = loss_of(model(self.inputs(step, torch.float32)))
            scaler.scale(loss).backward()
            if step == 5 and self.rank == self.world - 1:
                parameters[2].grad[0][0] = math.inf
            if step == 5 and self.rank != self.world - 1:
                # Nothing is agreed here: this rank is told by another parameter.
                parameters[4].grad[0][0] = math.inf
            scaler.unscale_(optimizer)
            self.note(f"{name}.norm", parameters[0].grad.norm())
            before = nn.utils.parameters_to_vector(parameters).detach().clone()
            scaler.step(optimizer)
            after = nn.utils.parameters_to_vector(parameters).detach()
            self.note(f"{name}.stepped", float(not torch.equal(before, after)))
            scaler.update()
            self.note(f"{name}.scale", scaler.get_scale())
            self.note(f"{name}.parameters", after)

    def recomputation(self):
        for name, dtype, is_low in (("recompute.f64", torch.float64, False),
                                    ("recompute.f32", torch.float32, False),
                                    ("recompute.low", torch.float32, True)):
            network = with_weights(Checkpointed(), dtype)
            model = DistributedDataParallel(network)
            torch.manual_seed(100 + self.rank)
            for step in range(2):
                network.zero_grad()
                with torch.autocast("cpu", enabled=is_low):
                    loss = loss_of(model(self.inputs(step, dtype)))
                self.note(f"{name}.loss.{step}", loss)
                loss.backward()
                self.note_all(f"{name}.{step}", network)
            self.note(f"{name}.random", torch.rand(3, dtype=torch.float64))

    def determinism(self):
        torch.manual_seed(7)
        self.note("deterministic.random", torch.rand(3, dtype=torch.float64))

    def main(self, port, path):
        torch.set_num_threads(1)
        dist.init_process_group("gloo", store=dist.TCPStore(LOOPBACK, port), rank=self.rank,
                                world_size=self.world)
        for part in (self.optimizers, self.schedules, self.autocast, self.scaler,
                     self.recomputation, self.determinism):
            part()
        with open(path, "wb") as file:
            pickle.dump(self.record, file)
        dist.barrier()


def start_peers(peer, world, port, arguments):
    """Ranks of the C++ side, as torchrun would start them."""
    return [subprocess.Popen(
        [peer, *[argument.format(rank=rank) for argument in arguments]],
        env={**os.environ, "RANK": str(rank), "WORLD_SIZE": str(world), "LOCAL_RANK": str(rank),
             "LOCAL_WORLD_SIZE": str(world), "MASTER_ADDR": LOOPBACK, "MASTER_PORT": str(port)})
        for rank in range(world)]


def fork_rank(rank, world, path):
    """A Python rank in a process of its own, which need not import torch again. Returns its pid and
    the end of a pipe that the port of its store is written to."""
    read_end, write_end = os.pipe()
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            os.close(write_end)
            Rank(rank, world).main(int(os.read(read_end, 16)), path)
            code = 0
        except BaseException as failure:  # what comes of it is the exit code
            print(f"Python's rank {rank} of {world}: {failure!r}", flush=True)
        os._exit(code)
    os.close(read_end)
    return pid, write_end


def read_peer(path):
    with open(path, encoding="utf-8") as file:
        return {line.split()[0]: [float(word) for word in line.split()[1:]] for line in file}


def differences(ours, theirs):
    """Lines that say what is not the same."""
    for name in sorted(ours.keys() | theirs.keys()):
        if name not in ours or name not in theirs:
            yield f"{name}: only {'C++' if name in ours else 'Python'} has it"
            continue
        is_single = any(part in name for part in ("f32", "low", "autocast", "scaler"))
        bound = TOLERANCE["f32" if is_single else "f64"]
        left = torch.tensor(ours[name], dtype=torch.float64)
        right = torch.tensor(theirs[name], dtype=torch.float64)
        if left.shape != right.shape or not torch.allclose(left, right, rtol=bound, atol=bound,
                                                           equal_nan=True):
            yield f"{name}: C++ {ours[name][:4]}, Python {theirs[name][:4]}, to {bound}"


def compare(peer, world, folder):
    ours = [os.path.join(folder, f"ours.{world}.{rank}") for rank in range(world)]
    theirs = [os.path.join(folder, f"theirs.{world}.{rank}") for rank in range(world)]
    # A store's thread may hold a lock of libc's resolver, which a process forked then waits for.
    python = [fork_rank(rank, world, theirs[rank]) for rank in range(world)]
    stores = [dist.TCPStore(LOOPBACK, 0, is_master=True, wait_for_workers=False) for _ in range(2)]
    for _, port_end in python:
        os.write(port_end, str(stores[0].port).encode())
        os.close(port_end)
    peers = start_peers(peer, world, stores[1].port,
                        ["compare", os.path.join(folder, f"ours.{world}.{{rank}}")])
    is_right = all([one.wait() == 0 for one in peers])
    is_right = all([os.waitpid(pid, 0)[1] == 0 for pid, _ in python]) and is_right
    if not is_right:
        print(f"world {world}: a rank ended badly")
        return False
    found = []
    for rank in range(world):
        with open(theirs[rank], "rb") as file:
            expected = pickle.load(file)
        found += [f"world {world}, rank {rank}: {line}"
                  for line in differences(read_peer(ours[rank]), expected)]
    for line in found[:20]:
        print(line)
    print(f"world {world}: {len(expected)} tensors and numbers of each rank compared, "
          f"{len(found)} differ")
    return not found


def resume(peer, world, folder):
    store = dist.TCPStore(LOOPBACK, 0, is_master=True, wait_for_workers=False)
    peers = start_peers(peer, world, store.port,
                        ["resume", os.path.join(folder, f"checkpoints.{world}")])
    return all([one.wait() == 0 for one in peers])


def main():
    os.environ.update(GLOO_SOCKET_IFNAME="lo", OMP_NUM_THREADS="1", TORCH_CPP_LOG_LEVEL="ERROR")
    peer = sys.argv[1]
    with tempfile.TemporaryDirectory() as folder:
        results = [compare(peer, world, folder) for world in (1, 2)]
        results += [resume(peer, world, folder) for world in (1, 2)]
    return 0 if all(results) else 1


if __name__ == "__main__":
    sys.exit(main())
