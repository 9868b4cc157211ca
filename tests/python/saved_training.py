"""A training whose state the tests of checkpoints save and compare. Needs torch and the library."""

import hashlib
import importlib.util
import os
import unittest

from forked import built

LIBRARY = built("ddprun-checkpoint.so", "DDPRUN_CHECKPOINT_LIBRARY")
HAS_TORCH = importlib.util.find_spec("torch") is not None
if HAS_TORCH:
    import torch
    import torch._dynamo  # torch imports it in the first save or step of each rank

    torch.set_num_threads(1)
if LIBRARY:
    os.environ["DDPRUN_CHECKPOINT_LIBRARY"] = LIBRARY


def network(seed=1, width=8):
    """A small one with buffers."""
    torch.manual_seed(seed)
    return torch.nn.Sequential(torch.nn.Linear(5, width), torch.nn.BatchNorm1d(width),
                               torch.nn.ReLU(), torch.nn.Linear(width, 3))


def step_of(model, optimizer, scheduler=None):
    """One step on random numbers."""
    optimizer.zero_grad()
    model(torch.randn(6, 5)).square().mean().backward()
    optimizer.step()
    if scheduler is not None:
        scheduler.step()


def bytes_of(tensor):
    """The bytes of a whole tensor, of a DTensor's, too."""
    whole = tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor
    whole = whole.detach().contiguous()
    return (str(whole.dtype), tuple(whole.shape),
            whole.view(-1).view(torch.uint8).numpy().tobytes() if whole.numel() else b"")


def digest(model, optimizer=None):
    """{name: digest} of parameters, buffers and the optimizer's state."""
    named = {name.replace("module.", ""): tensor for name, tensor in model.state_dict().items()}
    if optimizer is not None:
        for name, parameter in model.named_parameters():
            for field, value in optimizer.state[parameter].items():
                named[f"{name.replace('module.', '')}:{field}"] = value
    return {name: hashlib.sha256(repr(bytes_of(tensor)).encode()).hexdigest()
            for name, tensor in named.items()}


def training_of(seed=1, **settings):
    """Model, optimizer with momentum, scheduler."""
    model = network(seed)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5, momentum=0.9, **settings)
    return model, optimizer, torch.optim.lr_scheduler.StepLR(optimizer, 2)


def run_tests():
    """unittest.main(), or a line that says what is missing."""
    if not HAS_TORCH:
        print("LEFT OUT: no torch here, run scripts/setup.sh")
    elif LIBRARY is None:
        print("LEFT OUT: no ddprun-checkpoint.so is built here")
    else:
        unittest.main()
