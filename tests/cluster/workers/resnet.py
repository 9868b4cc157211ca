"""A small ResNet under DistributedDataParallel, as people write them: a tqdm bar on every rank, and
a logger in the manner of Weights & Biases. Knows nothing of who starts it.

usage: resnet.py [--steps N] [--epochs N] [--fail-at N] [--breakpoint-at N]
"""

import argparse
import queue
import sys
import threading

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from tqdm import tqdm


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(width, width, 3, padding=1), nn.BatchNorm2d(width), nn.ReLU(),
            nn.Conv2d(width, width, 3, padding=1), nn.BatchNorm2d(width))

    def forward(self, images):
        return torch.relu(images + self.body(images))


def resnet(width=8, classes=10):
    return nn.Sequential(nn.Conv2d(3, width, 3, padding=1), Block(width), Block(width),
                         nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(width, classes))


class Logger:
    """Takes metrics, and writes from a thread of its own."""

    def __init__(self):
        self._metrics = queue.Queue()
        self._last = {}
        self._thread = threading.Thread(target=self._run)
        print("wandb: Tracking run with wandb-like logger", file=sys.stderr)
        print("wandb: Run data is saved locally", file=sys.stderr)
        self._thread.start()

    def log(self, **metrics):
        self._metrics.put(metrics)

    def finish(self):
        self._metrics.put(None)
        self._thread.join()
        print("wandb: Run summary:", file=sys.stderr)
        for name, value in self._last.items():
            print(f"wandb: {name:>8} {value:.5g}", file=sys.stderr)

    def _run(self):
        for metrics in iter(self._metrics.get, None):
            self._last = metrics
            if metrics["step"] % 25 == 0:
                print(f"wandb: synced up to step {metrics['step']}", file=sys.stderr)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--fail-at", type=int)
    parser.add_argument("--breakpoint-at", type=int)
    arguments = parser.parse_args()
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(rank)
    model = DistributedDataParallel(resnet())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    logger = Logger() if rank == 0 else None
    step = 0
    try:
        for epoch in range(arguments.epochs):
            for _ in tqdm(range(arguments.steps), desc=f"epoch {epoch}"):
                images, labels = torch.randn(4, 3, 8, 8), torch.randint(10, (4,))
                loss = nn.functional.cross_entropy(model(images), labels)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                step += 1
                if step == arguments.breakpoint_at:
                    dist.breakpoint(0)
                if step == arguments.fail_at and rank == 1:
                    raise RuntimeError(f"the loss is not finite after step {step}")
                if logger:
                    logger.log(step=step, loss=loss.item())
                    if step % 10 == 0:
                        tqdm.write(f"step {step} is done, loss {loss.item():.3f}")
            if logger:
                tqdm.write(f"epoch {epoch} is saved")
    finally:
        if logger:
            logger.finish()
    # First DistributedDataParallel, then the group: else its threads may hold the process up.
    del model
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
