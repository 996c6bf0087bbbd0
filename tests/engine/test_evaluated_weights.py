from __future__ import annotations

import os
from contextlib import contextmanager

import pytest
import torch
from torch import nn

import hookpoint
from hookpoint import Every, Runner
from hookpoint import callbacks as cb
from hookpoint.core.errors import CannotResume
from hookpoint.storage.checkpoint_store import CheckpointStore
from hookpoint.storage.disk._fs_calls import intercepted

GENERATOR = torch.Generator().manual_seed(0)
DATA = [(torch.randn(4, 2, generator=GENERATOR), torch.randn(4, 1, generator=GENERATOR)) for _ in range(4)]
INPUTS = [inputs for inputs, _ in DATA]


class Weighted(nn.Module):
    """A criterion with trained parameters."""

    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(()))

    def forward(self, outputs, targets):
        return (outputs * self.scale - targets).square().mean()


def runner_of(workdir, *callbacks, seed=0, compiled=False, **options):
    torch.manual_seed(seed)
    model = nn.Sequential(nn.BatchNorm1d(2), nn.Linear(2, 1))
    model = torch.compile(model, backend="eager") if compiled else model
    criterion = Weighted()
    parameters = [*model.parameters(), *criterion.parameters()]
    optimizer = torch.optim.SGD(parameters, lr=0.1, momentum=0.9)
    return Runner(model, optimizer, criterion, callbacks=callbacks, workdir=workdir, **options)


def trained(workdir, epochs=2, **options):
    runner = runner_of(workdir, cb.ModelSaver().when(Every(steps=1)), cb.MinSaver("loss"), **options)
    runner.fit(DATA, epochs=epochs)
    return runner


def files(folder):
    return sorted((path.relative_to(folder), path.stat().st_mtime_ns) for path in folder.rglob("*"))


def results(runner):
    return runner.validate(DATA), [one.tolist() for one in runner.predict(INPUTS)]


@pytest.mark.parametrize("resume", ["auto", "must", "path", "workdir"])
def test_the_first_evaluation_loads_and_names_the_newest_weights(resume, tmp_path, capsys):
    workdir = tmp_path / "run"
    wanted = results(trained(workdir))
    newest = max((workdir / "checkpoints").glob("step-*"))
    before = files(workdir)
    capsys.readouterr()
    given = {"path": newest, "workdir": workdir}.get(resume, resume)
    runner = runner_of(workdir if resume in ("auto", "must") else None, seed=1, resume=given)
    assert runner.validate(DATA) == wanted[0]
    assert f"using the weights from {newest} (epoch 2, step 8)" in capsys.readouterr().err
    assert results(runner) == wanted
    assert "using the weights" not in capsys.readouterr().err
    other = runner_of(workdir if resume in ("auto", "must") else None, seed=1, resume=given)
    assert [one.tolist() for one in other.predict(INPUTS)] == wanted[1]
    assert files(workdir) == before


def test_the_best_weights_can_be_loaded_by_path(tmp_path, capsys):
    trained(tmp_path / "run")
    best = tmp_path / "run" / "checkpoints" / "best-loss"
    runner = runner_of(None, seed=1, resume=best)
    runner.validate(DATA)
    weights = hookpoint.load_weights(best)
    assert all(torch.equal(one, weights[name]) for name, one in runner.model.state_dict().items())
    assert f"using the weights from {best}" in capsys.readouterr().err


def test_resume_never_loads_and_moves_nothing(tmp_path, capsys):
    trained(tmp_path / "run")
    before = files(tmp_path)
    capsys.readouterr()
    kept, alone = runner_of(tmp_path / "run", seed=1, resume="never"), runner_of(None, seed=1)
    assert results(kept) == results(alone)
    assert files(tmp_path) == before
    assert "weights" not in capsys.readouterr().err


def test_without_a_checkpoint_auto_keeps_the_weights_and_must_raises(tmp_path):
    alone = results(runner_of(None))
    assert results(runner_of(tmp_path / "run")) == alone
    assert not (tmp_path / "run").exists()
    for workdir in (tmp_path / "run", None):
        runner = runner_of(workdir, resume="must")
        for job in (runner.validate, runner.predict, runner.validate):
            with pytest.raises(CannotResume, match="no weights to load"):
                job(DATA)
    with pytest.raises(CannotResume, match="there is no folder"):
        runner_of(None, resume=tmp_path / "nowhere").validate(DATA)


def test_weights_are_loaded_once_and_never_after_a_fit(tmp_path):
    trained(tmp_path / "run")
    evaluated = runner_of(tmp_path / "run", seed=1)
    evaluated.validate(DATA)
    finished = runner_of(tmp_path / "run", seed=1)
    finished.fit(DATA, epochs=2)
    for runner in (evaluated, finished):
        with torch.no_grad():
            runner.model[1].weight.zero_()
        runner.validate(DATA)
        runner.predict(INPUTS)
        assert not runner.model[1].weight.any()


def test_a_validation_during_a_fit_loads_nothing(tmp_path):
    trained(tmp_path / "run", epochs=1)
    runner, seen = runner_of(tmp_path / "run", resume="never"), []

    @runner.on("on_epoch_end")
    def look(run):
        before = runner.model[1].weight.tolist()
        runner.validate(DATA)
        seen.append(runner.model[1].weight.tolist() == before)

    runner.fit(DATA, epochs=2)
    assert seen == [True, True]


def test_weights_are_still_loaded_after_a_fit_that_failed_to_start(tmp_path):
    wanted = results(trained(tmp_path / "run"))
    runner = runner_of(tmp_path / "run", seed=1)
    store = CheckpointStore(tmp_path / "run")
    store.open("auto", {})
    with pytest.raises(hookpoint.HookpointError):
        runner.fit(DATA, epochs=2)
    store.close()
    assert results(runner) == wanted


def test_a_fit_after_an_evaluation_resumes(tmp_path):
    whole = trained(tmp_path / "whole", epochs=4)
    trained(tmp_path / "run")
    runner = runner_of(tmp_path / "run", cb.ModelSaver().when(Every(steps=1)), cb.MinSaver("loss"), seed=1)
    results(runner)
    runner.fit(DATA, epochs=4)
    assert results(runner) == results(whole)


def test_a_run_in_progress_is_evaluated_without_a_lock(tmp_path):
    wanted = results(trained(tmp_path / "run"))
    store = CheckpointStore(tmp_path / "run")
    store.open("auto", {})
    try:
        before = files(tmp_path)
        assert results(runner_of(tmp_path / "run", seed=1)) == wanted
        assert files(tmp_path) == before
    finally:
        store.close()


@contextmanager
def before_reading(file, act):
    """Call a function just before a file with this name is first read, as if another process acted at that moment."""
    done = []

    def by(operation, proceed):
        if not done and not operation.changes and os.fspath(operation.path).endswith(file):
            done.append(operation.path)
            act()
        return proceed()

    with intercepted(by):
        yield
    assert done


@pytest.mark.parametrize("file", ["manifest.json", "model.safetensors", "state.pt"])
def test_a_checkpoint_deleted_while_it_is_read_is_not_reported_as_damaged(file, tmp_path, capsys, caplog):
    trained(tmp_path / "run")
    newest, second = sorted((tmp_path / "run" / "checkpoints").glob("step-*"))[:-3:-1]
    with before_reading(f"{newest.name}/{file}", lambda: newest.rename(newest.with_name(".deleting-x"))):
        runner_of(tmp_path / "run", seed=1, resume="must").validate(DATA)
    assert f"using the weights from {second}" in capsys.readouterr().err
    assert not caplog.records


@pytest.mark.parametrize("file", ["manifest.json", "model.safetensors", "state.pt"])
def test_a_best_folder_replaced_while_it_is_read_is_read_again(file, tmp_path):
    trained(tmp_path / "run")
    folder = tmp_path / "run" / "checkpoints"
    best, other, first = folder / "best-loss", folder / ".other", min(folder.glob("step-*"))
    wanted = hookpoint.load_weights(first)

    def replace():
        best.rename(other)
        first.rename(best)

    runner = runner_of(None, seed=1, resume=best)
    with before_reading(f"best-loss/{file}", replace):
        runner.validate(DATA)
    assert all(torch.equal(one, wanted[name]) for name, one in runner.model.state_dict().items())


@pytest.mark.parametrize("file", ["model.safetensors", "state.pt"])
def test_a_damaged_checkpoint_is_reported_skipped_and_kept(file, tmp_path, capsys, caplog):
    trained(tmp_path / "run")
    newest, second = sorted((tmp_path / "run" / "checkpoints").glob("step-*"))[:-3:-1]
    content = bytearray((newest / file).read_bytes())
    content[-1] ^= 1
    (newest / file).unlink()  # best-loss has the same file
    (newest / file).write_bytes(content)
    runner_of(tmp_path / "run", seed=1).validate(DATA)
    assert f"using the weights from {second}" in capsys.readouterr().err
    assert f"{newest} is damaged" in caplog.text
    assert newest.exists()
    with pytest.raises(CannotResume, match="is damaged"):
        runner_of(None, resume=newest).validate(DATA)


def test_weights_of_a_different_model_raise(tmp_path):
    trained(tmp_path / "run")
    runner = Runner(nn.Linear(2, 1), workdir=tmp_path / "run")
    with pytest.raises(CannotResume, match=r"do not match this Runner's model(?s:.*)resume=.never"):
        runner.predict(INPUTS)
    assert len(Runner(nn.Linear(2, 1), workdir=tmp_path / "run", resume="never").predict(INPUTS)) == 4


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor:UserWarning")
def test_compiled_and_plain_models_can_load_each_others_weights(tmp_path):
    wanted = results(trained(tmp_path / "plain"))
    assert results(runner_of(tmp_path / "plain", seed=1, compiled=True)) == wanted
    wanted = results(trained(tmp_path / "compiled", compiled=True))
    assert results(runner_of(tmp_path / "compiled", seed=1)) == wanted
    torch.compiler.reset()


def test_several_models_and_modules_in_state_are_loaded(tmp_path):
    def made(seed, **options):
        torch.manual_seed(seed)
        models, extra = {"one": nn.Linear(2, 2), "two": nn.Linear(2, 1)}, nn.Linear(1, 1)

        def forward(run):
            run.outputs = extra(models["two"](models["one"](run.batch[0])))
            run.loss = nn.functional.mse_loss(run.outputs, run.batch[1])
            return run.loss

        optimizer = torch.optim.SGD([*(p for one in models.values() for p in one.parameters()), *extra.parameters()], lr=0.1)
        return Runner(models, optimizer, main=forward, workdir=tmp_path / "run", state={"extra": extra}, **options)

    runner = made(0, callbacks=[cb.ModelSaver()])
    runner.fit(DATA, epochs=2)
    assert made(1).validate(DATA) == runner.validate(DATA)


def test_fit_with_resume_must_or_a_path_needs_a_workdir(tmp_path):
    trained(tmp_path / "run")
    for resume in ("must", tmp_path / "run"):
        with pytest.raises(CannotResume, match="needs a workdir"):
            runner_of(None, resume=resume).fit(DATA, epochs=1)
