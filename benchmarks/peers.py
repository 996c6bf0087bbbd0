"""Peers: run the same training steps with other trainers.

"quiet" means that the optional features of the trainer are turned off. "default" means that the trainer uses its defaults.

If a peer is not installed or fails, the table only shows the reason. Each peer is imported only when it is used.
"""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Callable
from tempfile import TemporaryDirectory
from time import perf_counter_ns, thread_time_ns
from types import ModuleType
from typing import Any

import torch
from steps import Job, Took

Peer = Callable[[Job], Callable[[], Took]]  # a Peer imports its library, and returns a function that trains once


def ignite_quiet(job: Job) -> Callable[[], Took]:
    from ignite.engine import Engine

    def train() -> Took:
        model, optimizer, criterion = job.make()

        def update(engine: Engine, batch: Any) -> None:
            inputs, targets = batch
            optimizer.zero_grad()
            loss = criterion(model(inputs), targets)
            loss.backward()
            optimizer.step()

        batches = job.clocked()
        Engine(update).run(batches, max_epochs=1)
        return batches.took

    return train


def ignite_default(job: Job) -> Callable[[], Took]:
    from ignite.engine import create_supervised_trainer

    def train() -> Took:
        batches = job.clocked()
        create_supervised_trainer(*job.make()).run(batches, max_epochs=1)
        return batches.took

    return train


def lightning(job: Job, **options: Any) -> Callable[[], Took]:
    from lightning import LightningModule, Trainer

    class Module(LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.model, self._optimizer, self._criterion = job.make()

        def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
            inputs, targets = batch
            loss: torch.Tensor = self._criterion(self.model(inputs), targets)
            return loss

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return self._optimizer

    def train() -> Took:
        batches = job.clocked()
        with TemporaryDirectory() as folder:
            trainer = Trainer(max_epochs=1, accelerator="cpu", default_root_dir=folder, **options)
            trainer.fit(Module(), batches)
        return batches.took

    return train


def lightning_quiet(job: Job) -> Callable[[], Took]:
    return lightning(job, logger=False, enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False)


def torchtnt_quiet(job: Job) -> Callable[[], Took]:
    # torchtnt imports pkg_resources, which setuptools no longer contains.
    sys.modules.setdefault("pkg_resources", ModuleType("pkg_resources"))
    from torchtnt.framework import State, TrainUnit
    from torchtnt.framework import train as train_unit

    class Unit(TrainUnit[Any]):
        def __init__(self) -> None:
            super().__init__()
            self.model, self.optimizer, self.criterion = job.make()

        def train_step(self, state: State, data: Any) -> None:
            inputs, targets = data
            self.optimizer.zero_grad()
            loss = self.criterion(self.model(inputs), targets)
            loss.backward()
            self.optimizer.step()

    def train() -> Took:
        batches = job.clocked()
        train_unit(Unit(), batches, max_epochs=1)
        return batches.took

    return train


def torchtnt_default(job: Job) -> Callable[[], Took]:
    sys.modules.setdefault("pkg_resources", ModuleType("pkg_resources"))
    from torchtnt.framework import AutoUnit, State
    from torchtnt.framework import train as train_unit

    def train() -> Took:
        model, optimizer, criterion = job.make()

        class Unit(AutoUnit[Any]):
            def compute_loss(self, state: State, data: Any) -> tuple[torch.Tensor, Any]:
                inputs, targets = data
                outputs = self.module(inputs)
                return criterion(outputs, targets), outputs

            def configure_optimizers_and_lr_scheduler(self, module: Any) -> tuple[torch.optim.Optimizer, None]:
                return optimizer, None

        batches = job.clocked()
        train_unit(Unit(module=model, device=torch.device("cpu")), batches, max_epochs=1)
        return batches.took

    return train


def hugging_face(job: Job, **options: Any) -> Callable[[], Took]:
    from transformers import Trainer, TrainingArguments

    class Module(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model, self._made, self._criterion = job.make()

        def forward(self, inputs: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
            return {"loss": self._criterion(self.model(inputs), labels)}

    named = [{"inputs": inputs, "labels": targets} for inputs, targets in job.batches]
    its_job = Job(job.make, named, job.wait)

    def train() -> Took:
        module, batches = Module(), its_job.clocked()
        constant = torch.optim.lr_scheduler.LambdaLR(module._made, lambda step: 1.0)
        with TemporaryDirectory() as folder:
            arguments = TrainingArguments(output_dir=folder, use_cpu=True, max_steps=len(batches), **options)
            trainer = Trainer(module, arguments, train_dataset=named, optimizers=(module._made, constant))
            trainer.get_train_dataloader = lambda: batches
            trainer.train()
        return batches.took

    return train


def hugging_face_quiet(job: Job) -> Callable[[], Took]:
    return hugging_face(job, report_to="none", disable_tqdm=True, logging_strategy="no", save_strategy="no", max_grad_norm=0)


def keras(job: Job, **options: Any) -> Callable[[], Took]:
    """Time the epoch with a Keras callback, because Keras fetches a first batch long before it trains."""
    os.environ.setdefault("KERAS_BACKEND", "torch")
    import keras

    class Clock(keras.callbacks.Callback):
        took: Took = (0, 0)

        def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
            self._began = thread_time_ns(), perf_counter_ns()

        def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
            ended, steps = (thread_time_ns(), perf_counter_ns()), len(job.batches)
            self.took = (ended[0] - self._began[0]) / steps, (ended[1] - self._began[1]) / steps

    def train() -> Took:
        layers = [one for one in job.make()[0].modules() if isinstance(one, torch.nn.Linear)]
        hidden = [keras.layers.Dense(one.out_features, activation="relu") for one in layers[:-1]]
        model = keras.Sequential([keras.Input((layers[0].in_features,)), *hidden, keras.layers.Dense(layers[-1].out_features)])
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile(optimizer=keras.optimizers.SGD(0.01), loss=loss)
        clock = Clock()
        model.fit((pair for pair in job.batches), epochs=1, steps_per_epoch=len(job.batches), callbacks=[clock], **options)
        return clock.took

    return train


def keras_quiet(job: Job) -> Callable[[], Took]:
    return keras(job, verbose=0)


PEERS: dict[str, Peer] = {
    "Ignite, quiet: an Engine around the bare body": ignite_quiet,
    "Ignite, default: create_supervised_trainer": ignite_default,
    "torchtnt, quiet: a TrainUnit with the bare body": torchtnt_quiet,
    "torchtnt, default: an AutoUnit": torchtnt_default,
    "Lightning, quiet": lightning_quiet,
    "Lightning, default": lightning,
    "HF Trainer, quiet": hugging_face_quiet,
    "HF Trainer, default": hugging_face,
    "Keras on torch, quiet": keras_quiet,
    "Keras on torch, default": keras,
}
PACKAGES = ("pytorch-ignite", "torchtnt", "lightning", "transformers", "accelerate", "keras")


def tried(job: Job) -> tuple[dict[str, Callable[[], Took]], dict[str, str]]:
    """Return the training functions of the peers that can run the job, and the reasons why the other peers cannot."""
    works: dict[str, Callable[[], Took]] = {}
    fails: dict[str, str] = {}
    for name, peer in PEERS.items():
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                train = peer(job)
                train()
            works[name] = train
        except ModuleNotFoundError as error:
            fails[name] = f"not installed: {error.name}" if error.name else str(error)
        except Exception as error:
            fails[name] = f"{type(error).__name__}: {' '.join(str(error).split())}"[:100]
    return works, fails
