"""Callbacks measure and decide the same under another trainer as in our Runner."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from click.testing import CliRunner
from tests.adapters.installed import installed_hosts
from tests.adapters.scripts import Fit, OurRunner

from hookpoint import Callback
from hookpoint import callbacks as cb
from hookpoint.cli.main import main

HOSTS = installed_hosts()
MEASURED = ("loss", "val_loss", "gradient/norm", "gradient/max", "gradient/update_ratio")


@pytest.fixture(params=HOSTS)
def host(request):
    return HOSTS[request.param]


class Seen(Callback):
    """Record the metrics at each on_epoch_end, the loss of each batch, and the history of each metric."""

    def on_run_begin(self):
        self.epochs, self.losses, self.history = [], [], {}

    def on_train_iter_end(self, run):
        self.losses.append(float(run.loss))

    def on_epoch_end(self, run):
        self.epochs.append({name: run.metrics[name] for name in MEASURED if name in run.metrics})

    def on_run_end(self, run):
        self.history = {name: run.monitors.get_history(name) for name in ("loss", "val_loss")}


def seen_under(host, tmp_path, **fit):
    seen, ema = Seen(), cb.SwapEMAWeights(0.5)
    model = host.fit([cb.GradientStats(every=1, updates=True), ema, seen], Fit(folder=tmp_path, **fit))
    weights = [tensor.detach().tolist() for tensor in model.parameters()]
    return seen, [tensor.tolist() for tensor in ema.weights().values()], weights


def test_values_and_weights_equal_those_of_a_runner(host, tmp_path):
    ours, our_averages, our_weights = seen_under(OurRunner(), tmp_path / "ours", epochs=3)
    theirs, averages, weights = seen_under(host, tmp_path / "theirs", epochs=3)
    assert set(ours.epochs[0]) == set(MEASURED)
    if getattr(host, "IS_BITWISE", True):
        assert theirs.epochs == ours.epochs
        assert theirs.losses == ours.losses
        assert (averages, weights) == (our_averages, our_weights)
    else:
        for got, expected in zip(theirs.epochs, ours.epochs, strict=True):
            assert got == pytest.approx(expected, abs=1e-6)
        assert theirs.losses == pytest.approx(ours.losses, abs=1e-6)
    assert [len(values) for values in theirs.history.values()] == [3, 3]  # observed once per pass


class Measured(Callback):
    """Collect the values that callbacks with model hooks and operation counters send to the monitors at log steps."""

    def __init__(self):
        super().__init__()
        self.values = {}

    def on_records(self, records):
        for record in records:
            for name, value in (record.scalars() if record.kind == "scalars" else {}).items():
                kind, _, stat = name.partition("/")
                stat = stat.rpartition("/")[2]  # without the module, whose name differs between hosts
                if kind in ("activation", "model_flops") and stat != "ema":  # of a default callback of the adapters
                    self.values.setdefault((kind, stat, record.at), []).append(round(value, 5))


def measured_under(host, tmp_path):
    module = getattr(host, "MODULE", "")
    tap, measured = cb.FeatureTap(module, modes=["val"]), Measured()
    callbacks = [cb.ActivationStats(module, every=1), cb.FlopsTracker(peak_flops=1e12), cb.StepTimeout(60), tap, measured]
    host.fit(callbacks, Fit(epochs=17, folder=tmp_path))  # the first log step is step 50
    return measured.values, [[round(row, 5) for row in rows.flatten().tolist()] for rows in tap.features.values()]


def test_callbacks_with_model_hooks_measure_the_same_as_in_a_runner(host, tmp_path):
    ours, rows = measured_under(OurRunner(), tmp_path / "ours")
    assert len(rows) == 1
    assert {kind for kind, _, at in ours if at == "step"} == {"activation", "model_flops"}
    assert measured_under(host, tmp_path / "theirs") == (ours, rows)


def stopped_at(host, fit):
    seen = Seen()
    host.fit([cb.EarlyStopping("val_loss", min_delta=10.0, patience=3), seen], fit)
    return len(seen.epochs)


def test_early_stopping_stops_at_the_same_epoch(host, tmp_path):
    fit = Fit(epochs=9, folder=tmp_path)
    assert stopped_at(host, fit) == stopped_at(OurRunner(), fit) == 4


class Clock(Callback):
    def on_run_end(self, run):
        self.at = (run.epoch, run.iteration, run.step, run.samples)


@pytest.mark.parametrize("place", ["epoch", "batch", "validation"])
def test_a_resumed_run_stops_with_the_same_clocks(host, tmp_path, place):
    script = {"epoch": "resume between epochs", "batch": "resume in an epoch", "validation": "resume after the validation"}
    if script[place] in host.CANNOT:
        pytest.skip(f"{host.NAME}: {host.CANNOT[script[place]]}")
    fit, clock = Fit(epochs=9, folder=tmp_path), Clock()
    stopping = cb.EarlyStopping("val_loss", min_delta=10.0, patience=3)
    host.fit([cb.EarlyStopping("val_loss", min_delta=10.0, patience=3), Clock()], replace(fit, epochs=2, save_at=place))
    host.fit([stopping, clock], replace(fit, resume_at=place))
    assert clock.at == (4, 12, 12, 40)


def test_commands_read_the_run_folder_of_a_host(host, tmp_path):
    workdir = tmp_path / "runs" / "mine"
    host.fit([cb.EarlyStopping("val_loss", min_delta=10.0, patience=1)], Fit(epochs=5, folder=tmp_path, workdir=workdir))
    for command in (["runs", str(workdir.parent)], ["show", str(workdir)], ["plot", str(workdir), "--terminal"]):
        result = CliRunner().invoke(main, command)
        assert result.exit_code == 0, result.output
        assert "val_loss" in result.output or command[0] == "runs"
    assert "stopped" in CliRunner().invoke(main, ["runs", str(workdir.parent)]).output
    facts = json.loads((workdir / "run.json").read_text())
    assert "HostLoader" not in json.dumps(facts)
    if getattr(host, "KNOWS_LOADER", True):
        assert {name: one["batches"] for name, one in facts["data"].items()} == {"train": 3, "val": 1}
    else:
        assert "data" not in facts
    assert not (workdir / "checkpoints").exists()
    assert not (workdir.parent / "previous").exists()
