from __future__ import annotations

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from hookpoint.core.errors import CannotResume, DamagedCheckpoint
from hookpoint.storage.load_weights import load_weights


@pytest.fixture
def saved(opened, write, tmp_path):
    """Save models at steps 1, 2, … and return the workdir."""

    def go(*models):
        store = opened("never")
        for step, model in enumerate(models, 1):
            write(store, step, best_x=None, state={"parts": {"model": model, "optimizer": {"m": torch.ones(3)}}})
        store.close()
        return tmp_path / "run"

    return go


def weights(value):
    return {"w": torch.full((2, 2), float(value)), "b": torch.ones(1).bfloat16()}


@pytest.mark.parametrize("path", ["", "checkpoints", "checkpoints/step-00000002", "checkpoints/best-x", "checkpoints/last"])
def test_weights_are_loaded_from_any_folder_of_a_run(path, saved, same):
    assert same(sorted(load_weights(saved(weights(1), weights(2)) / path).items()), sorted(weights(2).items()))


def test_weights_are_loaded_from_a_file_with_or_without_a_manifest(saved, tmp_path):
    assert torch.equal(
        load_weights(saved(weights(1)) / "checkpoints" / "step-00000001" / "model.safetensors")["w"], weights(1)["w"]
    )
    save_file(weights(3), tmp_path / "mine.safetensors")
    assert torch.equal(load_weights(str(tmp_path / "mine.safetensors"))["w"], weights(3)["w"])


def test_loaded_weights_fit_the_model(saved):
    torch.manual_seed(0)
    one, other = torch.nn.Linear(3, 2), torch.nn.Linear(3, 2)
    other.load_state_dict(load_weights(saved(one.state_dict())))
    assert torch.equal(one.weight, other.weight)


def test_weights_of_several_models_are_loaded_by_model(saved):
    loaded = load_weights(saved({"actor": weights(1), "critic": weights(2)}))
    assert list(loaded) == ["actor", "critic"]
    assert torch.equal(loaded["critic"]["w"], weights(2)["w"])


def test_weights_that_are_not_safetensors_are_loaded(saved):
    odd = {"w": torch.ones(1, dtype=torch.complex128), "n": 3}
    assert load_weights(saved(odd))["n"] == 3
    assert load_weights(saved({"w": np.ones(2)}))["w"].tolist() == [1, 1]


@pytest.mark.parametrize("path", ["step-00000002", "step-00000002/model.safetensors", "best-x"])
def test_damaged_weights_raise(path, saved, flip):
    folder = saved(weights(1), weights(2)) / "checkpoints"
    flip(folder / "step-00000002" / "model.safetensors", -1)
    with pytest.raises(DamagedCheckpoint, match=r"model\.safetensors changed after it was written"):
        load_weights(folder / path)


def test_a_workdir_loads_its_newest_good_weights(saved, flip):
    workdir = saved(weights(1), weights(2))
    flip(workdir / "checkpoints" / "step-00000002" / "model.safetensors", -1)
    assert torch.equal(load_weights(workdir)["w"], weights(1)["w"])
    flip(workdir / "checkpoints" / "step-00000001" / "model.safetensors", -1)
    with pytest.raises(CannotResume, match=r"^there is no good checkpoint in .*\n  .*step-00000002 is damaged"):
        load_weights(workdir)


def test_missing_weights_raise(saved, tmp_path):
    with pytest.raises(CannotResume, match="does not exist"):
        load_weights(tmp_path / "nowhere")
    with pytest.raises(CannotResume, match=r"load_weights reads local files, got s3://bucket/x\."):
        load_weights("s3://bucket/x")
    with pytest.raises(CannotResume, match="contains no model weights"):
        load_weights(saved([1, 2]))
