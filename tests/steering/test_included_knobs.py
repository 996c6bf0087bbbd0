"""Knobs of the included callbacks accept the same values as the constructors, and a resume is exact."""

from __future__ import annotations

import json

import pytest

from hookpoint import callbacks as cb
from hookpoint.core.errors import BadArgument

MAKE = {
    "EarlyStopping.patience": lambda value: cb.EarlyStopping("val_loss", patience=value),
    "ReduceLROnPlateau.patience": lambda value: cb.ReduceLROnPlateau("val_loss", patience=value),
    "ReduceLROnPlateau.factor": lambda value: cb.ReduceLROnPlateau("val_loss", factor=value),
    "ReduceLROnPlateau.min_lr": lambda value: cb.ReduceLROnPlateau("val_loss", min_lr=value),
    "ModelSaver.max_to_keep": lambda value: cb.ModelSaver(max_to_keep=value),
    "TopKSaver.k": lambda value: cb.TopKSaver("val_loss", k=value),
    "MaxSteps.n": lambda value: cb.MaxSteps(value),
    "SwapEMAWeights.decay": lambda value: cb.SwapEMAWeights(value),
    "SwapEMAWeights.every": lambda value: cb.SwapEMAWeights(every=value),
    "GradientStats.every": lambda value: cb.GradientStats(every=value),
    "ActivationStats.every": lambda value: cb.ActivationStats("", every=value),
}
GOOD = dict.fromkeys(MAKE, 99) | dict.fromkeys(("ReduceLROnPlateau.factor", "SwapEMAWeights.decay"), 0.5)
TRIED = (-1, 0, 0.0, 0.5, 0.9999999, 1.0, 1, 2.5, True, "1")


def is_accepted(make, value):
    try:
        make(value)
    except BadArgument:
        return False
    return True


@pytest.mark.parametrize("name", MAKE)
def test_a_command_accepts_the_same_values_as_the_constructor(fit, name):
    callback, attribute = MAKE[name](GOOD[name]), name.partition(".")[2]
    good = {"values": {name: GOOD[name]}}
    commands = [command for value in TRIED for command in (("set", {"values": {name: value}}), ("set", good))]
    trained = fit({5: commands}, callbacks=[callback], epochs=2)
    accepted = [answer.status == "applied" for answer in trained.answers()[::2]]
    assert accepted == [is_accepted(MAKE[name], value) for value in TRIED]
    assert getattr(callback, attribute) == GOOD[name]
    assert trained.run.step == 8


def test_the_reason_names_the_allowed_values(fit):
    commands = [("set", {"values": {name: 1.0}}) for name in ("ReduceLROnPlateau.factor", "SwapEMAWeights.decay")]
    answers = fit({5: commands}, callbacks=[cb.ReduceLROnPlateau("val_loss"), cb.SwapEMAWeights()]).answers()
    assert [answer.reason for answer in answers] == [
        "ReduceLROnPlateau: factor must be between 0 and 1, got 1.0.",
        "SwapEMAWeights: decay must be below 1, got 1.0.",
    ]


@pytest.mark.parametrize(
    ("name", "value", "make"),
    [
        ("TopKSaver.k", 1, lambda: cb.TopKSaver("val_loss", k=2)),
        ("GradientStats.every", 3, lambda: cb.GradientStats()),
        ("ActivationStats.every", 3, lambda: cb.ActivationStats("", every=2)),
    ],
)
@pytest.mark.parametrize("at", [3, 5], ids=["before the checkpoint", "after the checkpoint"])
def test_a_resume_restores_or_replays_a_changed_knob(fit, cuts, cut_off, name, value, make, at):
    def left(trained):
        rows = map(json.loads, (trained.workdir / "scalars.jsonl").read_text().splitlines())
        values = [{key: one for key, one in row.items() if "/" in key or key == "step"} for row in rows]
        return values, sorted(path.name for path in (trained.workdir / "checkpoints").iterdir())

    commands = {at: [("set", {"values": {name: value}})]}
    expected = fit(commands, name="whole", save_every=4, callbacks=[make()])
    with pytest.raises(cut_off):
        fit(commands, save_every=4, callbacks=[make(), cuts(7)])
    callback = make()
    resumed = fit(save_every=4, callbacks=[callback])
    assert left(resumed) == left(expected)
    assert getattr(callback, name.partition(".")[2]) == value
