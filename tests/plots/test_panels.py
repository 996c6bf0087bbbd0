from __future__ import annotations

import pytest

from hookpoint.plots.panels import UnknownCurve, choose_panels, is_validation


def groups(*known, asked=(), watched=()):
    drawn, left = choose_panels(known, asked, watched)
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
def test_other_names_are_no_pairs(name):
    assert groups(name) == ([(name,)], [])
    assert is_validation(name) == (name == "val_")


def test_the_loss_is_first_then_what_savers_watch_then_what_is_validated_and_the_rate_is_last():
    drawn, left = groups(
        "learning_rate", "zeal", "accuracy", "val_accuracy", "loss", "a", "val_loss", "f1", asked=(), watched={"f1"}
    )
    assert drawn == [("loss", "val_loss"), ("f1",), ("accuracy", "val_accuracy"), ("a",), ("zeal",), ("learning_rate",)]
    assert left == []


def test_six_panels_are_drawn_and_the_rest_is_named():
    drawn, left = groups(*"abcdefgh", "lr", "lr/1", "loss", "loss/ema")
    assert drawn == [("loss",), ("a",), ("b",), ("c",), ("d",), ("lr",)]
    assert left == ["e", "f", "g", "h", "loss/ema", "lr/1"]


def test_what_is_asked_for_is_drawn_in_that_order_however_much_it_is():
    assert groups("a", "b", "val_a", "val_b", asked=["b", "val_*"]) == ([("b", "val_b"), ("val_a",)], [])
    assert len(groups(*map(str, range(20)), asked=["*"])[0]) == 20


def test_a_name_is_a_name_before_it_is_a_pattern():
    assert groups("w[0]", "w0", asked=["w[0]"])[0] == [("w[0]",)]


def test_an_unknown_name_is_refused_with_what_there_is():
    with pytest.raises(UnknownCurve, match=r"there is no metric 'los'; did you mean loss\? Known: loss, val_loss"):
        groups("loss", "val_loss", asked=["los"])
    with pytest.raises(UnknownCurve, match=r"there is no metric '\?\[31m'\. Known: none"):
        groups(asked=["\x1b[31m"])
