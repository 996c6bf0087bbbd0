from __future__ import annotations

import pytest

from hookpoint.plots.panels import UnknownCurve, choose_panels, is_validation


def groups(*known, requested=(), watched=()):
    drawn, left = choose_panels(known, requested, watched)
    return [group.names for group in drawn], left


@pytest.mark.parametrize(
    ("training", "validation"),
    [
        ("loss", "val_loss"),
        ("loss", "validation/loss"),
        ("train_loss", "val_loss"),
        ("error-top1", "val-error-top1"),
        ("train-error-top1", "validation-error-top1"),
    ],
)
def test_training_and_validation_share_a_panel(training, validation):
    assert groups(validation, training) == ([(training, validation)], [])


@pytest.mark.parametrize("name", ["value", "valley", "evaluation_loss", "val", "val_"])
def test_other_names_are_not_pairs(name):
    assert groups(name) == ([(name,)], [])
    assert is_validation(name) == (name == "val_")


def test_panels_start_with_the_loss_and_end_with_the_learning_rate():
    drawn, left = groups(
        "learning_rate", "zeal", "accuracy", "val_accuracy", "loss", "a", "val_loss", "f1", requested=(), watched={"f1"}
    )
    assert drawn == [("loss", "val_loss"), ("f1",), ("accuracy", "val_accuracy"), ("a",), ("zeal",), ("learning_rate",)]
    assert left == []


def test_six_panels_are_drawn_and_other_metrics_are_listed():
    drawn, left = groups(*"abcdefgh", "lr", "lr/1", "loss", "loss/ema")
    assert drawn == [("loss",), ("a",), ("b",), ("c",), ("d",), ("lr",)]
    assert left == ["e", "f", "g", "h", "loss/ema", "lr/1"]


def test_requested_metrics_keep_their_order_and_have_no_limit():
    assert groups("a", "b", "val_a", "val_b", requested=["b", "val_*"]) == ([("b", "val_b"), ("val_a",)], [])
    assert len(groups(*map(str, range(20)), requested=["*"])[0]) == 20


def test_an_exact_name_wins_over_a_pattern():
    assert groups("w[0]", "w0", requested=["w[0]"])[0] == [("w[0]",)]


def test_an_unknown_name_raises_and_lists_known_names():
    with pytest.raises(UnknownCurve, match=r"there is no metric 'los'; did you mean loss\? Known: loss, val_loss"):
        groups("loss", "val_loss", requested=["los"])
    with pytest.raises(UnknownCurve, match=r"there is no metric '\?\[31m'\. Known: none"):
        groups(requested=["\x1b[31m"])
