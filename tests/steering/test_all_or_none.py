"""A command that fails halfway is undone; if it cannot be undone, the run ends with an error."""

from __future__ import annotations

import pytest
import torch

from hookpoint import Callback, Knob, control
from hookpoint.core.errors import NotApplied
from hookpoint.core.loop.services import machine_of


class Setting:
    """A registered setting that rejects 7, and cannot be set back from 8."""

    name = "drop"

    def __init__(self):
        self.value = 0.5

    def get_value(self):
        return self.value

    def set_value(self, value):
        if value == 7 or self.value == 8:
            raise RuntimeError(f"not from {self.value} to {value}")
        self.value = value
        if value == 8:
            raise RuntimeError("halfway")


class Registers(Callback):
    knobs = (Knob("alpha", float),)
    actions = ("fail",)

    def __init__(self):
        self.drop, self.alpha, self.turns = Setting(), 0.5, []

    def on_setup(self, run):
        run.hyper.register(self.drop)

    def on_knob(self, name, was, value):
        self.turns.append((was, value))

    def fail(self):
        raise ValueError("no action")


def test_a_setter_that_raises_restores_the_other_settings(fit):
    state = {}

    def note(run):
        rates = [group["lr"] for group in run.optimizer.param_groups]
        logbook = machine_of(run).logbook
        ratios = run.hyper.rates.state_dict()
        state.setdefault("seen", []).append((rates, ratios, logbook.log_every, logbook.next_log_step, registers.alpha))

    registers = Registers()
    values = {"lr": 0.3, "momentum": 0.25, "log_every": 5, "Registers.alpha": 0.75, "drop": 7}
    trained = fit({5: [note, ("set", {"values": values})], 6: [note]}, callbacks=[registers], log_every=9)
    (answer,) = trained.answers()
    assert (answer.status, answer.reason) == ("refused", "RuntimeError: not from 0.5 to 7")
    assert state["seen"][0] == state["seen"][1]
    assert registers.turns == [(0.5, 0.75), (0.75, 0.5)]
    assert {(rate, momentum) for _, rate, momentum in trained.steps} == {(0.1, 0.5)}
    assert control(trained.workdir).journal() == []


def test_rates_are_restored_exactly_in_all_groups(fit):
    class TwoGroups(Callback):
        def on_run_begin(self, run):
            run.optimizer.add_param_group({"params": [torch.nn.Parameter(torch.zeros(1))], "lr": 0.1 / 3})

    rates = []

    def note(run):
        rates.append([group["lr"] for group in run.optimizer.param_groups])

    values = {"lr": 0.7, "drop": 7}
    trained = fit({5: [note, ("set", {"values": values})], 6: [note]}, callbacks=[Registers(), TwoGroups()])
    assert trained.answers()[0].status == "refused"
    assert rates[0] == rates[1] == [0.1, 0.1 / 3]


def test_a_change_that_cannot_be_undone_ends_the_run(fit):
    with pytest.raises(NotApplied, match=r"the old values could not be restored: RuntimeError: not from 8 to 0\.5"):
        fit({5: [("set", {"values": {"lr": 0.3, "drop": 8}})]}, callbacks=[Registers()], save_every=4)
    resumed = fit(callbacks=[Registers()], save_every=4)
    (event,) = resumed.events()
    assert event["status"] == "refused"
    assert event["reason"].startswith("RuntimeError: halfway; the old values could not be restored: RuntimeError: not from 8")
    assert event["reason"].endswith("; the run ends")
    assert resumed.steps == [(iteration, 0.1, 0.5) for iteration in range(5, 13)]


def test_an_action_that_raises_is_refused(fit):
    trained = fit({5: [("call", {"action": "Registers.fail"})]}, callbacks=[Registers()])
    assert (trained.answers()[0].status, trained.answers()[0].reason) == ("refused", "ValueError: no action")
    assert trained.run.step == 12
    assert control(trained.workdir).journal() == []
