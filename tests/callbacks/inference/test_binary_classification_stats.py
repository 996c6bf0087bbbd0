from __future__ import annotations

import math
import re

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from hookpoint.callbacks import BinaryClassificationStats, InferenceRunner
from hookpoint.core.errors import BadValue, MissingOutput
from hookpoint.core.loop.loop import Loop

PRED = torch.tensor([1, 1, 1, 0, 0, 0, 1, 0])
LABEL = torch.tensor(
    [1, 0, 1, 1, 0, 0, 1, 0]
)  # three true positives, one false positive, one false negative, three true negatives
EXPECTED = (3 / 4, 3 / 4, 3.0, 1.0, 1.0, 3.0)


def measure(inferencer, batches):
    with Loop([InferenceRunner(batches, inferencer, forward=lambda batch: batch[0])]) as run:
        for _ in run.epochs(1):
            pass
    return tuple(run.metrics[name] for name in inferencer.names)


def cut(pred, label, *sizes):
    return list(zip(pred.split(sizes), label.split(sizes), strict=True))


@pytest.mark.parametrize("sizes", [(8,), (7, 1), (1, 7), (3, 3, 2), (1,) * 8])
def test_counts_cover_the_whole_dataset_however_it_is_split_into_batches(sizes):
    assert measure(BinaryClassificationStats(), cut(PRED, LABEL, *sizes)) == EXPECTED


def test_the_prefix_is_part_of_the_names():
    assert BinaryClassificationStats().names == (
        *("val_precision", "val_recall"),
        *("val_true_positives", "val_false_positives", "val_false_negatives", "val_true_negatives"),
    )
    assert BinaryClassificationStats(prefix="").names[:3] == ("precision", "recall", "true_positives")


@pytest.mark.parametrize(
    ("pred", "label"),
    [
        (PRED.bool(), LABEL.bool()),
        (PRED.float(), LABEL.double()),
        (0.2 + 0.4 * PRED.float(), LABEL),
        (PRED.reshape(8, 1), LABEL),
        (PRED.bool(), LABEL.reshape(4, 2)),
        (PRED, 2 * LABEL - 1),
        (PRED.numpy(), LABEL.numpy()),
        (PRED.bool().numpy(), LABEL.float().numpy()),
    ],
)
def test_predictions_and_labels_can_be_booleans_numbers_or_arrays(pred, label):
    assert measure(BinaryClassificationStats(), [(pred, label)]) == EXPECTED


def test_logits_need_a_threshold_of_0():
    logits = PRED * 6.0 - 0.3 - 5.5 * LABEL * PRED  # 0.2 or 5.7 for a positive, -0.3 for a negative
    assert measure(BinaryClassificationStats(threshold=0.0), [(logits, LABEL)]) == EXPECTED
    assert measure(BinaryClassificationStats(), [(logits, LABEL)]) != EXPECTED


@pytest.mark.parametrize(
    "stats",
    [
        BinaryClassificationStats("guess", "truth"),
        BinaryClassificationStats("guess"),
        BinaryClassificationStats(lambda outputs, targets: outputs["guess"], lambda outputs, targets: targets),
        BinaryClassificationStats(label="truth", pred=lambda outputs, targets: 1 - (1 - outputs["guess"])),
    ],
)
def test_predictions_and_labels_are_read_by_name_or_function(stats):
    assert measure(stats, [({"guess": PRED, "truth": LABEL}, LABEL)]) == EXPECTED


@given(st.lists(st.tuples(st.booleans(), st.booleans()), min_size=1, max_size=30), st.integers(1, 7))
@settings(max_examples=3 * settings.default.max_examples, deadline=None)
def test_counts_match_a_naive_implementation(pairs, size):
    pred, label = (torch.tensor(column) for column in zip(*pairs, strict=True))
    batches = list(zip(pred.split(size), label.split(size), strict=True))
    tp, fp, fn, tn = (pairs.count(pair) for pair in ((True, True), (True, False), (False, True), (False, False)))
    precision, recall = tp / (tp + fp) if tp + fp else 0.0, tp / (tp + fn) if tp + fn else 0.0
    assert measure(BinaryClassificationStats(), batches) == (precision, recall, tp, fp, fn, tn)


# Division by zero


@pytest.mark.parametrize(
    ("pred", "label", "expected"),
    [
        ([0, 0], [1, 0], (0.0, 0.0, 0, 0, 1, 1)),
        ([0, 1], [0, 0], (0.0, 0.0, 0, 1, 0, 1)),
        ([0, 0], [0, 0], (0.0, 0.0, 0, 0, 0, 2)),
        ([1, 1], [1, 1], (1.0, 1.0, 2, 0, 0, 0)),
    ],
)
def test_precision_and_recall_are_zero_when_undefined(pred, label, expected):
    assert measure(BinaryClassificationStats(), [(torch.tensor(pred), torch.tensor(label))]) == expected
    assert measure(BinaryClassificationStats(), [(np.array(pred), np.array(label))]) == expected


def test_a_nan_prediction_is_not_positive():
    assert measure(BinaryClassificationStats(), [(torch.tensor([math.nan, 1.0]), torch.tensor([1, 1]))])[:2] == (1.0, 0.5)


# Errors


def test_the_error_for_a_missing_output_lists_the_outputs():
    message = "BinaryClassificationStats(val_precision) reads 'guess', which is not among the outputs.\n  known     pred\n"
    with pytest.raises(MissingOutput, match=re.escape(message)):
        measure(BinaryClassificationStats("guess"), [({"pred": PRED}, LABEL)])


def test_a_different_number_of_predictions_and_labels_raises():
    message = "prediction shape (8, 2) does not match label shape (8,).\n  give      one prediction per label"
    with pytest.raises(BadValue, match=re.escape(message)):
        measure(BinaryClassificationStats(), [(torch.zeros(8, 2), LABEL)])


@pytest.mark.parametrize(
    ("pred", "label", "message"),
    [
        (3.0, LABEL, "pred must be an array or tensor .*, got float"),
        (PRED, None, "label must be an array or tensor .*, got NoneType"),
    ],
)
def test_predictions_and_labels_that_are_not_arrays_raise(pred, label, message):
    with pytest.raises(BadValue, match=message):
        measure(BinaryClassificationStats(lambda outputs, targets: pred, lambda outputs, targets: label), [(PRED, LABEL)])


@pytest.mark.parametrize("options", [{"pred": 3}, {"label": 0.5}])
def test_an_argument_that_is_neither_a_name_nor_a_function_raises(options):
    with pytest.raises(TypeError, match="must be a name or a function"):
        BinaryClassificationStats(**options)


@pytest.mark.parametrize("threshold", [math.nan, "0.5", None])
def test_a_threshold_that_is_not_a_number_raises(threshold):
    with pytest.raises(ValueError, match="threshold must be a number"):
        BinaryClassificationStats(threshold=threshold)
