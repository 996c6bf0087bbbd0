"""Misspelled names are distinguished from other names."""

from __future__ import annotations

import pytest

from hookpoint.core.text.spelling import near_miss, one_slip_apart


@pytest.mark.parametrize(
    ("a", "b"),
    [("loss", "losss"), ("loss", "los"), ("loss", "lass"), ("loss", "lsos"), ("loss", "xloss"), ("loss", "oss"), ("ab", "ba")],
)
def test_one_added_missing_changed_or_swapped_letter_is_one_slip(a, b):
    assert one_slip_apart(a, b)
    assert one_slip_apart(b, a)


@pytest.mark.parametrize(
    ("a", "b"),
    [
        ("loss", "loss"),
        ("loss", "lossss"),
        ("loss", "lessy"),
        ("loss", "slos"),
        ("abcd", "badc"),
        ("", ""),
        ("abc", "acbd"),
        ("loss", "mass"),
    ],
)
def test_equal_and_more_different_names_are_not_one_slip_apart(a, b):
    assert not one_slip_apart(a, b)
    assert not one_slip_apart(b, a)


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("on_epoch_ends", "on_epoch_end"),
        ("on_epohc_end", "on_epoch_end"),
        ("on_Epoch_end", "on_epoch_end"),
        ("on_end_epoch", "on_epoch_end"),
        ("on_epoch_finish", "on_epoch_end"),
        ("on_epoch_finished", "on_epoch_end"),
        ("on_epoch_stop", "on_epoch_end"),
        ("on_epoch_start", "on_epoch_begin"),
        ("on_epoch_started", "on_epoch_begin"),
        ("on_iteration_begin", "on_iter_begin"),
        ("on_start_iteration", "on_iter_begin"),
        ("val-loss", "val_loss"),
        ("Val_Loss", "val_loss"),
        ("loss_val", "val_loss"),
    ],
)
def test_near_miss_finds_the_intended_name(name, meant):
    assert near_miss(name, ["on_epoch_begin", "on_epoch_end", "on_iter_begin", "val_loss"]) == meant


@pytest.mark.parametrize("name", ["on_epoch_end", "on_tokenize_end", "on_epoch", "loss", "val_acc"])
def test_an_exact_or_unrelated_name_is_not_a_near_miss(name):
    assert near_miss(name, ["on_epoch_end", "val_loss"]) is None


@pytest.mark.parametrize(
    ("name", "other"), [("top1", "top5"), ("acc@1", "acc@10"), ("loss2", "loss"), ("conv_1_2", "conv_1_3")]
)
def test_names_that_differ_only_in_digits_are_not_near_misses(name, other):
    assert near_miss(name, [other]) is None


def test_the_first_of_several_near_misses_is_returned():
    assert near_miss("loses", ["loss", "losses"]) == "loss"
    assert near_miss("loses", ["losses", "loss"]) == "losses"


def test_a_name_is_not_a_near_miss_of_itself():
    assert near_miss("loss", ["loss"]) is None
    assert near_miss("los", ["los", "loss"]) == "loss"
