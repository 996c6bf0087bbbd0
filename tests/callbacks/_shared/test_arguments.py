"""Arguments are returned or rejected, and the message lists the allowed values."""

from __future__ import annotations

import math
import re

import pytest

from hookpoint import callbacks as cb
from hookpoint.callbacks._shared import arguments
from hookpoint.core.errors import BadArgument


@pytest.mark.parametrize(
    ("check", "values", "expected"),
    [
        (arguments.integer, [-1, 1.5, True, "3", None], "an integer >= 0"),
        (arguments.number, [math.nan, math.inf, True, "3", None], "a finite number"),
        (arguments.positive, [0, -1, math.nan, math.inf, True, "3", None], "a number > 0"),
        (arguments.string, ["", 3, None], "a non-empty string"),
        (arguments.function, [3, None, "print"], "a function"),
        (arguments.file_name, ["", ".", "..", "a/b", "a\\b", "a\0", 3], "the name of a file in the workdir, not a path"),
    ],
)
def test_invalid_arguments_raise_and_the_message_says_which_values_are_allowed(check, values, expected):
    for value in values:
        with pytest.raises(BadArgument, match=re.escape(f"Mine: given must be {expected}, got {value!r}.")):
            check("Mine", "given", value)


@pytest.mark.parametrize("value", ["c", "", None, 3, ["a", "c"], [["a"]], []])
def test_choices_outside_the_allowed_values_raise(value):
    with pytest.raises(BadArgument, match=r"^Mine: given must be 'a' or 'b', got "):
        arguments.choices("Mine", "given", value, ("a", "b"))


def test_a_list_is_rejected_where_a_single_choice_is_expected():
    assert arguments.choice("Mine", "given", "a", ("a", "b")) == "a"
    with pytest.raises(BadArgument, match="got \\['a'\\]"):
        arguments.choice("Mine", "given", ["a"], ("a", "b"))


def test_valid_arguments_are_returned():
    assert arguments.integer("Mine", "given", 2, least=2) == 2
    assert arguments.number("Mine", "given", -0.5) == -0.5
    assert arguments.function("Mine", "given", print) is print
    assert arguments.file_name("Mine", "given", "a.txt") == "a.txt"
    assert arguments.choices("Mine", "given", "b", ("a", "b")) == ("b",)
    assert arguments.choices("Mine", "given", iter("ab"), ("a", "b")) == ("a", "b")


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: cb.ProcessTensors(3, print), "ProcessTensors: 3 is not the name of a tensor"),
        (lambda: cb.SendStat(3), "SendStat: the command must be a string or a list of strings, got 3"),
        (lambda: cb.SendStat(["true"], 3), "SendStat: names must be a list of non-empty strings, got 3"),
        (lambda: cb.Notify(3), "Notify: url must be a URL or a list of URLs"),
        (lambda: cb.Notify("ntfys://topic", names=[""]), r"Notify: names must be a list of non-empty strings, got \[''\]"),
        (lambda: cb.MovingAverageSummary(3), "MovingAverageSummary: names must be a list of non-empty strings, got 3"),
        (lambda: cb.MovingAverageSummary(decay="0.9"), "decay must be at least 0 and below 1, got '0.9'"),
        (lambda: cb.SummaryCollector(collect_specified_data="x"), "collect_specified_data must be a dict, got 'x'"),
        (lambda: cb.ProgressBar(None), "ProgressBar: names must be a list of non-empty strings, got None"),
        (lambda: cb.GPUMemoryTracker(0.5), "GPUMemoryTracker: devices must be a list of device indices, got 0.5"),
    ],
)
def test_the_error_for_an_invalid_list_names_the_argument(make, says):
    with pytest.raises(BadArgument, match=says):
        make()
