"""save_checkpoint writes the weights of a model to one file."""

from __future__ import annotations

import pytest
import torch

from hookpoint import errors, load_weights, save_checkpoint


def test_saved_weights_are_read_back(tmp_path):
    model = torch.nn.Linear(2, 1)
    save_checkpoint(model, tmp_path / "0.5.ckpt")
    assert all(torch.equal(value, model.state_dict()[name]) for name, value in load_weights(tmp_path / "0.5.ckpt").items())


def test_a_second_save_replaces_the_first(tmp_path):
    file = tmp_path / "best.ckpt"
    for value in (1.0, 2.0):
        save_checkpoint({"weight": torch.tensor([value])}, str(file))
    assert load_weights(file)["weight"].item() == 2.0
    assert list(tmp_path.iterdir()) == [file]


@pytest.mark.parametrize("thing", [3, {}, {"weight": 1.0}, object()])
def test_an_object_that_is_not_a_model_raises(thing, tmp_path):
    with pytest.raises(errors.NotSaveable) as caught:
        save_checkpoint(thing, tmp_path / "x.ckpt")
    assert str(caught.value) == (
        f"save_checkpoint: save_obj must be a model or a mapping of names to tensors, got {type(thing).__name__}.\n"
        "  give      run.model"
    )
    assert list(tmp_path.iterdir()) == []
