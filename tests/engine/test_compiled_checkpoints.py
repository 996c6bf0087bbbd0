from __future__ import annotations

import copy
import json

import pytest
import torch
from torch import nn

import hookpoint
from hookpoint import Callback, Every, Loop, Runner
from hookpoint import callbacks as cb
from hookpoint.core.checkpoint.plain_names import names_of, plain_state
from hookpoint.core.errors import CannotResume
from hookpoint.storage.checkpoint.fingerprint import Fingerprint

pytestmark = pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor:UserWarning")  # dynamo's own

DATA = [(torch.randn(4, 2, generator=torch.Generator().manual_seed(number)), torch.ones(4, 2)) for number in range(4)]


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(2, 2))
        self.head = nn.BatchNorm1d(2)

    def forward(self, inputs):
        return self.head(self.body(inputs))


def plain(model):
    return model


def whole(model):
    return torch.compile(model, backend="eager")


def inner(model):
    model.body[0] = torch.compile(model.body[0], backend="eager")
    model.head = torch.compile(model.head, backend="eager")
    return model


def in_place(model):
    model.compile(backend="eager")
    return model


COMPILED = [whole, inner, in_place]


class Gone(Exception):
    """Raised to interrupt the run."""


class Leaves(Callback):
    def on_train_iter_end(self, run):
        if run.iteration == 6:
            raise Gone


@pytest.fixture(autouse=True)
def forget():
    yield
    torch.compiler.reset()


def made(compiled):
    torch.manual_seed(0)
    model = compiled(Net())
    return model, torch.optim.Adam(model.parameters(), lr=0.1)


def callbacks(*more):
    return [
        cb.SwapEMAWeights(0.9),
        cb.EarlyStopping("loss", patience=9, restore_best_weights=True),
        cb.ModelSaver().when(Every(steps=1)),
        cb.MinSaver("loss"),
        *more,
    ]


def by_runner(compiled, workdir, *more, epochs=2):
    model, optimizer = made(compiled)
    Runner(model, optimizer, nn.MSELoss(), callbacks=callbacks(*more), workdir=workdir, accumulate=2).fit(DATA, epochs=epochs)
    return model


def by_loop(compiled, workdir, *more, epochs=2):
    model, optimizer = made(compiled)
    with Loop(callbacks(*more), model=model, optimizer=optimizer, workdir=workdir) as run:
        for _ in run.epochs(epochs):
            for inputs, targets in run.batches(DATA):
                optimizer.zero_grad()
                loss = nn.functional.mse_loss(model(inputs), targets)
                loss.backward()
                optimizer.step()
                run.log(loss=loss)
    return model


def weights_of(model):
    return {name: tensor.tolist() for name, tensor in plain_state(model.state_dict()).items()}


@pytest.mark.thin(3)
@pytest.mark.parametrize("compiled", COMPILED)
@pytest.mark.parametrize("train", [by_runner, by_loop])
def test_checkpoints_of_compiled_models_have_plain_names(train, compiled, tmp_path):
    model = train(compiled, tmp_path / "run")
    for folder in ("run", "run/checkpoints/best-loss"):
        Net().load_state_dict(hookpoint.load_weights(tmp_path / folder))
        Net().load_state_dict(hookpoint.load_weights(tmp_path / folder, averaged=True))
    assert not any("_orig_mod" in file.read_text("latin-1") for file in (tmp_path / "run").rglob("*") if file.is_file())
    assert hookpoint.verify(tmp_path / "run").ok
    trained, averaged = hookpoint.load_weights(tmp_path / "run"), hookpoint.load_weights(tmp_path / "run", averaged=True)
    assert not torch.equal(trained["body.0.weight"], averaged["body.0.weight"])
    assert weights_of(model).keys() == trained.keys()


@pytest.mark.thin(3)
@pytest.mark.parametrize("train", [by_runner, by_loop])
@pytest.mark.parametrize(("first", "then"), [(plain, whole), (whole, plain), (inner, plain), (plain, inner), (inner, whole)])
def test_a_run_resumes_with_and_without_compiling(train, first, then, tmp_path):
    expected = weights_of(train(plain, tmp_path / "whole"))
    with pytest.raises(Gone):
        train(first, tmp_path / "run", Leaves())
    resumed = train(then, tmp_path / "run")
    assert weights_of(resumed) == expected
    for averaged in (False, True):
        found, wanted = (hookpoint.load_weights(tmp_path / name, averaged=averaged) for name in ("run", "whole"))
        assert {name: one.tolist() for name, one in found.items()} == {name: one.tolist() for name, one in wanted.items()}


def test_init_weights_fit_compiled_and_plain_models(tmp_path):
    weights = by_runner(plain, tmp_path / "run").state_dict()
    for compiled in COMPILED:
        model, optimizer = made(compiled)
        Runner(model, optimizer, nn.MSELoss(), init_weights=weights)
        assert weights_of(model) == weights_of(Net()) | {name: one.tolist() for name, one in weights.items()}
        other = copy.deepcopy(Net())
        Runner(other, None, init_weights=model.state_dict())
        assert weights_of(other) == weights_of(model)


def test_layers_keep_their_versions():
    """The metadata of a state dict is found under the current names of its layers."""
    for compiled in COMPILED:
        state = plain_state(made(compiled)[0].state_dict())
        assert state._metadata["head"]["version"] == 2
        for other in (plain, *COMPILED):
            model = made(other)[0]
            given = names_of(model, state)
            assert list(given) == list(model.state_dict())
            assert given._metadata["_orig_mod.head" if other is whole else "head._orig_mod" if other is inner else "head"]


def test_a_run_is_named_after_the_compiled_model():
    names = []
    runner = Runner(whole(nn.Linear(2, 2)))

    @runner.on("on_pred_epoch_end")
    def note(run):
        names.append(run.name)

    runner.predict([torch.ones(1, 2)])
    assert names == ["Linear"]


# Checkpoints of older releases


def as_before(workdir, model):
    """Rewrite the checkpoints of a run with the weight names of older releases."""
    from hookpoint.core.checkpoint.store import Checkpoint
    from hookpoint.storage.checkpoint.checkpoint_folder import read_checkpoint, write_checkpoint
    from hookpoint.storage.checkpoint.manifest import Manifest
    from hookpoint.storage.disk.disk import remove

    renamed = {name: names_of(model, {name: None}) for name in plain_state(model.state_dict())}
    names = {name: next(iter(one)) for name, one in renamed.items()}
    for folder in sorted((workdir / "checkpoints").glob("step-*")):
        found: Checkpoint = read_checkpoint(folder)
        manifest = json.loads((folder / "manifest.json").read_text())
        state = dict(found.state)
        weights = {names[name]: one for name, one in state["parts"]["model"].items()}
        state["parts"] = {**state["parts"], "model": weights}
        if "gradients" in state["parts"]:
            state["parts"]["gradients"] = {names[name]: one for name, one in state["parts"]["gradients"].items()}
        ema = state["callbacks"]["SwapEMAWeights"]["state"]
        ema["averages"] = {names[name]: one for name, one in ema["averages"].items()}
        best = state["callbacks"]["EarlyStopping(loss)"]["state"] if "EarlyStopping(loss)" in state["callbacks"] else {}
        if best.get("weights"):
            best["weights"] = {names[name]: one for name, one in best["weights"].items()}
        remove(folder)
        write_checkpoint(
            folder,
            state,
            lambda files, manifest=manifest, weights=weights: Manifest(
                files=files,
                identity={**manifest["identity"], "model": str(Fingerprint.of(weights))},
                **{name: manifest[name] for name in ("step", "elapsed", "tags", "clocks")},
            ),
        )
    return names


@pytest.mark.thin(3)
@pytest.mark.parametrize("train", [by_runner, by_loop])
@pytest.mark.parametrize("was", [whole, inner])
@pytest.mark.parametrize("then", [plain, whole, inner])
def test_checkpoints_of_older_releases_resume(train, was, then, tmp_path):
    expected = weights_of(train(plain, tmp_path / "whole"))
    with pytest.raises(Gone):
        train(was, tmp_path / "run", Leaves())
    names = as_before(tmp_path / "run", made(was)[0])
    assert any("_orig_mod" in name for name in names.values())
    Net().load_state_dict(hookpoint.load_weights(tmp_path / "run"))
    Net().load_state_dict(hookpoint.load_weights(tmp_path / "run", averaged=True))
    assert weights_of(train(then, tmp_path / "run")) == expected


def test_a_checkpoint_of_an_older_release_rejects_a_different_model(tmp_path):
    with pytest.raises(Gone):
        by_runner(whole, tmp_path / "run", Leaves())
    as_before(tmp_path / "run", made(whole)[0])
    other = nn.Linear(2, 2)
    runner = Runner(other, torch.optim.Adam(other.parameters()), nn.MSELoss(), workdir=tmp_path / "run", accumulate=2)
    with pytest.raises(CannotResume, match="its weights have different names"):
        runner.fit(DATA, epochs=2)
