from __future__ import annotations

import copy
import re
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest
import torch
from torch import nn

from hookpoint import callbacks as cb
from hookpoint.core.errors import BadLoop
from hookpoint.engine.step.forward import Forward


class Takes(nn.Module):
    """Returns its arguments by name."""

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
def test_the_last_part_is_the_target_unless_it_is_an_input(kind, model, batch, has_criterion, predicts, called_with, targets):
    forward = Forward(model, criterion if has_criterion else None)
    assert forward.outputs(kind(batch), predicts=predicts) == (called_with, targets)


@pytest.mark.parametrize("predicts", [False, True])
def test_a_batch_that_is_a_tensor_is_the_only_input(predicts):
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
def test_parts_named_by_the_forward_are_inputs_and_the_rest_are_targets(model, batch, called_with, targets):
    assert Forward(model, criterion).outputs(batch, predicts=False) == (called_with, targets)


def test_without_a_criterion_labels_go_to_a_model_that_takes_any_name():
    assert Forward(TakesAll(), None).outputs({"x": 1, "labels": 2}, predicts=False) == (({"x": 1, "labels": 2},), 2)


@pytest.mark.parametrize("more", [{}, {"idx": 7}, {"idx": 7, "text": "a"}])
def test_labels_taken_by_the_forward_are_also_the_targets(more):
    class TakesLabels(nn.Module):
        def forward(self, x, labels=None):
            return x, labels

    assert Forward(TakesLabels(), None).outputs({"x": 1, "labels": 2, **more}, predicts=False) == ((1, 2), 2)


class Graphs:
    """A batch like those of PyTorch Geometric."""

    def __init__(self, **parts):
        vars(self).update(parts)

    def to(self, device): ...

    def keys(self):
        return list(vars(self))

    def to_dict(self):
        return dict(vars(self))


@pytest.mark.parametrize("predicts", [False, True])
def test_a_graph_batch_is_passed_whole_or_by_name(predicts):
    class Named(nn.Module):
        def forward(self, x, edge_index, batch):
            return x, edge_index, batch

    class Whole(nn.Module):
        def forward(self, batch):
            return batch

    graphs = Graphs(x=1, edge_index=2, batch=3, y=4, ptr=5)
    assert Forward(Whole(), criterion).outputs(graphs, predicts=predicts) == (graphs, 4)
    assert Forward(Named(), criterion).outputs(graphs, predicts=predicts) == ((1, 2, 3), 4)


def test_a_batch_without_any_argument_of_the_model_raises():
    message = (
        "the model's forward takes input; the batch has x, y.\n  write     a MainCallback whose on_iter_forward calls the model"
    )
    with pytest.raises(BadLoop, match=f"^{re.escape(message)}$"):
        Forward(nn.Sequential(), criterion).outputs({"x": 1, "y": 2}, predicts=False)


def test_a_plain_function_can_be_the_model():
    assert Forward(lambda x: x + 1, criterion).outputs((1, 5), predicts=False) == (2, 5)


def test_a_model_without_a_signature_gets_the_inputs():
    forward = Forward(torch.relu, criterion)
    outputs, targets = forward.outputs((torch.tensor([-1.0, 2.0]), 5), predicts=True)
    assert (outputs.tolist(), targets) == ([0.0, 2.0], 5)


def test_several_models_without_a_main_callback_raise():
    forward = Forward({"a": nn.Linear(2, 2)}, criterion)
    with pytest.raises(BadLoop) as caught:
        forward.outputs((1, 2), predicts=False)
    assert str(caught.value) == (
        "there are multiple models: the default forward cannot call them.\n"
        "  write     a MainCallback whose on_iter_forward sets run.outputs and run.loss"
    )


# Losses


def test_the_criterion_gets_outputs_and_targets():
    assert Forward(Takes(), criterion).loss(1, 2) == (1, 2)


def test_a_criterion_without_targets_raises():
    with pytest.raises(BadLoop) as caught:
        Forward(Takes(), criterion).loss(1, None)
    assert str(caught.value) == (
        "the batch has no targets for the criterion.\n  give      (inputs, targets) batches, or no criterion"
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


class Named(NamedTuple):
    logits: Any
    hidden: Any = None


@pytest.mark.parametrize("kind", [dict, Named, lambda **parts: Batch(9, **parts)])
def test_torch_criteria_get_the_logits_and_custom_criteria_all_outputs(kind):
    name = "label" if kind not in (dict, Named) else "logits"  # the dataclass above has no logits
    outputs, targets = kind(**{name: torch.zeros(4, 2)}), torch.zeros(4, dtype=torch.long)
    assert Forward(Takes(), criterion).loss(outputs, targets) == (outputs, targets)
    if name == "logits":
        for of_torch in (nn.CrossEntropyLoss(), nn.functional.cross_entropy):
            assert Forward(Takes(), of_torch).loss(outputs, targets).item() == pytest.approx(0.6931, abs=1e-4)
        return
    with pytest.raises(BadLoop) as caught:
        Forward(Takes(), nn.CrossEntropyLoss()).loss(outputs, targets)
    assert str(caught.value) == (
        "CrossEntropyLoss takes a tensor, but the model returned a Batch with fields x, label.\n"
        "  write     lambda outputs, targets: CrossEntropyLoss(outputs['x'], targets) instead of CrossEntropyLoss"
    )


@pytest.mark.parametrize(
    "outputs",
    [torch.ones(4, 2), {"logits": torch.ones(4, 2)}, {"loss": None}, {}, [{"boxes": 1}], SimpleNamespace(loss=None), 3],
    ids=["logits", "dict of logits", "no loss in a dict", "empty", "detections", "no loss in an object", "number"],
)
def test_outputs_without_a_loss_raise_only_in_training(outputs):
    forward = Forward(Takes(), None)
    assert forward.loss(outputs, None, is_needed=False) is None
    with pytest.raises(BadLoop) as caught:
        forward.loss(outputs, None)
    assert str(caught.value) == (
        f"there is no criterion, and the model returned {type(outputs).__name__}, which is not a loss.\n"
        "  give      Runner(model, optimizer, criterion)\n"
        "  write     a MainCallback whose on_iter_forward sets run.loss instead"
    )


# Pairs, through a Runner


class Pairs(nn.Module):
    """Return scores and loss as nanoGPT does, or in another order."""

    def __init__(self, order):
        super().__init__()
        self.inner, self.order = nn.Linear(3, 2), order

    def forward(self, x, y=None):
        scores = self.inner(x)
        loss = None if y is None else nn.functional.mse_loss(scores, y)
        return self.order(scores, loss)


def test_a_model_may_return_scores_and_loss(runner, batches, distance):
    pairs = runner(model=Pairs(lambda scores, loss: (scores, loss)), criterion=None, metrics={"far": distance})
    plain = runner(model=copy.deepcopy(pairs.model.inner), metrics={"far": distance})
    assert {**pairs.fit(batches, batches, epochs=2).metrics} == {**plain.fit(batches, batches, epochs=2).metrics}
    inputs = [batch[:1] for batch in batches]
    assert torch.equal(torch.cat(pairs.predict(inputs)), torch.cat(plain.predict(inputs)))


@pytest.mark.parametrize(
    ("order", "shapes"),
    [
        (lambda scores, loss: (loss, scores), "(float32[], float32[4, 2])"),
        (lambda scores, loss: (scores, loss, scores), "(float32[4, 2], float32[], float32[4, 2])"),
        (lambda scores, loss: (scores, scores), "(float32[4, 2], float32[4, 2])"),
        (lambda scores, loss: (scores, None), "(float32[4, 2], NoneType)"),
    ],
    ids=["loss first", "three", "no loss", "None"],
)
def test_any_other_tuple_raises(runner, batches, order, shapes):
    one = runner(model=Pairs(order), criterion=None)
    with pytest.raises(BadLoop) as caught:
        one.fit(batches, epochs=1)
    assert str(caught.value) == (
        f"there is no criterion, and the model returned {shapes}: cannot tell which is the loss.\n"
        "  return    (logits, loss), or a dict with 'loss', from the forward\n"
        "  write     Runner(model, optimizer, main=lambda run: run.model(run.batch)[...]) instead"
    )


def test_a_loss_in_the_wrong_place_raises_in_validation(runner, batches):
    with pytest.raises(BadLoop, match="cannot tell which is the loss"):
        runner(model=Pairs(lambda scores, loss: (loss, scores)), criterion=None).validate(batches)
    assert runner(model=Pairs(lambda scores, loss: (scores, scores)), criterion=None).validate(batches) == {}


# Dicts of losses, through a Runner


class Detector(nn.Module):
    """Return a dict of losses in training, and detections elsewhere."""

    def __init__(self, *, always=False, total=False):
        super().__init__()
        self.inner, self.always, self.total = nn.Linear(3, 2), always, total

    def forward(self, x, y):
        if not (self.training or self.always):
            return [{"boxes": x}]
        losses = (self.inner(x) - y).pow(2).mean(0)
        named = {"box": losses[0], "label": losses[1]}
        return {"loss": losses.sum() / 2, **named} if self.total else named


@pytest.mark.parametrize("total", [False, True])
def test_a_dict_of_losses_logs_its_parts_in_training_and_validation(runner, batches, total):
    one = runner(cb.EarlyStopping("val_box", mode="min", patience=9), model=Detector(always=True, total=total), criterion=None)
    metrics = one.fit(batches, batches, epochs=2).metrics
    assert set(metrics) == {"loss", "box", "label", "val_loss", "val_box", "val_label", "learning_rate"}
    for prefix in ("", "val_"):
        parts = metrics[f"{prefix}box"] + metrics[f"{prefix}label"]
        assert metrics[f"{prefix}loss"] == pytest.approx(parts / 2 if total else parts)


def test_a_pass_without_losses_does_not_log_earlier_losses(runner, batches):
    metrics = runner(model=Detector(), criterion=None).fit(batches, batches, epochs=1).metrics
    assert set(metrics) == {"loss", "box", "label", "learning_rate"}


def test_a_dict_with_more_than_losses_is_treated_as_outputs(runner, batches):
    class Tagger(Detector):
        def forward(self, x, y):
            return {"loss": nn.functional.mse_loss(self.inner(x), y), "scale": torch.tensor(1.0), "logits": self.inner(x)}

    assert set(runner(model=Tagger(), criterion=None).fit(batches, epochs=1).metrics) == {"loss", "learning_rate"}


@pytest.mark.parametrize("way", ["criterion", "main"])
def test_a_criterion_or_a_main_function_may_return_a_dict_of_losses(runner, batches, way):
    def both(outputs, targets):
        return {"mse": nn.functional.mse_loss(outputs, targets), "l1": nn.functional.l1_loss(outputs, targets)}

    def main(run):
        return both(run.model(run.batch[0]), run.batch[1])

    given = {"criterion": both} if way == "criterion" else {"criterion": None, "main": main}
    metrics = runner(**given).fit(batches, batches, epochs=1).metrics
    assert metrics["loss"] == pytest.approx(metrics["mse"] + metrics["l1"])
    assert metrics["val_loss"] == pytest.approx(metrics["val_mse"] + metrics["val_l1"])


@pytest.mark.parametrize("way", ["criterion", "main"])
def test_a_dict_with_values_that_are_not_losses_raises(runner, batches, way):
    def wrong(*given):
        return {"mse": torch.ones(2), "kind": "mse"}

    with pytest.raises(BadLoop) as caught:
        runner(**({"criterion": wrong} if way == "criterion" else {"criterion": None, "main": wrong})).fit(batches, epochs=1)
    assert str(caught.value) == (
        "a dict of losses must contain tensors with one element, got {'mse': 'float32[2]', 'kind': 'str'}.\n"
        "  give      only the losses"
    )
