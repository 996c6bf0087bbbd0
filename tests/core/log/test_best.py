from __future__ import annotations

import json
import math
import re

import pytest

from hookpoint.core.log.best import Best, clear_mode_of, mode_of


def taken(best, values):
    return [value for step, value in enumerate(values, 1) if best.take(value, step)]


@pytest.mark.parametrize(
    ("mode", "values", "bests"),
    [
        ("min", [3.0, 2.0, 2.0, 2.5, 1.0], [3.0, 2.0, 1.0]),
        ("max", [1.0, 2.0, 2.0, 1.5, 3.0], [1.0, 2.0, 3.0]),
        ("min", [1.0, 0.0, 0.5, -1.0], [1.0, 0.0, -1.0]),
        ("max", [-1.0, 0.0, -0.5], [-1.0, 0.0]),
        ("min", [math.nan, 1.0, math.nan, 0.5], [1.0, 0.5]),
        ("max", [math.nan, 1.0, math.nan, 1.5], [1.0, 1.5]),
        ("min", [math.inf, math.inf, 1.0], [math.inf, 1.0]),
        ("min", [-math.inf, -math.inf, 1.0], [-math.inf]),
        ("max", [-math.inf, -math.inf, 1.0, math.inf], [-math.inf, 1.0, math.inf]),
        ("min", [math.nan, math.inf, math.nan, 1.0], [math.inf, 1.0]),
    ],
)
def test_only_a_strictly_better_value_is_taken(mode, values, bests):
    assert taken(Best(mode), values) == bests


def test_value_and_step_are_those_of_the_best():
    best = Best("max")
    assert (best.value, best.step) == (None, None)
    taken(best, [1.0, 3.0, 2.0])
    assert (best.value, best.step) == (3.0, 2)


def test_an_improvement_must_exceed_min_delta():
    assert taken(Best("min", min_delta=0.5), [2.0, 1.6, 1.5, 1.25, 0.875]) == [2.0, 1.25]
    assert taken(Best("max", min_delta=0.5), [1.0, 1.5, 1.625]) == [1.0, 1.625]
    assert taken(Best("min", min_delta=0.5), [math.inf, math.inf, 1e300]) == [math.inf, 1e300]


def test_the_first_value_must_beat_the_threshold():
    assert taken(Best("min", threshold=1.0), [2.0, 1.0, 0.5, 0.75]) == [0.5]
    assert taken(Best("max", threshold=0.0), [-1.0, 0.0, 0.5]) == [0.5]
    assert taken(Best("min", threshold=math.inf), [math.inf, math.nan, 2.0]) == [2.0]


def test_is_beaten_by_does_not_change_the_best():
    best = Best("min")
    assert best.is_beaten_by(1.0)
    assert best.is_beaten_by(1.0)
    assert not best.is_beaten_by(math.nan)
    assert best.value is None


def test_the_state_survives_json_and_is_cleared_by_reset():
    first, second = Best("max"), Best("max")
    taken(first, [0.1, 0.30000000000000004])
    second.load_state_dict(json.loads(json.dumps(first.state_dict())))
    assert (second.value, second.step) == (0.30000000000000004, 2)
    assert not second.take(0.30000000000000004, 3)
    second.reset()
    assert (second.value, second.step) == (None, None)
    assert second.take(0.1, 4)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Best("auto"), "mode must be 'min' or 'max', got 'auto'."),
        (lambda: Best(min_delta=-1), "min_delta must be a number >= 0, got -1."),
        (lambda: Best(min_delta=math.nan), "min_delta must be a number >= 0, got nan."),
        (lambda: mode_of("loss", "least"), "mode must be 'auto', 'min' or 'max', got 'least'."),
        (
            lambda: mode_of("score", "auto"),
            "mode='auto': the name 'score' is ambiguous.\n  write     mode='min' or mode='max'",
        ),
        (
            lambda: mode_of("error_of_accuracy", "auto"),
            ("mode='auto': the name 'error_of_accuracy' is ambiguous.\n  write     mode='min' or mode='max'"),
        ),
    ],
)
def test_invalid_arguments_raise(make, message):
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        make()


@pytest.mark.parametrize(
    ("metric", "mode"),
    [
        ("loss", "min"),
        ("val_loss", "min"),
        ("val-error-top1", "min"),
        ("Val/RMSE", "min"),
        ("acc", "max"),
        ("val_accuracy", "max"),
        ("acc@5", "max"),
        ("acc1", "max"),
        ("macro_f1", "max"),
    ],
)
def test_auto_infers_the_mode_from_the_name(metric, mode):
    assert mode_of(metric, "auto") == mode


def test_an_explicit_mode_takes_precedence_over_the_name():
    assert mode_of("loss", "max") == "max"


@pytest.mark.parametrize(
    ("metric", "mode"),
    [
        ("acc", "max"),
        ("val_acc", "max"),
        ("Train/Accuracy", "max"),
        ("val-error-top1", "min"),
        ("val_loss", "min"),
        ("val", None),
        ("neg_loss", None),
        ("loss_scale", None),
        ("acc_drop", None),
        ("acc_loss", None),
        ("lossless", None),
        ("f1", None),
        ("map", None),
        ("score", None),
        ("", None),
    ],
)
def test_only_an_accuracy_an_error_or_a_loss_has_a_clear_mode(metric, mode):
    assert clear_mode_of(metric) == mode
