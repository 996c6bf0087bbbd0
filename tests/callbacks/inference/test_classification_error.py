from __future__ import annotations

import math
import re
from collections import namedtuple
from dataclasses import dataclass
from fractions import Fraction
from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from hookpoint.callbacks import ClassificationError, InferenceRunner
from hookpoint.core.errors import BadLoop, BadValue, MissingOutput
from hookpoint.core.loop.loop import Loop

# Scores of three classes for six samples. The comments give the classes of each sample from the highest score down.
SCORES = torch.tensor(
    [[0.1, 0.7, 0.2], [0.5, 0.3, 0.2], [0.2, 0.3, 0.5], [0.6, 0.1, 0.3], [0.1, 0.2, 0.7], [0.3, 0.6, 0.1]]
)  # 1 2 0         0 1 2            2 1 0            0 2 1            2 1 0            1 0 2
TARGETS = torch.tensor([1, 1, 0, 2, 2, 2])  # best, second, third, second, best, third


def measure(inferencer, batches):
    """Return the value that is logged for batches of (outputs, targets)."""
    with Loop([InferenceRunner(batches, inferencer, forward=lambda batch: batch[0])]) as run:
        for _ in run.epochs(1):
            pass
    return run.metrics[inferencer.names[0]]


def cut(*sizes, scores=SCORES, targets=TARGETS):
    return list(zip(scores.split(sizes), targets.split(sizes), strict=True))


@pytest.mark.parametrize("sizes", [(6,), (5, 1), (1, 5), (2, 2, 2), (3, 2, 1), (1,) * 6])
@pytest.mark.parametrize(("wrong", "error"), [("wrong-top1", 4 / 6), ("wrong-top2", 2 / 6), ("wrong-top3", 0.0)])
def test_the_error_covers_the_whole_dataset_however_it_is_split_into_batches(wrong, error, sizes):
    assert measure(ClassificationError(wrong), cut(*sizes)) == error


def test_the_metric_name_can_be_chosen():
    assert ClassificationError().names == ("validation_error",)
    assert ClassificationError("wrong-top5", "val-error-top5").names == ("val-error-top5",)


@given(st.data())
@settings(max_examples=3 * settings.default.max_examples, deadline=None)
def test_the_error_matches_a_naive_implementation(data):
    classes = data.draw(st.integers(2, 5))
    k = data.draw(st.integers(1, classes))
    ranked = st.permutations(range(classes))
    samples = data.draw(st.lists(st.tuples(ranked, st.integers(-1, classes - 1)), min_size=1, max_size=20))
    cuts = data.draw(st.lists(st.integers(0, len(samples)), max_size=4))
    edges = sorted({0, len(samples), *cuts})
    batches = []
    for low, high in pairwise(edges):
        scores = torch.zeros(high - low, classes)
        for row, (order, _) in enumerate(samples[low:high]):
            scores[row, list(order)] = torch.arange(classes, 0, -1.0)
        batches.append((scores, torch.tensor([target for _, target in samples[low:high]])))
    known = [target not in order[:k] for order, target in samples if target >= 0]
    expected = float(Fraction(sum(known), len(known))) if known else math.nan
    assert measure(ClassificationError(f"wrong-top{k}"), batches) == pytest.approx(expected, abs=0, nan_ok=True)
    in_numpy = [(scores.numpy(), targets.numpy()) for scores, targets in batches]
    assert measure(ClassificationError(f"wrong-top{k}"), in_numpy) == pytest.approx(expected, abs=0, nan_ok=True)


# Forms of scores and targets


def test_targets_can_be_one_hot_or_probabilities():
    probabilities = torch.nn.functional.one_hot(TARGETS, 3)
    for targets in (probabilities, probabilities.float() * 0.9 + 0.03, probabilities.bool()):
        assert measure(ClassificationError(), [(SCORES, targets)]) == 4 / 6
    assert measure(ClassificationError(), [(SCORES.numpy(), probabilities.numpy())]) == 4 / 6


@pytest.mark.parametrize("form", ["classes second", "classes last"])
def test_every_pixel_or_token_counts(form):
    scores, targets = SCORES.reshape(2, 3, 3), TARGETS.reshape(2, 3)
    scores, targets = torch.cat([scores] * 2, 1), torch.cat([targets] * 2, 1)  # 2 sequences of 6, of 3 classes
    if form == "classes second":
        scores = scores.movedim(-1, 1)
    assert measure(ClassificationError(), [(scores, targets)]) == 4 / 6
    assert measure(ClassificationError("wrong-top2"), [(scores.numpy(), targets.numpy())]) == 2 / 6


def test_negative_targets_are_ignored():
    targets = torch.tensor([1, -100, -100, 2, -1, -100])
    assert measure(ClassificationError(), cut(4, 2, targets=targets)) == 1 / 2


def test_the_error_is_nan_when_all_targets_are_ignored():
    assert math.isnan(measure(ClassificationError(), [(SCORES, torch.full((6,), -100))]))


@pytest.mark.parametrize("kind", [torch.Tensor, torch.Tensor.numpy])
def test_samples_with_nan_scores_are_wrong(kind):
    scores = torch.full((6, 3), math.nan)
    assert measure(ClassificationError("wrong-top3"), [(kind(scores), kind(TARGETS.clone()))]) == 1.0


def test_scores_of_minus_infinity_are_valid():
    scores = SCORES.clone()
    scores[:, 0] = -math.inf
    assert measure(ClassificationError(), [(scores, TARGETS)]) == 2 / 6


def test_half_precision_scores_are_accepted():
    assert measure(ClassificationError(), [(SCORES.bfloat16(), TARGETS)]) == 4 / 6


# Outputs that mark the wrong samples

WRONG = torch.tensor([0, 1, 1, 1, 0, 1])


@pytest.mark.parametrize(
    "entries",
    [WRONG, WRONG.bool(), WRONG.float(), WRONG.half(), WRONG.reshape(6, 1), WRONG.numpy(), WRONG.bool().numpy()],
)
def test_an_output_can_mark_the_wrong_samples(entries):
    batches = [({"incorrect": entries, "other": 1}, TARGETS), ({"incorrect": entries[:2]}, TARGETS[:2])]
    assert measure(ClassificationError("incorrect"), batches) == 5 / 8


def test_outputs_can_be_a_named_tuple_or_a_dataclass():
    @dataclass
    class Outputs:
        incorrect: torch.Tensor

    for outputs in (namedtuple("Outputs", "incorrect")(WRONG), Outputs(WRONG)):
        assert measure(ClassificationError("incorrect"), [(outputs, TARGETS)]) == 4 / 6


def test_an_output_with_the_given_name_is_preferred():
    assert measure(ClassificationError("wrong-top1"), [({"wrong-top1": torch.zeros(6), "logits": SCORES}, TARGETS)]) == 0.0


def test_scores_are_found_among_named_outputs():
    assert measure(ClassificationError("wrong-top1"), [({"logits": SCORES, "loss": 1.0}, TARGETS)]) == 4 / 6


def test_a_function_of_outputs_and_targets_can_mark_the_wrong_samples():
    def wrong(outputs, targets):
        return (outputs[:, 0] > 0.25) != (targets == 0)

    assert measure(ClassificationError(wrong), cut(4, 2)) == 4 / 6


def test_half_precision_marks_are_counted_exactly():
    assert measure(ClassificationError("w"), [({"w": torch.ones(5000, dtype=torch.float16)}, None)]) == 1.0


# Errors


@pytest.mark.parametrize(
    ("wrong", "outputs", "message"),
    [
        (
            "incorrect",
            {"loss": 1, "logits": SCORES},
            "(validation_error) reads 'incorrect', which is not among the outputs.\n  known     logits, loss\n",
        ),
        ("incorrect", {"loss": 1}, "  known     loss\n  set       run.outputs = {'incorrect': ...} in the forward pass"),
        ("incorrect", SCORES, "  known     none: the outputs are a Tensor, without names"),
        ("wrong-top1", {"scores": SCORES}, "reads 'logits', which is not among the outputs.\n  known     scores"),
    ],
)
def test_the_error_for_a_missing_output_lists_the_outputs(wrong, outputs, message):
    with pytest.raises(MissingOutput, match=re.escape(message)) as raised:
        measure(ClassificationError(wrong), [(outputs, TARGETS)])
    assert isinstance(raised.value, KeyError)


@pytest.mark.parametrize(
    ("wrong", "outputs", "targets", "message"),
    [
        (
            "wrong-top1",
            SCORES,
            TARGETS[:4],
            "(validation_error): output shape (6, 3) does not match target shape (4,).",
        ),
        ("wrong-top1", SCORES[:, 0], TARGETS, "output shape (6,) does not match target shape (6,)."),
        ("wrong-top1", SCORES, None, "cannot compare Tensor outputs and NoneType targets."),
        ("wrong-top1", (SCORES, SCORES), TARGETS, "cannot compare tuple outputs and Tensor targets."),
        ("wrong-top4", SCORES, TARGETS, "top 4 needs at least 4 classes, got 3.\n  use       'wrong-top3'"),
        ("w", {"w": 0.5}, TARGETS, "one entry per sample, got float."),
        ("w", {"w": torch.tensor(0.5)}, TARGETS, "one entry per sample, got a single value."),
        (lambda outputs, targets: [0, 1], SCORES, TARGETS, "one entry per sample, got list."),
    ],
)
def test_outputs_that_do_not_match_the_targets_raise(wrong, outputs, targets, message):
    with pytest.raises(BadValue, match=re.escape(message)):
        measure(ClassificationError(wrong), [(outputs, targets)])


def test_a_forward_function_that_sets_no_outputs_raises():
    with pytest.raises(BadLoop, match="the forward function set no outputs"):
        measure(ClassificationError(), [(None, TARGETS)])


@pytest.mark.parametrize("wrong", [None, 5, ""])
def test_an_argument_that_is_neither_a_name_nor_a_function_raises(wrong):
    with pytest.raises(TypeError, match="must be a name or a function"):
        ClassificationError(wrong)


@pytest.mark.parametrize("wrong", ["wrong-top", "wrong-top0", "wrong-top-1", "wrong-topk", "wrong-top05"])
def test_a_misspelled_wrong_topk_name_raises(wrong):
    with pytest.raises(ValueError, match="write     'wrong-top1', 'wrong-top5'"):
        ClassificationError(wrong)


def test_numpy_arrays_are_accepted():
    assert measure(ClassificationError(), [(np.array([[0.9, 0.1], [0.9, 0.1]]), np.array([0, 1]))]) == 0.5
