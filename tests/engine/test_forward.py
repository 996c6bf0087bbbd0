from __future__ import annotations

import re
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from hookpoint.core.errors import BadLoop
from hookpoint.engine._forward import Forward


class Takes(nn.Module):
    """Return what it was called with, by name."""

    def forward(self, x, mask=None):
        return {"x": x, "mask": mask}


class TakesTwo(nn.Module):
    def forward(self, first, second):
        return (first, second)


class TakesAll(nn.Module):
    def forward(self, *inputs, **named):
        return (*inputs, named)


@dataclass
class Batch:
    x: Any
    label: Any = 9


def criterion(outputs, targets):
    return (outputs, targets)


# Batches


@pytest.mark.parametrize("kind", [tuple, list])
@pytest.mark.parametrize(
    ("model", "batch", "has_criterion", "predicts", "called_with", "targets"),
    [
        (Takes(), [1, 2], True, False, {"x": 1, "mask": None}, 2),
        (Takes(), [1, 2, 3], True, False, {"x": 1, "mask": 2}, 3),
        (Takes(), [1], True, False, {"x": 1, "mask": None}, None),
        (Takes(), [1, 2], False, False, {"x": 1, "mask": 2}, None),
        (Takes(), [1, 2, 3], False, False, {"x": 1, "mask": 2}, 3),
        (Takes(), [1, 2], True, True, {"x": 1, "mask": None}, 2),
        (Takes(), [1], True, True, {"x": 1, "mask": None}, None),
        (Takes(), [1, 2, 3], False, True, {"x": 1, "mask": 2}, 3),
        (TakesTwo(), [1, 2], True, True, (1, 2), None),
        (TakesTwo(), [1, 2, 3], True, True, (1, 2), 3),
        (TakesAll(), [1], True, True, (1, {}), None),
        (TakesAll(), [1, 2], True, True, (1, {}), 2),
        (TakesAll(), [1, 2], False, False, (1, 2, {}), None),
    ],
)
def test_the_last_part_is_the_target_where_there_is_use_for_one(
    kind, model, batch, has_criterion, predicts, called_with, targets
):
    forward = Forward(model, criterion if has_criterion else None)
    assert forward.outputs(kind(batch), predicts=predicts) == (called_with, targets)


@pytest.mark.parametrize("predicts", [False, True])
def test_anything_else_is_the_one_input(predicts):
    tensor = torch.ones(2)
    assert Forward(Takes(), criterion).outputs(tensor, predicts=predicts) == ({"x": tensor, "mask": None}, None)


@pytest.mark.parametrize(
    ("model", "batch", "called_with", "targets"),
    [
        (Takes(), {"x": 1, "mask": 2}, {"x": 1, "mask": 2}, None),
        (Takes(), {"x": 1, "wanted": 3}, {"x": 1, "mask": None}, 3),
        (Takes(), {"x": 1, "boxes": 3, "labels": 4}, {"x": 1, "mask": None}, {"boxes": 3, "labels": 4}),
        (Takes(), Batch(1), {"x": 1, "mask": None}, 9),
        (TakesAll(), {"x": 1, "labels": 2}, ({"x": 1},), 2),
    ],
)
def test_named_parts_go_where_the_forward_names_them_and_the_rest_is_the_target(model, batch, called_with, targets):
    assert Forward(model, criterion).outputs(batch, predicts=False) == (called_with, targets)


def test_without_a_criterion_labels_go_to_a_model_that_takes_any_name():
    assert Forward(TakesAll(), None).outputs({"x": 1, "labels": 2}, predicts=False) == (({"x": 1, "labels": 2},), None)


def test_a_batch_without_any_name_of_the_model_is_refused():
    message = (
        "the model's forward takes input; the batch has x, y.\n"
        "  write     a MainCallback whose on_iter_forward calls the model as it wants to be called"
    )
    with pytest.raises(BadLoop, match=f"^{re.escape(message)}$"):
        Forward(nn.Sequential(), criterion).outputs({"x": 1, "y": 2}, predicts=False)


def test_a_plain_function_is_a_model_too():
    assert Forward(lambda x: x + 1, criterion).outputs((1, 5), predicts=False) == (2, 5)


def test_a_model_that_does_not_tell_what_it_takes_gets_what_there_is():
    forward = Forward(torch.relu, criterion)
    outputs, targets = forward.outputs((torch.tensor([-1.0, 2.0]), 5), predicts=True)
    assert (outputs.tolist(), targets) == ([0.0, 2.0], 5)


def test_several_models_cannot_be_called_without_a_main_callback():
    forward = Forward({"a": nn.Linear(2, 2)}, criterion)
    with pytest.raises(BadLoop) as caught:
        forward.outputs((1, 2), predicts=False)
    assert str(caught.value) == (
        "several models are given; how a batch goes through them only their owner knows.\n"
        "  write     a MainCallback whose on_iter_forward sets run.outputs and run.loss"
    )


# Losses


def test_the_criterion_gets_outputs_and_targets():
    assert Forward(Takes(), criterion).loss(1, 2) == (1, 2)


def test_a_criterion_without_targets_is_refused():
    with pytest.raises(BadLoop) as caught:
        Forward(Takes(), criterion).loss(1, None)
    assert str(caught.value) == (
        "the batch has no targets for the criterion.\n  give      batches of (inputs, targets), or no criterion"
    )


@pytest.mark.parametrize(
    ("outputs", "loss"),
    [
        (torch.tensor(2.0), 2.0),
        (torch.tensor([2.0]), 2.0),
        ({"loss": torch.tensor(2.0), "logits": torch.ones(4, 2)}, 2.0),
        ({"box": torch.tensor(2.0), "label": torch.tensor(0.5)}, 2.5),
        (SimpleNamespace(loss=torch.tensor(2.0), logits=torch.ones(4, 2)), 2.0),
    ],
    ids=["a tensor", "of one element", "dict with a loss", "dict of losses", "object with a loss"],
)
@pytest.mark.parametrize("is_needed", [True, False])
def test_a_model_may_return_its_loss(outputs, loss, is_needed):
    assert Forward(Takes(), None).loss(outputs, None, is_needed=is_needed).item() == loss


@pytest.mark.parametrize(
    "outputs",
    [torch.ones(4, 2), {"logits": torch.ones(4, 2)}, {"loss": None}, {}, [{"boxes": 1}], SimpleNamespace(loss=None), 3],
    ids=["logits", "dict of logits", "no loss in a dict", "empty", "detections", "no loss in an object", "number"],
)
def test_what_is_no_loss_is_refused_in_training_and_left_out_elsewhere(outputs):
    forward = Forward(Takes(), None)
    assert forward.loss(outputs, None, is_needed=False) is None
    with pytest.raises(BadLoop) as caught:
        forward.loss(outputs, None)
    assert str(caught.value) == (
        f"there is no criterion, and the model returned {type(outputs).__name__}, which is no loss.\n"
        "  give      Runner(model, optimizer, criterion)\n"
        "  write     or a MainCallback whose on_iter_forward sets run.loss"
    )
