"""Trains a small network on handwritten digits with DistributedDataParallel on CPUs.

train.py with ddprun's checkpoints: every rank leaves after the same step with its place in the
epoch saved, and goes on exactly there.
"""

import argparse
import hashlib
import time

import ddprun
import numpy
import torch
import torch.distributed as dist
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset
worker = ddprun.worker()


def parse_arguments():
    parser = argparse.ArgumentParser(description="Train a digit classifier with PyTorch DDP.")
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--batch-size", type=int, default=32, help="per worker")
    parser.add_argument("--lr", type=float, default=2e-3)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--checkpoint-dir", default="checkpoints")
    parser.add_argument("--min-epoch-seconds", type=float, default=0,
                        help="pad short epochs to this long, to have something to watch")
    return parser.parse_args()


def load_data(seed):
    """The 1,797 images of 8x8 pixels that scikit-learn holds, as train and test sets."""
    digits = load_digits()
    images = (digits.images / 16.0).astype(numpy.float32)[:, None, :, :]
    parts = train_test_split(images, digits.target, test_size=0.2, random_state=seed,
                             stratify=digits.target)
    train_images, test_images, train_labels, test_labels = map(torch.as_tensor, parts)
    return TensorDataset(train_images, train_labels), TensorDataset(test_images, test_labels)


def make_network():
    return nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(),
        nn.Conv2d(16, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(32 * 4 * 4, 64), nn.ReLU(), nn.Linear(64, 10))


def resume(checkpoints, model, optimizer):
    """Loads the newest checkpoint; returns the epochs done, the steps of the one under way, and
    all steps before it."""
    step = checkpoints.resume(model=model, optimizer=optimizer)
    if step is None:
        return 0, 0, 0
    if dist.get_rank() == 0:
        print(f"resumed from step {step}", flush=True)
    place = checkpoints.values["place"]
    # In another world size an epoch has other steps: it begins again.
    steps = place["steps"] if place["world"] == dist.get_world_size() else 0
    return place["epochs"], steps, step - steps


def place_of(epochs, steps):
    return {"epochs": epochs, "steps": steps, "world": dist.get_world_size()}


def parameters_of(model):
    """The same text for the same bits."""
    state = hashlib.sha256()
    for tensor in model.state_dict().values():
        state.update(tensor.numpy().tobytes())
    return state.hexdigest()[:16]


def train_epoch(network, loader, optimizer, checkpoints, epoch, before, steps_done,
                tells_first_step):
    """Mean loss over all ranks and the number of images that they saw."""
    network.train()
    total = torch.zeros(2)
    for step, (images, labels) in enumerate(loader, start=1):
        if step <= steps_done:
            continue
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(network(images), labels)
        loss.backward()
        optimizer.step()
        if tells_first_step and step == 1:
            print(f"first step: loss {loss.item():.4f}", flush=True)
        total += torch.tensor([loss.item() * len(labels), len(labels)])
        steps = before + step
        worker.progress(steps, samples=len(labels), loss=loss.item())
        if worker.stop_requested():
            checkpoints.save(steps, model=network, optimizer=optimizer,
                             place=place_of(epoch - 1, step))
            worker.leave()
    dist.all_reduce(total)
    return (total[0] / total[1]).item(), int(total[1])


@torch.no_grad()
def accuracy(model, dataset):
    """Every rank judges its share of the test set; the shares do not overlap."""
    model.eval()
    images, labels = dataset.tensors
    mine = slice(dist.get_rank(), None, dist.get_world_size())
    right = (model(images[mine]).argmax(dim=1) == labels[mine]).sum()
    counts = torch.tensor([right.item(), len(labels[mine])])
    dist.all_reduce(counts)
    return counts[0].item() / counts[1].item()


def main():
    arguments = parse_arguments()
    checkpoints = ddprun.Checkpoints(arguments.checkpoint_dir)
    torch.set_num_threads(1)
    torch.manual_seed(arguments.seed)
    dist.init_process_group("gloo")
    is_first = dist.get_rank() == 0

    train_set, test_set = load_data(arguments.seed)
    model = make_network()
    optimizer = torch.optim.Adam(model.parameters(), lr=arguments.lr)
    epochs_done, steps_done, before = resume(checkpoints, model, optimizer)
    network = DistributedDataParallel(model)
    sampler = DistributedSampler(train_set, seed=arguments.seed)
    loader = DataLoader(train_set, batch_size=arguments.batch_size, sampler=sampler)
    if is_first and epochs_done < arguments.epochs:
        print(f"training on {dist.get_world_size()} workers, {len(train_set)} images, "
              f"epochs {epochs_done + 1} to {arguments.epochs}", flush=True)

    saving = None
    for epoch in range(epochs_done + 1, arguments.epochs + 1):
        started = time.monotonic()
        sampler.set_epoch(epoch)
        loss, images = train_epoch(network, loader, optimizer, checkpoints, epoch, before,
                                   steps_done if epoch == epochs_done + 1 else 0,
                                   tells_first_step=is_first and epoch == epochs_done + 1)
        rate = images / (time.monotonic() - started)
        score = accuracy(model, test_set)
        time.sleep(max(0.0, arguments.min_epoch_seconds - (time.monotonic() - started)))
        # Counted on from the resumed step: a larger world's epochs have fewer steps.
        before += len(loader)
        saving = checkpoints.save_async(before, model=network, optimizer=optimizer,
                                        place=place_of(epoch, 0))
        if is_first:
            left = (arguments.epochs - epoch) * (time.monotonic() - started)
            print(f"epoch {epoch}/{arguments.epochs}: loss {loss:.4f}, accuracy {score:.2%}, "
                  f"{rate:.0f} images/s, {left:.0f} s left", flush=True)

    score = accuracy(model, test_set)
    if is_first:
        print(f"finished {arguments.epochs} epochs: accuracy {score:.2%}", flush=True)
        print(f"parameters {parameters_of(model)}", flush=True)
    if saving is not None:
        saving.wait()
    dist.barrier()
    # The thread that drops the last reference to the group waits for the group's own thread. The
    # network would wait with the interpreter's lock, which the group's thread may need to end.
    del network
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
