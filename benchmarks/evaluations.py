"""Measure how long validation and prediction take in a Runner, in a Loop, and in plain PyTorch loops without hookpoint."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from steps import QUIET, Job, Took

from hookpoint.presets.loop import Loop
from hookpoint.presets.runner import Runner

BARE_VAL = "bare validation"
BARE_PRED = "bare prediction"


def bare_validation(job: Job) -> Took:
    """Average the loss over the samples, in a standard validation loop."""
    model, _, criterion = job.make()
    batches = job.clocked()
    model.eval()
    total, samples = 0.0, 0
    with torch.no_grad():
        for inputs, targets in batches:
            loss = criterion(model(inputs), targets)
            total += loss.item() * len(inputs)
            samples += len(inputs)
    assert total / samples > 0
    return batches.took


def bare_prediction(job: Job) -> Took:
    model, _, _ = job.make()
    batches, outputs = job.clocked(), []
    model.eval()
    with torch.no_grad():
        for inputs, _ in batches:
            outputs.append(model(inputs))
    assert outputs
    return batches.took


def validated(job: Job, **options: Any) -> Took:
    batches = job.clocked()
    Runner(*job.make(), device="cpu", **options).validate(batches)
    return batches.took


def predicted(job: Job, **options: Any) -> Took:
    batches = job.clocked()
    Runner(*job.make(), device="cpu", **options).predict(batches)
    return batches.took


def own_validation(job: Job, loop: Any) -> Took:
    model, _, criterion = job.make()
    batches = job.clocked()
    model.eval()
    with loop as run, torch.no_grad():
        for inputs, targets in run.batches(batches, mode="val"):
            run.log(loss=criterion(model(inputs), targets))
    return batches.took


def validations(job: Job) -> dict[str, Callable[[], Took]]:
    return {
        BARE_VAL: lambda: bare_validation(job),
        "bare validation again": lambda: bare_validation(job),
        "Runner.validate, quiet": lambda: validated(job, **QUIET),
        "Runner.validate, default callbacks": lambda: validated(job),
        "own validation with run.log(loss=loss)": lambda: own_validation(job, Loop(**QUIET)),
    }


def predictions(job: Job) -> dict[str, Callable[[], Took]]:
    return {
        BARE_PRED: lambda: bare_prediction(job),
        "bare prediction again": lambda: bare_prediction(job),
        "Runner.predict, quiet": lambda: predicted(job, **QUIET),
        "Runner.predict, default callbacks": lambda: predicted(job),
    }
