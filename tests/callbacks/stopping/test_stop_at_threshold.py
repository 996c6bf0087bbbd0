from __future__ import annotations

import math

import pytest

from hookpoint.callbacks import ModelSaver, StopAtThreshold
from hookpoint.core.errors import MissingMetric


@pytest.mark.parametrize(
    ("mode", "values", "epochs"),
    [
        ("min", [3.0, 2.5, 2.0, 1.0], 3),
        ("min", [3.0, 1.0], 2),
        ("max", [1.0, math.nan, 1.5, 2.0, 3.0], 4),
        ("min", [math.nan, math.inf, 3.0], 3),
        ("max", [math.inf, 3.0], 1),
    ],
)
def test_the_run_stops_when_a_value_reaches_the_threshold(train_on_disk, mode, values, epochs, scores):
    assert train_on_disk([StopAtThreshold("score", 2.0, mode)], scores(*values)).epoch == epochs


def test_the_threshold_can_be_zero(train_on_disk, scores):
    assert train_on_disk([StopAtThreshold("score", 0, "min")], scores(1.0, 0.0, -1.0)).epoch == 2


def test_the_default_mode_comes_from_the_metric_name(train_on_disk):
    assert train_on_disk([StopAtThreshold("loss", 0.5)], [{"loss": 0.75}, {"loss": 0.5}, {}]).epoch == 2


def test_the_reason_contains_the_value_and_the_threshold(train_on_disk, scores):
    run = train_on_disk([StopAtThreshold("score", 2.0, "min")], scores(1.5))
    assert run._verdicts.reason == "StopAtThreshold(score): 1.5 is at most 2"


def test_a_stopped_run_stops_again_unless_the_threshold_changes(train_on_disk, scores):
    assert train_on_disk([StopAtThreshold("score", 2.0, "min"), ModelSaver()], scores(3.0, 2.0, 1.0)).epoch == 2
    assert train_on_disk([StopAtThreshold("score", 2.0, "min"), ModelSaver()], scores(3.0, 2.0, 1.0)).epoch == 2
    assert train_on_disk([StopAtThreshold("score", 1.0, "min"), ModelSaver()], scores(3.0, 2.0, 1.0)).epoch == 3


def test_a_second_run_starts_from_scratch(train_on_disk, disk, new_disk, scores):
    callback = StopAtThreshold("score", 2.0, "min")
    for store in (disk, new_disk()):
        assert train_on_disk([callback], scores(3.0, 2.0, 1.0), store=store).epoch == 2


def test_invalid_arguments_and_missing_metrics_raise(train_on_disk):
    with pytest.raises(ValueError, match="threshold must be a finite number, got nan"):
        StopAtThreshold("score", math.nan, "min")
    with pytest.raises(ValueError, match="is ambiguous"):
        StopAtThreshold("score", 1.0)
    with pytest.raises(MissingMetric, match=r"^StopAtThreshold\(score\) reads 'score'"):
        train_on_disk([StopAtThreshold("score", 1.0, "min")], [{}, {}])
