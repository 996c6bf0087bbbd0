"""The scripts that every host runs, and the record of our Runner for each."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.adapters.record import LEARNING_RATE, TRAIN, VAL, Net, Record

from hookpoint import Every, Runner
from hookpoint import callbacks as cb


@dataclass(frozen=True)
class Fit:
    """One training run. `save_at` and `resume_at` are places: "epoch" (the end of epoch 1), "batch" (after the first batch of
    epoch 2) or "validation" (after the validation of epoch 1); the checkpoint is in `folder`. With `is_killed`, the run
    continues after the save until a callback kills its process; the resumed run uses the host's last save."""

    epochs: int = 2
    accumulate: int = 1
    validate_every: int | None = None  # steps
    fail_at: int | None = None
    save_at: str | None = None
    resume_at: str | None = None
    is_killed: bool = False
    second_fit: bool = False
    predict: bool = False
    folder: Path = Path("unused")
    workdir: Path | None = None

    @property
    def state_folder(self) -> Path | None:
        """The workdir, for a host whose own checkpoints cannot hold hookpoint's state."""
        return self.folder if self.workdir is None and (self.save_at or self.resume_at) else self.workdir


@dataclass(frozen=True)
class Script:
    """A training run, and what the record does at a point."""

    name: str
    fit: Fit = field(default_factory=Fit)
    act: Callable[[str, Any], None] | None = None
    raises: type[Exception] | None = None


def stop_in_batch(point, run):
    if point == "on_train_iter_end" and run.iteration == 2:
        run.stop("enough")


def stop_at_epoch_end(point, run):
    if point == "on_epoch_end" and run.epoch == 1:
        run.stop("enough")


def fail_in_batch(point, run):
    if point == "on_train_iter_begin" and run.iteration == 1:
        raise ValueError("a callback fails")


SCRIPTS = [
    Script("plain"),
    Script("accumulation", Fit(accumulate=2)),
    Script("stop in a batch", act=stop_in_batch),
    Script("stop at the end of an epoch", Fit(epochs=3), act=stop_at_epoch_end),
    Script("a callback raises", act=fail_in_batch, raises=ValueError),
    Script("the host raises", Fit(fail_at=1), raises=ValueError),
    Script("validation in the middle of an epoch", Fit(epochs=1, validate_every=2)),
    Script("resume between epochs", Fit(epochs=3, resume_at="epoch")),
    Script("resume in an epoch", Fit(epochs=3, resume_at="batch")),
    Script("resume after the validation", Fit(epochs=3, resume_at="validation")),
    Script("a second fit", Fit(epochs=1, second_fit=True)),
    Script("predict", Fit(predict=True)),
]


def recorded(host, script: Script, folder: Path, without) -> list[tuple]:
    """Run a script under a host; return the rows of the record. The script's exception must propagate unchanged."""
    fit = replace(script.fit, folder=folder)
    if fit.resume_at is not None:
        host.fit([Record(without)], replace(fit, epochs=2, save_at=fit.resume_at, resume_at=None))
    record = Record(without, script.act)
    if script.raises is None:
        host.fit([record], fit)
    else:
        with pytest.raises(script.raises, match="fails") as caught:
            host.fit([record], fit)
        assert caught.type is script.raises
    return record.rows


class OurRunner:
    """The reference: hookpoint's Runner."""

    name = "Runner"

    def fit(self, callbacks, fit):
        workdir = fit.folder if fit.resume_at or fit.save_at or (fit.second_fit and fit.workdir) else None
        if fit.save_at:
            callbacks = [*callbacks, cb.ModelSaver(), stop_at(fit.save_at)]
        elif workdir is not None:
            callbacks = [*callbacks, cb.ModelSaver().when(Every(epochs=100))]
        model = Net(fit.fail_at)
        runner = Runner(
            model,
            torch.optim.SGD(model.parameters(), lr=LEARNING_RATE),
            torch.nn.functional.mse_loss,
            callbacks=callbacks,
            extra_callbacks=[],
            monitors=[],
            device="cpu",
            accumulate=fit.accumulate,
            workdir=workdir,
        )
        if fit.predict:
            runner.predict(VAL)
            return model
        every = None if fit.validate_every is None else Every(steps=fit.validate_every)
        runner.fit(TRAIN, VAL, epochs=fit.epochs, validate_every=every)
        if fit.second_fit:
            runner.fit(TRAIN, VAL, epochs=fit.epochs + (workdir is not None), validate_every=every)
        return model


def stop_at(place):
    """Return a callback that stops a run at a place, so that it is saved there."""

    def stop(run):
        if place == "batch" and run.iteration == 4:
            run.stop("interrupted")

    def stop_at_end(run):
        if place == "epoch" and run.epoch == 1:
            run.stop("interrupted")

    return cb.LambdaCallback(on_train_iter_end=stop, on_epoch_end=stop_at_end)


def reference(script: Script, folder: Path, without, *, continues: bool) -> list[tuple]:
    """Return the rows of our Runner, without the points that the host lacks.

    Our Runner cannot resume after the validation of an epoch, so the rest of an uninterrupted run is expected there. A host
    that `continues` with the next epoch in a second fit is compared with a Runner that has a workdir and does the same.
    """
    if script.fit.resume_at == "validation":
        whole = recorded(OurRunner(), replace(script, fit=Fit(epochs=script.fit.epochs)), folder, without)
        place = next(number for number, row in enumerate(whole) if row[0] == "on_epoch_end")
        clocks = whole[place][1:7]
        return [(point, *clocks) for point in ("on_run_begin", "on_load", "on_epoch_begin")] + whole[place:]
    if script.fit.second_fit and continues:
        script = replace(script, fit=replace(script.fit, workdir=folder))
    rows = recorded(OurRunner(), script, folder, {*without, "on_save"})
    return rows
