"""Callbacks of several libraries work in one list."""

from __future__ import annotations

import ast
import os

import pytest

os.environ.setdefault("KERAS_BACKEND", "torch")
keras = pytest.importorskip("keras", reason="Keras is not installed: make test-adapters")
lightning = pytest.importorskip("lightning", reason="Lightning is not installed: make test-adapters")
transformers = pytest.importorskip("transformers", reason="transformers is not installed: make test-adapters")

from tests.adapters.foreign_callbacks.scripted import ours  # noqa: E402

from hookpoint import CallbackPipeline, EnableCallbackIf  # noqa: E402
from hookpoint import callbacks as cb  # noqa: E402

LOSSES = [4.0, 2.0, 3.0, 1.0, 1.5, 1.25, 1.0, 1.0, 0.5, 0.5]


def make(path):
    """Return a list with callbacks of three libraries and of hookpoint."""
    return [
        keras.callbacks.ReduceLROnPlateau("val_loss", factor=0.5, patience=1, min_delta=10),
        CallbackPipeline([keras.callbacks.CSVLogger(path), lightning.pytorch.callbacks.LearningRateMonitor()]),
        EnableCallbackIf(transformers.PrinterCallback(), lambda run: run.epoch == 2),
        lightning.pytorch.callbacks.EarlyStopping("val_loss", patience=2),
        keras.callbacks.EarlyStopping("val_loss", patience=5),
        cb.ModelSaver(),
    ]


def test_callbacks_of_several_libraries_work_together_and_resume(tmp_path, capsys):
    callbacks = make(tmp_path / "whole.csv")
    run = ours(callbacks, LOSSES, workdir=tmp_path / "whole")
    assert (run.epoch, run.stop_reason) == (6, "EarlyStopping set trainer.should_stop")
    printed = [ast.literal_eval(line) for line in capsys.readouterr().out.splitlines() if line.startswith("{'eval")]
    assert [float(row["eval_loss"]) for row in printed] == [2.0]  # the printer works in the second epoch only
    names = [entry.name for entry in run.hooks.entries if hasattr(entry.subject, "theirs")]
    assert names == [
        "ReduceLROnPlateau",
        "CSVLogger",
        "LearningRateMonitor",
        "PrinterCallback",
        "EarlyStopping",
        "EarlyStopping#2",
    ]

    ours(make(tmp_path / "log.csv"), LOSSES, epochs=4, workdir=tmp_path / "run")
    resumed = ours(make(tmp_path / "log.csv"), LOSSES, workdir=tmp_path / "run", done=4)
    assert (resumed.epoch, resumed.stop_reason) == (run.epoch, run.stop_reason)
    assert resumed.hyper["learning_rate"] == run.hyper["learning_rate"]
    assert (tmp_path / "log.csv").read_text() == (tmp_path / "whole.csv").read_text()


def test_a_second_runner_may_use_the_same_objects(tmp_path):
    callbacks = make(tmp_path / "log.csv")[:3]
    for _ in range(2):
        assert ours(callbacks, LOSSES[:4]).hyper["learning_rate"] == 0.0625
    assert (tmp_path / "log.csv").read_text().count("epoch") == 1
