"""A small training with the real library, for test_callbacks.py.

usage: callback_training.py huggingface|lightning|accelerate FOLDER STORE STEPS [OPTION...]
Goes on from the checkpoint in FOLDER if there is one; says `rank R trains` after its third step.
Options: `own`, the library saves by itself, too, as often as it can (accelerate: every 2 steps,
with the number of the first after it); `last`, with `own`, Lightning keeps one checkpoint and links
to it; `isolated`, rank 0's node is isolated from the third step on; `apart`, accelerate's rank 1
is a step ahead; `cannot-rename`, rank 0 has no room for a rename; `tells-syncs`, what is synced and
renamed is said.
"""

import errno
import os
import sys

import torch

import ddprun

library, folder, store, steps = sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4])
options = sys.argv[5:]
saves = options[:1] == ["own"]
worker = ddprun.worker()
torch.set_num_threads(1)
torch.distributed.init_process_group("gloo", init_method=f"file://{store}", rank=worker.rank,
                                     world_size=worker.world_size)


def say(text):
    sys.stdout.write(f"rank {worker.rank} {text}\n")
    sys.stdout.flush()


def name_of(path):
    return os.path.basename(os.fspath(path))


def cannot_rename():
    def fail(*_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    if worker.rank == 0:
        os.replace = os.rename = fail


def tell_syncs():
    sync, replace = os.fsync, os.replace

    def told_sync(file):
        sync(file)
        say(f"syncs {name_of(os.readlink(f'/proc/self/fd/{file}'))}")

    def told_replace(source, target):
        replace(source, target)
        say(f"renames {name_of(source)}")

    os.fsync, os.replace = told_sync, told_replace


class Data(torch.utils.data.Dataset):
    def __len__(self):
        return 1 << 20

    def __getitem__(self, i):
        torch.manual_seed(i)
        x = torch.randn(4)
        return {"x": x, "labels": x.sum().reshape(1)}


class Network(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.line = torch.nn.Linear(4, 1)

    def forward(self, x, labels):
        return {"loss": torch.nn.functional.mse_loss(self.line(x), labels)}


def train_huggingface():
    from transformers import Trainer, TrainerCallback, TrainingArguments

    from ddprun.huggingface import DdprunCallback, newest_checkpoint

    class Says(TrainerCallback):
        def on_step_end(self, args, state, control, **kwargs):
            if state.global_step - self.begun == 3:
                say("trains")

        def on_train_begin(self, args, state, control, **kwargs):
            self.begun = state.global_step
            say(f"begins at {state.global_step}")

        def on_save(self, args, state, control, **kwargs):
            say(f"saves at {state.global_step}")

        def on_evaluate(self, args, state, control, **kwargs):
            say("evaluates")

    arguments = TrainingArguments(
        output_dir=folder, max_steps=steps, per_device_train_batch_size=8, use_cpu=True,
        save_strategy="steps" if saves else "no", save_steps=1,
        eval_strategy="epoch", report_to=[], logging_steps=2,
        disable_tqdm=True, ddp_backend="gloo", ignore_data_skip=True)
    trainer = Trainer(Network(), arguments, train_dataset=Data(),
                      eval_dataset=torch.utils.data.Subset(Data(), range(8)),
                      callbacks=[DdprunCallback(), Says()])
    trainer.train(resume_from_checkpoint=newest_checkpoint(folder))
    say(f"is done at {trainer.state.global_step}")


def train_lightning():
    import lightning.pytorch as lightning

    from ddprun.lightning import DdprunCallback, newest_checkpoint

    class Module(lightning.LightningModule):
        def __init__(self):
            super().__init__()
            self.network = Network()

        def training_step(self, batch, _):
            return self.network(**batch)["loss"]

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), lr=0.01)

    class Says(lightning.Callback):
        def on_train_start(self, trainer, module):
            self.begun = trainer.global_step
            say(f"begins at {trainer.global_step}")

        def on_train_batch_end(self, trainer, *_):
            if trainer.global_step - self.begun == 3:
                say("trains")
                if "isolated" in options and worker.rank == 0:
                    worker.is_isolated = lambda: True

    trainer = lightning.Trainer(
        max_steps=steps, accelerator="cpu", devices=worker.world_size, num_nodes=1,
        strategy="ddp", logger=False, enable_progress_bar=False, enable_model_summary=False,
        enable_checkpointing=saves, default_root_dir=folder,
        callbacks=[DdprunCallback(folder), Says(), *(
            [lightning.callbacks.ModelCheckpoint(every_n_train_steps=1, **(
                {"save_last": "link"} if "last" in options else {"save_top_k": -1}))]
            if saves else [])])
    trainer.fit(Module(), torch.utils.data.DataLoader(Data(), batch_size=8),
                ckpt_path=newest_checkpoint(folder), weights_only=False)
    say(f"is done at {trainer.global_step}")


class Counter:
    """The step, in accelerate's checkpoint."""

    step = 0

    def state_dict(self):
        return {"step": self.step}

    def load_state_dict(self, state):
        self.step = state["step"]


def train_accelerate():
    from accelerate import Accelerator
    from accelerate.utils import ProjectConfiguration

    from ddprun.accelerate import Steps, newest_state

    accelerator = Accelerator(cpu=True, project_config=ProjectConfiguration(
        project_dir=folder, automatic_checkpoint_naming=saves,
        iteration=int(options[1]) if saves and options[1:] else 0))
    ahead = worker.rank if "apart" in options else 0
    network = Network()
    network, optimizer, loader = accelerator.prepare(
        network, torch.optim.SGD(network.parameters(), lr=0.01),
        torch.utils.data.DataLoader(Data(), batch_size=8))
    counter = Counter()
    accelerator.register_for_checkpointing(counter)
    state = newest_state(folder, accelerator)
    if state:
        accelerator.load_state(state)
        worker.resumed()
    say(f"begins at {counter.step}")
    begun = counter.step
    told = Steps(accelerator, folder)
    for batch in loader:
        if counter.step == steps:
            break
        loss = network(**batch)["loss"]
        accelerator.backward(loss)
        optimizer.step()
        optimizer.zero_grad()
        counter.step += 1
        if counter.step - begun == 3:
            say("trains")
        if saves and counter.step % 2 == 0:
            accelerator.save_state()
        told.done(counter.step + ahead, samples=8, loss=loss.item())
    say(f"is done at {counter.step}")


if __name__ == "__main__":
    os.environ["ACCELERATE_USE_CPU"] = "1"
    if "cannot-rename" in options:
        cannot_rename()
    if "tells-syncs" in options:
        tell_syncs()
    {"huggingface": train_huggingface, "lightning": train_lightning,
     "accelerate": train_accelerate}[library]()
