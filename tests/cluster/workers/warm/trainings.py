"""Small trainings as people write them, for warm_programs.py: each writes a checkpoint after every
step, goes on from the newest, and says at its end what its parameters are.
"""

import hashlib
import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset, DistributedSampler

import held

STEPS = 6
BATCH = 4


class Images(Dataset):
    """Each is the same in every process and generation."""

    def __len__(self):
        return 2 * BATCH * STEPS

    def __getitem__(self, index):
        random = torch.Generator().manual_seed(index)
        return torch.randn(3, 8, 8, generator=random), index % 10


class Tokens(Dataset):
    """The same, for language models."""

    def __len__(self):
        return 2 * BATCH * STEPS

    def __getitem__(self, index):
        random = torch.Generator().manual_seed(index)
        tokens = torch.randint(64, (16,), generator=random)
        return {"input_ids": tokens, "labels": tokens}


def small_network():
    return nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(144, 10))


def residual_network():
    from resnet import resnet
    return resnet()


def tell_parameters(model):
    digest = hashlib.sha256()
    for name, value in sorted(model.state_dict().items()):
        digest.update(name.encode())
        digest.update(value.numpy().tobytes())
    print(f"parameters {digest.hexdigest()}", flush=True)


def train(folder, network, **loading):
    """With nothing but torch. `loading` is for the loader."""
    dist.init_process_group("gloo")
    torch.manual_seed(1)
    model = DistributedDataParallel(network())
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    path = os.path.join(folder, "newest.pt")
    done = 0
    if os.path.exists(path):
        state = torch.load(path)
        model.module.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        done = state["step"]
        print(f"goes on after step {done}", flush=True)
    dist.barrier()
    loader = DataLoader(Images(), BATCH, sampler=DistributedSampler(Images()), **loading)
    for step, (images, labels) in enumerate(loader, start=1):
        if step <= done:
            continue
        loss = nn.functional.cross_entropy(model(images), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print(f"step {step}: loss {loss.item():.6f}", flush=True)
        if dist.get_rank() == 0:
            torch.save({"model": model.module.state_dict(), "optimizer": optimizer.state_dict(),
                        "step": step}, path + ".new")
            os.replace(path + ".new", path)
        held.after(step)
    tell_parameters(model.module)
    del model  # As in examples/python_ddp/train.py.
    dist.destroy_process_group()


def train_huggingface(folder):
    from transformers import (GPT2Config, GPT2LMHeadModel, Trainer, TrainerCallback,
                              TrainingArguments)
    from transformers.trainer_utils import get_last_checkpoint
    from transformers.utils import logging

    logging.disable_progress_bar()  # Each bar shows how fast it was.

    class Held(TrainerCallback):
        def on_save(self, args, state, control, **kwargs):
            held.after(state.global_step)

    torch.manual_seed(1)
    model = GPT2LMHeadModel(GPT2Config(vocab_size=64, n_positions=16, n_embd=16, n_layer=2,
                                       n_head=2))
    trainer = Trainer(model, TrainingArguments(
        output_dir=folder, max_steps=STEPS, per_device_train_batch_size=BATCH, use_cpu=True,
        save_strategy="steps", save_steps=1, report_to=[], logging_steps=1, disable_tqdm=True,
        ddp_backend="gloo"), train_dataset=Tokens(), callbacks=[Held()])
    trainer.train(resume_from_checkpoint=get_last_checkpoint(folder))
    tell_parameters(model)


def train_lightning(folder):
    import lightning.pytorch as lightning
    from lightning.pytorch.callbacks import ModelCheckpoint

    class Module(lightning.LightningModule):
        def __init__(self):
            super().__init__()
            self.network = small_network()

        def training_step(self, batch, _):
            images, labels = batch
            loss = nn.functional.cross_entropy(self.network(images), labels)
            print(f"step {self.global_step + 1}: loss {loss.item():.6f}", flush=True)
            return loss

        def configure_optimizers(self):
            return torch.optim.Adam(self.parameters(), lr=0.01)

    class Held(lightning.Callback):
        def on_train_batch_start(self, trainer, *_):
            held.after(trainer.global_step)  # Its checkpoint is written.

    lightning.seed_everything(1)
    module = Module()
    trainer = lightning.Trainer(
        max_steps=STEPS, accelerator="cpu", devices=2, strategy="ddp", logger=False,
        enable_progress_bar=False, callbacks=[ModelCheckpoint(
            folder, save_last=True, every_n_train_steps=1, save_top_k=1), Held()])
    trainer.fit(module, DataLoader(Images(), BATCH), ckpt_path="last")
    tell_parameters(module)


def train_accelerate(folder):
    from accelerate import Accelerator

    torch.manual_seed(1)
    accelerator = Accelerator(cpu=True)
    model, optimizer, loader = accelerator.prepare(
        network := small_network(), torch.optim.Adam(network.parameters(), lr=0.01),
        DataLoader(Images(), BATCH))
    states = sorted(os.listdir(folder))
    done = len(states)
    if done:
        accelerator.load_state(os.path.join(folder, states[-1]))
        accelerator.print(f"goes on after step {done}")
    for step, (images, labels) in enumerate(
            accelerator.skip_first_batches(loader, done), start=done + 1):
        loss = nn.functional.cross_entropy(model(images), labels)
        accelerator.backward(loss)
        optimizer.step()
        optimizer.zero_grad()
        accelerator.print(f"step {step}: loss {loss.item():.6f}")
        accelerator.save_state(os.path.join(folder, f"step-{step}"))
        accelerator.wait_for_everyone()
        held.after(step)
    tell_parameters(accelerator.unwrap_model(model))
    accelerator.end_training()
