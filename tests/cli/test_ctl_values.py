"""NAME=VALUE: the type of a value depends on its knob."""

from __future__ import annotations

import pytest

from hookpoint.cli._ctl_values import parse_settings, types_of
from hookpoint.run_folder.command_error import USAGE, CommandError


@pytest.mark.parametrize(
    ("text", "kind", "value"),
    [
        ("0.01", "float", 0.01),
        ("1e-3", "float", 0.001),
        ("1", "float", 1),
        ("-2", "int", -2),
        ("1e3", "int", 1000),
        ("true", "bool", True),
        ("Off", "bool", False),
        ("1", "bool", True),
        ("1", "str", "1"),
        ("a=b", "str", "a=b"),
        ("[0.9, 0.99]", "list", [0.9, 0.99]),
        ("3", "", 3),
        ("0.5", "", 0.5),
        ("yes", "", True),
        ("fast", "", "fast"),
        ('"3"', "", "3"),
        ("[1]", "", [1]),
        ("{}", "", "{}"),
        ("nan", "", "nan"),
    ],
)
def test_a_value_has_the_type_of_its_knob_or_an_inferred_type(text, kind, value):
    (found,) = parse_settings([f"x={text}"], {"x": kind} if kind else {}).values()
    assert (found, type(found)) == (value, type(value))


@pytest.mark.parametrize(
    ("pair", "kind", "message"),
    [
        ("x", "", "expected NAME=VALUE, got x"),
        ("=1", "", "expected NAME=VALUE"),
        ("x=", "", "expected NAME=VALUE"),
        ("x=abc", "float", "x must be a number, got abc"),
        ("x=nan", "float", "x must be a number"),
        ("x=inf", "float", "x must be a number"),
        ("x=" + "9" * 5000, "float", "x must be a number"),
        ("x=0.5", "int", "x must be an integer, got 0.5"),
        ("x=2", "bool", "x must be true or false, got 2"),
        ("x=1", "list", "x must be a JSON list"),
        ("\x1b[2J", "", "expected NAME=VALUE, got ?[2J"),
    ],
)
def test_a_value_of_another_type_is_wrong_usage(pair, kind, message):
    with pytest.raises(CommandError) as raised:
        parse_settings([pair], {"x": kind} if kind else {})
    assert raised.value.code == USAGE
    assert message in str(raised.value)


def test_all_names_of_a_knob_have_its_type():
    assert types_of({"lr": "float", "A(x).n": "int", "B(x).n": "int", "B(y).n": "bool"}) == {
        "lr": "float",
        "learning_rate": "float",
        "A(x).n": "int",
        "A.n": "int",
        "B(x).n": "int",
        "B(y).n": "bool",
    }


def test_a_name_given_twice_raises():
    with pytest.raises(CommandError, match="x is given twice"):
        parse_settings(["x=1", "x=2"], {})
