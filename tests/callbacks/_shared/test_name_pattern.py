"""Globs and regular expressions select modules and parameters by name. An error for a typo lists the known names."""

from __future__ import annotations

import re

import pytest

from hookpoint.callbacks._shared.name_pattern import NamePattern
from hookpoint.core.errors import BadArgument, BadLoop

NAMES = ["", "conv1", "conv1.norm", "layers.0.linear1", "layers.0.linear2", "layers.1.linear1", "head"]


def fitting(pattern):
    return [name for name in NAMES if NamePattern("Tap", pattern).matches(name)]


@pytest.mark.parametrize(
    ("pattern", "names"),
    [
        ("conv1", ["conv1"]),
        ("*", NAMES[1:]),
        ("", [""]),
        (["", "head"], ["", "head"]),
        ("layers.*", ["layers.0.linear1", "layers.0.linear2", "layers.1.linear1"]),
        ("layers.[1-9].*", ["layers.1.linear1"]),
        ("*.linear?", ["layers.0.linear1", "layers.0.linear2", "layers.1.linear1"]),
        ("Head", []),
        (re.compile(r"\.linear1$"), ["layers.0.linear1", "layers.1.linear1"]),
        (re.compile(r".*"), NAMES[1:]),
        (("head", re.compile("^conv1$")), ["conv1", "head"]),
    ],
)
def test_patterns_match_names(pattern, names):
    assert fitting(pattern) == names


@pytest.mark.parametrize("pattern", [None, 3, [], [None], re.compile(b"x"), ["head", 1]])
def test_an_invalid_pattern_raises(pattern):
    with pytest.raises(BadArgument, match=r"^Tap: .* is not a pattern\.\n  give      a glob such as"):
        NamePattern("Tap", pattern)


def test_an_object_with_two_names_is_returned_once_under_the_first_match():
    one, other = object(), object()
    named = [("a", one), ("b", other), ("c", one)]
    assert NamePattern("Tap", "*").require("Tap", "module", named) == {"a": one, "b": other}
    assert NamePattern("Tap", "c").require("Tap", "module", named) == {"c": one}


def chosen(pattern, names=NAMES):
    return list(NamePattern("Tap", pattern).require("Tap(x)", "module", [(name, object()) for name in names]))


def test_every_pattern_must_match_something():
    assert chosen(["head", "conv1"]) == ["conv1", "head"]
    with pytest.raises(BadLoop, match=r"^Tap\(x\): 'layers\.0\.liner1' matches no module\.\n  similar   layers\.0\.linear1, "):
        chosen(["head", "layers.0.liner1"])


def test_without_a_similar_name_the_error_lists_the_known_names():
    with pytest.raises(BadLoop, match=r"'\^zzz' matches no module\.\n  known     conv1, conv1\.norm, .*, head$"):
        chosen(re.compile("^zzz"))
    with pytest.raises(BadLoop, match=r"known     0, 1, 2, 3, 4, 5, 6, 7 and 12 more"):
        chosen("zzz", [str(number) for number in range(20)])
    with pytest.raises(BadLoop, match="known     only '', the model itself"):
        chosen("zzz", [""])


def test_a_pattern_without_a_model_raises():
    with pytest.raises(BadLoop, match=r"^Tap\(x\) found no module\.\n  give      model=\.\.\., a torch\.nn\.Module"):
        chosen("*", [])


def test_str_lists_the_patterns():
    assert str(NamePattern("Tap", ["a.*", "", re.compile("^b")])) == "a.*, '', ^b"
