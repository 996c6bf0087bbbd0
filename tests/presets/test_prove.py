from __future__ import annotations

import importlib
import os
import sys

import pytest

import hookpoint
from hookpoint.core.errors import BadLoop, HookpointError

# Training loops in a module: new processes import them by name.
# Importing torch takes seconds and most of these loops do not need it, so their processes cannot find it.
MODULE = """
import os
import random

if os.environ.get("HIDE_TORCH_BELOW", str(os.getpid())) != str(os.getpid()):
    from importlib.machinery import PathFinder as Finder

    find = Finder.find_spec
    Finder.find_spec = lambda name, *where: None if name == "torch" else find(name, *where)

from hookpoint import Every, Loop
from hookpoint import callbacks as cb


class Weights:
    value = 1.0

    def state_dict(self):
        return {"value": self.value}

    def load_state_dict(self, state):
        self.value = state["value"]


def train(workdir, *, keeps=True, saves=True):
    model = Weights()
    callbacks = [cb.ModelSaver(async_save=False).when(Every(steps=2))] if saves else []
    with Loop(callbacks, model=model if keeps else None, workdir=workdir, log_every=3) as run:
        for epoch in run.epochs(3):
            for batch in run.batches(random.sample(range(4), 4)):
                model.value = model.value * 0.9 + batch * random.random()
                run.log(loss=model.value)


def encrypts(workdir):
    model = Weights()
    saver = cb.ModelSaver(async_save=False).when(Every(steps=2))
    with Loop([saver], model=model, workdir=workdir, checkpoint_key=os.environ["KEY_OF_THE_RUN"]) as run:
        for batch in run.batches(range(6)):
            model.value = model.value * 0.9 + batch * random.random()


def forgets(workdir):
    train(workdir, keeps=False)


def saves_nothing(workdir):
    train(workdir, saves=False)


def fails(workdir):
    raise ValueError("no data")


class Fitted:
    def __init__(self, workdir):
        self.workdir = workdir

    def fit(self, *, keeps):
        train(self.workdir, keeps=keeps)


def made(workdir):
    return Fitted(workdir), {"keeps": True}


def with_torch(workdir):
    import torch

    from hookpoint import Runner

    model = torch.nn.Sequential(torch.nn.Linear(2, 4), torch.nn.Dropout(0.5), torch.nn.Linear(4, 1))
    saver = cb.ModelSaver().when(Every(steps=2))
    optimizer = torch.optim.Adam(model.parameters())
    runner = Runner(model, optimizer, torch.nn.MSELoss(), callbacks=[saver], workdir=workdir)
    return runner, {"train": (torch.randn(20, 2), torch.randn(20, 1)), "epochs": 2, "batch_size": 4}
"""


@pytest.fixture
def trainings(tmp_path, monkeypatch):
    (tmp_path / "trainings_to_prove.py").write_text(MODULE)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("HIDE_TORCH_BELOW", str(os.getpid()))
    yield importlib.import_module("trainings_to_prove")
    sys.modules.pop("trainings_to_prove")


def test_a_run_that_saves_all_its_state_is_exact(trainings, tmp_path):
    proof = hookpoint.prove(trainings.train, kill_at=[7, 3], workdir=tmp_path / "proof")
    assert proof.ok, str(proof)
    assert (proof.steps, proof.killed_at) == (12, (3, 7))
    assert proof.values_compared > 600
    assert proof.records_compared > 5
    assert str(proof).startswith("exact: 12 steps, killed after step 3, 7 and resumed; ")
    assert sorted(path.name for path in (tmp_path / "proof").iterdir()) == ["resumed", "whole"]
    assert (tmp_path / "proof" / "resumed" / "events.jsonl").read_text().count('"resume"') == 2


def test_a_run_that_does_not_save_its_model_is_not_exact(trainings):
    proof = hookpoint.prove(trainings.forgets, kill_at=[5])
    assert not proof.ok
    assert str(proof).startswith("NOT exact: 12 steps, killed after step 5 and resumed; differences among ")
    assert any(difference.where.startswith("scalars.jsonl") for difference in proof.differences)


def test_a_returned_runner_is_fitted_with_the_returned_arguments(trainings):
    proof = hookpoint.prove(trainings.made, kill_at=[3])
    assert proof.ok, str(proof)
    assert proof.steps == 12


def test_commands_are_sent_once_and_replayed_on_resume(trainings, tmp_path):
    commands = {5: ("log-every", {"steps": 2})}
    proof = hookpoint.prove(trainings.train, kill_at=[6], commands=commands, workdir=tmp_path / "proof")
    assert proof.ok, str(proof)
    events = [(tmp_path / "proof" / name / "events.jsonl").read_text().count('"control"') for name in ("whole", "resumed")]
    assert events == [1, 2]  # sent; sent and replayed


@pytest.mark.parametrize("commands", [{5: ("pause", {})}, {"5": ("set", {})}, {5: "set"}])
def test_commands_that_a_resume_cannot_replay_raise(trainings, commands):
    with pytest.raises(BadLoop, match="prove: commands has the invalid entry"):
        hookpoint.prove(trainings.train, commands=commands)


@pytest.mark.slow
def test_a_torch_runner_is_exact(trainings, monkeypatch):
    monkeypatch.delenv("HIDE_TORCH_BELOW")
    commands = {5: ("set", {"values": {"learning_rate": 0.1}}), 7: ("log-every", {"steps": 2})}
    proof = hookpoint.prove(trainings.with_torch, kill_at=[6], commands=commands)
    assert proof.ok, str(proof)
    assert proof.steps == 10


@pytest.mark.parametrize(
    ("what", "given", "error", "message"),
    [
        ("train", {"kill_at": [13]}, BadLoop, "prove: kill_at must be steps from 1 to 12, got [13]."),
        (
            "saves_nothing",
            {},
            BadLoop,
            "prove: make_runner must save checkpoints.\n  add       a saver, such as callbacks.ModelSaver()",
        ),
        (
            "fails",
            {},
            HookpointError,
            "training failed; see above (exit code 1).\n  check     make_runner, or kill_at",
        ),
    ],
    ids=["kill after the end", "no saver", "a training that fails"],
)
def test_failures_are_reported(trainings, what, given, error, message):
    with pytest.raises(error) as caught:
        hookpoint.prove(getattr(trainings, what), **given)
    assert str(caught.value) == message


@pytest.mark.parametrize("way", ["key", "environment"])
def test_an_encrypted_run_is_compared_with_its_key(trainings, tmp_path, monkeypatch, way):
    pytest.importorskip("cryptography", reason="needs the extra crypto")
    monkeypatch.setattr("hookpoint.storage.checkpoint.encryption._known", {})
    (tmp_path / "run.key").write_text("ab" * 32)
    monkeypatch.setenv("KEY_OF_THE_RUN", str(tmp_path / "run.key"))
    if way == "environment":
        monkeypatch.setenv("HOOKPOINT_CHECKPOINT_KEY_FILE", str(tmp_path / "run.key"))
    given = {"key": tmp_path / "run.key"} if way == "key" else {}
    proof = hookpoint.prove(trainings.encrypts, kill_at=[3], workdir=tmp_path / "proof", **given)
    assert proof.ok, proof
    (newest,) = (tmp_path / "proof" / "resumed" / "checkpoints").glob("step-00000006")
    assert (newest / "state.json").read_bytes()[:8] == b"hookpt01"


def test_an_encrypted_run_without_its_key_fails_before_the_first_step(trainings, tmp_path, monkeypatch, capfd):
    pytest.importorskip("cryptography", reason="needs the extra crypto")
    monkeypatch.setattr("hookpoint.storage.checkpoint.encryption._known", {})
    for name in ("run.key", "other.key"):
        (tmp_path / name).write_bytes(os.urandom(32))
    monkeypatch.setenv("KEY_OF_THE_RUN", str(tmp_path / "run.key"))
    with pytest.raises(HookpointError, match="training failed; see above"):
        hookpoint.prove(trainings.encrypts, workdir=tmp_path / "proof", key=tmp_path / "other.key")
    printed = capfd.readouterr().err
    assert "prove: the run encrypts its checkpoints with a key that was not given" in printed
    assert "--key to the command" in printed
    assert not list((tmp_path / "proof").rglob("step-*"))
    with pytest.raises(BadLoop, match=r"key: .*none.key cannot be read"):
        hookpoint.prove(trainings.encrypts, workdir=tmp_path / "other", key=tmp_path / "none.key")
    assert not (tmp_path / "other").exists()


def test_a_workdir_with_an_earlier_proof_raises(trainings, tmp_path):
    (tmp_path / "whole").mkdir()
    with pytest.raises(BadLoop, match="whole already exists"):
        hookpoint.prove(trainings.train, workdir=tmp_path)
