from __future__ import annotations

import os
import pickle
from collections import OrderedDict

import numpy as np
import pytest
import torch

from hookpoint.core.errors import CannotResume, NotSaveable
from hookpoint.storage.checkpoint.state_files import check, files_of, read_state


@pytest.fixture
def through(tmp_path):
    """Write a state to files and read it back."""

    def go(state):
        for name, write in files_of(state):
            with open(tmp_path / name, "wb") as file:
                write(file)
        return read_state(tmp_path, os.listdir(tmp_path))

    return go


def model():
    torch.manual_seed(1)
    return torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.BatchNorm1d(4), torch.nn.Linear(4, 1))


def test_weights_are_saved_as_safetensors_and_the_rest_as_one_torch_file(through, same, tmp_path):
    net = model()
    optimizer = torch.optim.Adam(net.parameters(), lr=np.float64(0.01).item())
    net(torch.ones(2, 3)).sum().backward()
    optimizer.step()
    state = {
        "clocks": {"step": 1},
        "parts": {"model": net.state_dict(), "optimizer": optimizer.state_dict()},
        "rng": {"torch": torch.get_rng_state(), "numpy": np.random.default_rng(1).bit_generator.state},
    }
    loaded = through(state)
    assert sorted(os.listdir(tmp_path)) == ["model.safetensors", "state.pt"]
    assert same(loaded, state)
    assert loaded["parts"]["model"]._metadata == net.state_dict()._metadata
    other = model()
    other.load_state_dict(loaded["parts"]["model"])
    torch.optim.Adam(other.parameters()).load_state_dict(loaded["parts"]["optimizer"])


def test_a_state_whose_only_tensors_are_weights_has_no_torch_file(through, same, tmp_path):
    state = {"clocks": {"step": 1}, "parts": {"model": dict(model().state_dict()), "other": {1: (2.5, b"")}}}
    assert same(through(state), state)
    assert sorted(os.listdir(tmp_path)) == ["model.safetensors", "state.json"]


def test_each_of_several_models_has_its_own_file(through, same, tmp_path):
    state = {"parts": {"model": {"critic": model().state_dict(), "a/b": {"0": model().state_dict()}, "none": {}}}}
    assert same(through(state), state)
    assert sorted(os.listdir(tmp_path)) == [
        "model-a-b.0-b9ba020d123a.safetensors",
        "model-critic.safetensors",
        "state.json",
    ]


def test_models_whose_file_names_would_collide_are_both_saved(through, same):
    state = {"parts": {"model": {"a": {"b": {"w": torch.ones(1)}}, "a.b": {"w": torch.zeros(1)}}}}
    assert same(through(state), state)


@pytest.mark.parametrize(
    "weights",
    [
        OrderedDict(w=torch.ones(2), _extra_state={"a": 1}),
        {"w": torch.ones(2, dtype=torch.complex128)},
        {"w": np.ones(2)},
        {},
        [torch.ones(1)],
    ],
    ids=["extra-state", "other-type", "arrays", "nothing", "list"],
)
def test_weights_that_safetensors_cannot_store_are_saved_with_the_rest(weights, through, same, tmp_path):
    state = {"parts": {"model": weights}}
    assert same(through(state), state)
    assert not (tmp_path / "model.safetensors").exists()


def test_a_small_view_does_not_save_its_whole_storage(through, same, tmp_path):
    large = torch.arange(1_000_000.0)
    state = {"a": large[5:8], "b": {"c": large[7:9]}}
    assert same(through(state), state)
    assert (tmp_path / "state.pt").stat().st_size < 10_000


def test_views_of_the_same_storage_are_saved_once(through, same, tmp_path):
    large = torch.arange(100_000.0)
    state = {"a": large, "b": large.view(10, -1), "c": [large[:50_000], large[50_000:]]}
    assert same(through(state), state)
    assert (tmp_path / "state.pt").stat().st_size < 410_000


def test_strides_of_optimizer_state_are_restored(through):
    moments = torch.arange(24.0).view(1, 2, 3, 4).to(memory_format=torch.channels_last)
    assert through({"a": moments})["a"].stride() == moments.stride()


class Evil:
    def __init__(self, mark):
        self.mark = mark

    def __reduce__(self):
        return os.mkdir, (self.mark,)


@pytest.mark.parametrize("how", ["torch", "pickle"])
def test_a_malicious_file_does_not_run(how, tmp_path):
    mark = tmp_path / "it-ran"
    folder = tmp_path / "checkpoint"
    folder.mkdir()
    evil = {"state": {"a": Evil(str(mark))}, "weights": []}
    if how == "torch":
        torch.save(evil, folder / "state.pt")
    else:
        (folder / "state.pt").write_bytes(pickle.dumps(evil))
    with pytest.raises(CannotResume, match="is intact but cannot be read"):
        read_state(folder, ["state.pt"])
    assert not mark.exists()
    torch.load(folder / "state.pt", weights_only=False) if how == "torch" else pickle.loads((folder / "state.pt").read_bytes())
    assert mark.exists(), "the file must be one that would have run"


def test_weights_are_read_only_from_files_of_the_checkpoint(tmp_path):
    torch.save(
        {"state": {"parts": {}}, "weights": [{"names": (), "file": "../x", "kind": "dict", "keys": [], "metadata": None}]},
        tmp_path / "state.pt",
    )
    with pytest.raises(CannotResume, match=r"'\.\./x' is not one of the checkpoint's files"):
        read_state(tmp_path, ["state.pt"])


def test_check_accepts_a_state_that_can_be_saved():
    check({"callbacks": {"Mine": {"state": {"a": torch.ones(1), "b": np.ones(1), "c": b""}}}, "parts": {"model": {}}})


def test_check_raises_if_the_state_cannot_be_read_back(monkeypatch):
    def lose(*args, **kwargs):
        raise RuntimeError("no such type")

    monkeypatch.setattr(torch, "load", lose)
    with pytest.raises(NotSaveable, match=r"^the state can be written but not read back: no such type"):
        check({"a": torch.ones(1)})
