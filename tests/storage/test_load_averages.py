from __future__ import annotations

import pytest
import torch
from torch import nn

from hookpoint import Loop, Runner, load_weights
from hookpoint.callbacks import ModelSaver, SwapEMAWeights
from hookpoint.core.errors import CannotResume


def fit(workdir, *callbacks, model=None):
    model = model or nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    options = {"workdir": workdir, "extra_callbacks": [], "monitors": []}
    runner = Runner(model, optimizer, nn.MSELoss(), callbacks=[*callbacks, ModelSaver()], **options)
    runner.fit([(torch.ones(4, 2), torch.zeros(4, 1))] * 3, epochs=2)
    return model


def same_weights(one, other):
    return sorted(one) == sorted(other) and all(torch.equal(one[name], other[name]) for name in one)


@pytest.mark.parametrize("path", ["", "checkpoints", "checkpoints/last", "checkpoints/step-00000006"])
def test_averages_are_loaded_from_the_same_paths_as_weights(path, tmp_path):
    ema = SwapEMAWeights(0.5)
    model = fit(tmp_path, ema)
    assert same_weights(load_weights(tmp_path / path, averaged=True), ema.weights())
    assert same_weights(load_weights(tmp_path / path), model.state_dict())


def test_one_of_several_averages_is_chosen_by_name(tmp_path):
    slow, fast = SwapEMAWeights(0.9, name="slow"), SwapEMAWeights(0.5, name="fast")
    fit(tmp_path, slow, fast)
    assert same_weights(load_weights(tmp_path, averaged="slow"), slow.weights())
    assert same_weights(load_weights(tmp_path, averaged="fast"), fast.weights())
    with pytest.raises(CannotResume, match=r"has multiple averages.\n  name +one of slow, fast"):
        load_weights(tmp_path, averaged=True)
    with pytest.raises(CannotResume, match=r"has no averages of SwapEMAWeights.\n  name +one of slow, fast"):
        load_weights(tmp_path, averaged="SwapEMAWeights")


def test_missing_averages_raise(tmp_path):
    fit(tmp_path / "plain")
    with pytest.raises(CannotResume, match=r"has no averages.\n  leave"):
        load_weights(tmp_path / "plain", averaged=True)
    fit(tmp_path / "early", SwapEMAWeights(start=99))
    with pytest.raises(CannotResume, match="was saved before SwapEMAWeights started averaging"):
        load_weights(tmp_path / "early", averaged=True)
    with pytest.raises(CannotResume, match="is a weights file and contains no averages"):
        load_weights(tmp_path / "plain" / "checkpoints" / "last" / "model.safetensors", averaged=True)


def test_averages_include_tied_and_frozen_weights(tmp_path):
    model = nn.Sequential(nn.Linear(2, 2, bias=False), nn.Linear(2, 2), nn.Linear(2, 1))
    model[1].weight = model[0].weight
    model[2].requires_grad_(False)
    ema = SwapEMAWeights(0.5)
    fit(tmp_path, ema, model=model)
    found = load_weights(tmp_path, averaged=True)
    assert same_weights(found, ema.weights())
    assert torch.equal(found["0.weight"], found["1.weight"])


def test_averages_of_several_models_are_loaded_by_model(tmp_path):
    models = {"one": nn.Linear(1, 1), "two": nn.Linear(1, 1)}
    optimizer = torch.optim.SGD([*models["one"].parameters(), *models["two"].parameters()], lr=0.1)
    ema = SwapEMAWeights(0.5)
    options = {"model": models, "optimizer": optimizer, "workdir": tmp_path, "extra_callbacks": [], "monitors": []}
    with Loop([ema, ModelSaver()], **options) as run:
        for _ in run.epochs(1):
            for batch in run.batches([torch.ones(1, 1)] * 3):
                models["two"](models["one"](batch)).sum().backward()
                optimizer.step()
    found = load_weights(tmp_path, averaged=True)
    assert all(same_weights(found[name], ema.weights()[name]) for name in models)
