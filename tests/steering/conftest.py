"""A training run that sends itself commands at chosen steps, without waiting for a thread."""

from __future__ import annotations

import json
from dataclasses import dataclass, field

import pytest
import torch

import hookpoint
from hookpoint import callbacks as cb
from hookpoint.core.loop.services import machine_of
from hookpoint.steering.control_command import ControlCommand
from hookpoint.steering.control_folder import ControlFolder


@dataclass
class Trained:
    """The results of a training run: the run, the weights, and the learning rate and momentum of each step."""

    workdir: object
    run: object = None
    weights: list = field(default_factory=list)
    steps: list = field(default_factory=list)
    ids: list = field(default_factory=list)

    def answers(self):
        with ControlFolder(self.workdir) as folder:
            return [folder.answer(command_id) for command_id in self.ids]

    def events(self):
        path = self.workdir / "events.jsonl"
        rows = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
        return [row for row in rows if row["event"] == "control"]


class Sends(hookpoint.Callback):
    """Send commands at the end of a step: {step: [(do, args), ...]}. A function is called with the run instead."""

    def __init__(self, trained, commands):
        self.trained, self.commands = trained, commands

    def on_iter_end(self, run):
        if run.mode == "train":
            for command in self.commands.get(run.iteration, ()):
                self.send(run, command)

    def send(self, run, command):
        if callable(command):
            command(run)
            return
        do, args, *more = command
        steering = machine_of(run).control
        one = ControlCommand(do, args, steering.attempt, by="test", **(more[0] if more else {}))
        self.trained.ids.append(one.id)
        steering.submit(one)


class Notes(hookpoint.Callback):
    def __init__(self, trained):
        self.trained = trained

    def on_train_iter_end(self, run):
        self.trained.steps.append((run.iteration, run.hyper["lr"], run.hyper["momentum"]))


@pytest.fixture
def fit(tmp_path):
    """Return `fit(commands, ...)`: 3 epochs of 4 batches, saved every `save_every` steps."""

    def train(commands=None, *, name="mine", callbacks=(), epochs=3, save_every=None, val=True, batch_size=4, **options):
        workdir = tmp_path / name
        trained = Trained(workdir)
        torch.manual_seed(0)
        model = torch.nn.Linear(3, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.5)
        saver = [] if save_every is None else [cb.ModelSaver().when(hookpoint.Every(steps=save_every))]
        options = {"monitors": [cb.JSONWriter()], "extra_callbacks": [], "log_every": 2, "seed": 0, **options}
        everything = [*saver, *callbacks, Notes(trained), Sends(trained, commands or {})]
        runner = hookpoint.Runner(model, optimizer, torch.nn.MSELoss(), callbacks=everything, workdir=workdir, **options)
        inputs = torch.arange(48.0).reshape(16, 3) / 48
        data = (inputs, inputs.sum(1, keepdim=True))
        try:
            trained.run = runner.fit(data, data if val else None, epochs=epochs, batch_size=batch_size)
        finally:
            trained.weights = [parameter.detach().clone() for parameter in model.parameters()]
        return trained

    return train


@pytest.fixture
def folder(tmp_path):
    """A new control folder."""
    with ControlFolder.create(tmp_path) as opened:
        yield opened
