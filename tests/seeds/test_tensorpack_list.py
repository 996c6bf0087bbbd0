"""The callback list with which tensorpack's guide trains a ResNet, line by line, on images of digits.

The numbers are smaller: six epochs, and a schedule to match. Each line must do what its comment in the guide says.
"""

from __future__ import annotations

import fcntl
import json
import os
import pty
import re
import select
import subprocess
import sys
import termios
from pathlib import Path
from time import monotonic

import pytest
import torch
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from torch import nn

from hookpoint import Callback, Runner, load_weights
from hookpoint import callbacks as cb

EPOCHS = 6
STEPS = 14  # per epoch
ERRORS = ("val-error-top1", "val-error-top5")


class Digits:
    """Images of 8 by 8 pixels, split into train and val."""

    def __init__(self):
        from sklearn.datasets import load_digits

        pictures, labels = load_digits(return_X_y=True)
        inputs, targets = torch.tensor(pictures, dtype=torch.float32) / 16, torch.tensor(labels)
        self.train, self.val = (inputs[:1400], targets[:1400]), (inputs[1400:], targets[1400:])


class Watch(Callback):
    """Record the learning rates of each epoch, and the errors and the best value at its end; raise at a chosen epoch.

    It also plays the user: during the third epoch it writes a line to hyper.txt. An epoch that is trained again finds
    the file as it was when the epoch began.
    """

    def __init__(self, saver, at="", epochs=()):
        super().__init__()
        self.rates, self.errors, self.bests, self.updates = {}, {}, {}, 0
        self.saver, self.at, self.epochs = saver, at, epochs

    def on_run_begin(self, run):
        run.summary("first-bias", lambda: run.model[0].bias[0].detach())
        run.update_op(self._update)

    def on_epoch_begin(self, run):
        self._edit(run, "" if run.epoch <= 3 else "learning_rate: 0.005\n")

    def on_train_iter_begin(self, run):
        self.rates.setdefault(run.epoch, []).append(run.optimizer.param_groups[0]["lr"])
        if (run.epoch, run.batch_idx) == (3, 5):
            self._edit(run, "learning_rate: 0.005\n")

    def on_epoch_end(self, run):
        self._raise_if("before the checkpoint", run)

    def on_save(self, run):
        self.errors[run.epoch] = {name: run.metrics[name] for name in ERRORS}
        self.bests[run.epoch] = (self.saver.best.value, self.saver.best.step)
        self._raise_if("after the checkpoint", run)

    def _edit(self, run, lines):
        (run.workdir / "hyper.txt").write_text(lines)

    def _update(self):
        self.updates += 1

    def _raise_if(self, at, run):
        if at == self.at and run.epoch in self.epochs:
            self.epochs = ()
            raise PowerCut(f"in epoch {run.epoch}")


class PowerCut(Exception):
    """Raised to end the run without warning."""


def make(workdir, digits, *, shell="ipython", **given):
    """Make the network and a runner with the list; return the runner and its Watch."""
    torch.manual_seed(0)
    network = nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))
    optimizer = torch.optim.SGD(network.parameters(), lr=0.1, momentum=0.9)
    saver = cb.MinSaver("val-error-top1", async_save=False)  # so that on_save fires in the same epoch
    seen = Watch(saver, **given)
    runner = Runner(
        network,
        optimizer,
        nn.CrossEntropyLoss(),
        callbacks=[  # noqa: RUF005 - two lists, as in the guide
            seen,
            cb.ModelSaver(async_save=False),
            saver,
            cb.InferenceRunner(
                digits.val,
                [
                    cb.ClassificationError("wrong-top1", "val-error-top1"),
                    cb.ClassificationError("wrong-top5", "val-error-top5"),
                ],
                batch_size=100,
            ),
            cb.ScheduledHyperParamSetter("learning_rate", [(1, 5e-2), (2, 1e-2), (4, 1e-3), (5, 1e-4)]),
            cb.HumanHyperParamSetter("learning_rate"),
            cb.SendStat(
                """curl -u your_id_xxx: https://api.pushbullet.com/v2/pushes \\
                    -d type=note -d title="validation error" \\
                    -d body={val-error-top1} > /dev/null 2>&1""",
                "val-error-top1",
            ),
            cb.GPUUtilizationTracker(),
            cb.InjectShell(shell=shell),
        ]
        + [
            cb.MovingAverageSummary(),
            cb.ProgressBar(),
            cb.MergeAllSummaries(),
            cb.RunUpdateOps(),
        ],
        monitors=[
            cb.TFEventWriter(),
            cb.JSONWriter(),
            cb.ScalarPrinter(),
        ],
        workdir=workdir,
        device="cpu",
        log_every=5,
    )
    return runner, seen


def fit(workdir, digits, **given):
    """Train with the list, or resume the run in the workdir."""
    runner, seen = make(workdir, digits, **given)
    return runner.fit(digits.train, epochs=EPOCHS, batch_size=100), seen


def records(workdir, name):
    """Return (step, value) for each line of scalars.jsonl with a value of an epoch, not of a log step."""
    lines = [json.loads(line) for line in (workdir / "scalars.jsonl").read_text().splitlines()]
    return [(line["step"], line[name]) for line in lines if name in line and line["at"] != "step"]


def in_tensorboard(workdir):
    events = EventAccumulator(str(workdir / "tensorboard"), size_guidance={"scalars": 0}).Reload()
    return {tag: [(event.step, event.value) for event in events.Scalars(tag)] for tag in events.Tags()["scalars"]}


def measured(folder, digits):
    """Return both errors of the weights in a checkpoint, computed without the callbacks."""
    network = nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))
    network.load_state_dict(load_weights(folder))
    inputs, targets = digits.val
    ranks = network(inputs).argsort(dim=1, descending=True)
    return {f"val-error-top{k}": 1 - (ranks[:, :k] == targets[:, None]).any(dim=1).double().mean().item() for k in (1, 5)}


@pytest.fixture(scope="module")
def digits():
    return Digits()


@pytest.fixture(scope="module")
def phone(tmp_path_factory):
    """A `curl` that records its arguments, one call per line."""
    folder = tmp_path_factory.mktemp("bin")
    with pytest.MonkeyPatch.context() as patch:
        (folder / "curl").write_text(
            f"#!{sys.executable}\nimport sys\nprint(sys.argv[1:], file=open({str(folder / 'sent')!r}, 'a'))"
        )
        (folder / "curl").chmod(0o755)
        patch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")
        yield folder / "sent"


@pytest.fixture(scope="module")
def whole(tmp_path_factory, digits, phone):
    """An uninterrupted run with the list: its folder, the run, its Watch, and its output."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    workdir = tmp_path_factory.mktemp("whole")
    printed = workdir.parent / "printed"
    with pytest.MonkeyPatch.context() as patch, open(printed, "w") as stream:
        patch.setattr(sys, "stderr", stream)
        run, seen = fit(workdir, digits)
    yield workdir, run, seen, printed.read_text()
    torch.set_num_threads(threads)


# What the comments in the guide say


def test_the_model_is_saved_every_epoch(whole):
    workdir, *_ = whole
    folders = sorted(path.name for path in (workdir / "checkpoints").glob("step-*"))
    assert folders == [f"step-{STEPS * epoch:08d}" for epoch in range(1, EPOCHS + 1)]


def test_the_validation_error_matches_the_saved_weights(whole, digits):
    workdir, _, seen, _ = whole
    for epoch in range(1, EPOCHS + 1):
        true = measured(workdir / "checkpoints" / f"step-{STEPS * epoch:08d}", digits)
        assert seen.errors[epoch] == pytest.approx(true, abs=1e-12)
    assert seen.errors[EPOCHS]["val-error-top1"] < 0.2, "it learns"
    assert all(errors["val-error-top5"] < errors["val-error-top1"] for errors in seen.errors.values())


def test_the_model_with_the_best_validation_error_is_kept(whole, digits):
    workdir, _, seen, _ = whole
    best = min(seen.errors, key=lambda epoch: seen.errors[epoch]["val-error-top1"])
    assert seen.bests[EPOCHS] == (seen.errors[best]["val-error-top1"], STEPS * best)
    kept, source = (workdir / "checkpoints" / name for name in ("best-val-error-top1", f"step-{STEPS * best:08d}"))
    assert (kept / "model.safetensors").read_bytes() == (source / "model.safetensors").read_bytes()
    assert measured(kept, digits) == measured(source, digits)


@pytest.mark.parametrize("name", ERRORS)
def test_the_validation_error_is_logged_to_all_monitors(name, whole):
    workdir, run, seen, printed = whole
    expected = [(STEPS * epoch, errors[name]) for epoch, errors in seen.errors.items()]
    assert len(expected) == EPOCHS
    assert run.monitors.get_history(name) == expected
    assert records(workdir, name) == expected
    assert in_tensorboard(workdir)[name] == [(step, pytest.approx(error, rel=1e-6)) for step, error in expected]
    lines = [line for line in printed.splitlines() if line.startswith("epoch ")]
    for (epoch, errors), line in zip(seen.errors.items(), lines, strict=True):
        assert line.startswith(f"epoch {epoch}/{EPOCHS}  ")
        assert f"  {name}: {errors[name]:.5g}" in line


def test_the_rate_is_scheduled_by_epoch_and_changed_through_the_file(whole):
    workdir, _, seen, _ = whole
    assert {epoch: set(rates) for epoch, rates in seen.rates.items()} == {
        1: {0.1},
        2: {0.05},  # by schedule, after epoch 1
        3: {0.01},  # the line is written in this epoch
        4: {0.005},  # from the line
        5: {0.005},  # the line overrides the schedule
        6: {0.005},
    }
    assert [len(rates) for rates in seen.rates.values()] == [STEPS] * EPOCHS
    assert records(workdir, "learning_rate") == [(STEPS * epoch, rates[0]) for epoch, rates in seen.rates.items()]


def test_the_validation_error_is_sent_to_the_phone(whole, phone):
    _, _, seen, _ = whole
    about = ["-u", "your_id_xxx:", "https://api.pushbullet.com/v2/pushes", "-d", "type=note", "-d", "title=validation error"]
    expected = [[*about, "-d", f"body={errors['val-error-top1']}"] for errors in seen.errors.values()]
    assert phone.read_text().splitlines()[:EPOCHS] == [str(arguments) for arguments in expected]


def test_moving_averages_and_summaries_are_logged_and_updates_run(whole):
    workdir, _, seen, _ = whole
    curves = in_tensorboard(workdir)
    assert [step for step, _ in curves["loss/ema"]] == [step for step, _ in curves["loss"]]
    assert len(curves["loss/ema"]) == STEPS * EPOCHS // 5
    biases = [
        load_weights(workdir / "checkpoints" / f"step-{STEPS * epoch:08d}")["0.bias"][0] for epoch in range(1, EPOCHS + 1)
    ]
    assert records(workdir, "first-bias") == [(STEPS * epoch, bias.item()) for epoch, bias in enumerate(biases, 1)]
    assert seen.updates == STEPS * EPOCHS


# Interrupted and resumed


@pytest.mark.parametrize("at", ["before the checkpoint", "after the checkpoint"])
def test_a_run_interrupted_in_each_epoch_gives_the_same_results(at, whole, digits, tmp_path):
    workdir, _, seen, _ = whole
    rates, errors, bests = {}, {}, {}
    for epoch in range(1, EPOCHS + 1):
        runner, part = make(tmp_path, digits, at=at, epochs=[epoch])
        with pytest.raises(PowerCut, match=f"in epoch {epoch}"):
            runner.fit(digits.train, epochs=EPOCHS, batch_size=100)
        assert list(part.rates) == [epoch] if at.startswith("after") else list(part.rates)[-1:] == [epoch]
        for known, found in ((rates, part.rates), (errors, part.errors), (bests, part.bests)):
            known.update(found)
    run, last = fit(tmp_path, digits)
    assert run.epoch == EPOCHS
    assert {**rates, **last.rates} == seen.rates
    assert {**errors, **last.errors} == seen.errors
    assert {**bests, **last.bests} == seen.bests
    for name in (*ERRORS, "learning_rate", "loss", "first-bias"):
        assert records(tmp_path, name) == records(workdir, name)
        assert in_tensorboard(tmp_path)[name] == in_tensorboard(workdir)[name]
    for folder in (workdir / "checkpoints").iterdir():
        theirs = tmp_path / "checkpoints" / folder.name
        assert (theirs / "model.safetensors").read_bytes() == (folder / "model.safetensors").read_bytes()


# The shell


@pytest.mark.slow
def test_touching_a_file_opens_a_shell_during_training(whole, tmp_path):
    """A shell in a real terminal, next to the progress bar; it does not change the run."""
    workdir, _, seen, _ = whole
    (tmp_path / "INJECT_SHELL.tmp").touch()
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-W", "error", __file__, str(tmp_path)],
        **dict.fromkeys(("stdin", "stdout", "stderr"), theirs),
        start_new_session=True,
        preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
        env={**os.environ, "TERM": "xterm-256color", "PYTHON_BASIC_REPL": "1"},
    )
    os.close(theirs)
    try:
        read_until(ours, r">>> $")
        assert not (tmp_path / "INJECT_SHELL.tmp").exists()
        os.write(ours, b"run.epoch, run.step, run.metrics['val-error-top1']\n")
        said = read_until(ours, r"\(1, 14, ([\d.]+)\)\s+>>> $")
        assert float(said[1]) == seen.errors[1]["val-error-top1"]
        os.write(ours, b"exit()\n")
        read_until(ours, r"trained 6 epochs")
        assert process.wait(60) == 0
    finally:
        process.kill()
        process.wait()
        os.close(ours)
    assert records(tmp_path, "val-error-top1") == records(workdir, "val-error-top1")


def read_until(terminal, pattern):
    """Read from a terminal until its output matches the pattern."""
    written, deadline = "", monotonic() + 60
    while not (found := re.search(pattern, written)):
        assert monotonic() < deadline, f"{pattern} did not come: {written!r}"
        if select.select([terminal], [], [], 1)[0]:
            written += os.read(terminal, 65536).decode(errors="replace")
    return found


if __name__ == "__main__":
    torch.set_num_threads(1)
    trained, _ = fit(Path(sys.argv[1]), Digits(), shell="python")
    print(f"trained {trained.epoch} epochs")
