"""Names of modules and parameters are chosen by globs and expressions, and a slip is told from what there is."""

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
def test_what_fits(pattern, names):
    assert fitting(pattern) == names


@pytest.mark.parametrize("pattern", [None, 3, [], [None], re.compile(b"x"), ["head", 1]])
def test_what_is_no_pattern_is_refused(pattern):
    with pytest.raises(BadArgument, match=r"^Tap: .* is not a pattern\.\n  give      a glob such as"):
        NamePattern("Tap", pattern)


def test_a_thing_with_two_names_is_there_once_by_the_first_that_fits():
    one, other = object(), object()
    named = [("a", one), ("b", other), ("c", one)]
    assert NamePattern("Tap", "*").require("Tap", "module", named) == {"a": one, "b": other}
    assert NamePattern("Tap", "c").require("Tap", "module", named) == {"c": one}


def chosen(pattern, names=NAMES):
    return list(NamePattern("Tap", pattern).require("Tap(x)", "module", [(name, object()) for name in names]))


def test_each_pattern_has_to_fit_something():
    assert chosen(["head", "conv1"]) == ["conv1", "head"]
    with pytest.raises(BadLoop, match=r"^Tap\(x\): 'layers\.0\.liner1' matches no module\.\n  similar   layers\.0\.linear1, "):
        chosen(["head", "layers.0.liner1"])


def test_without_a_near_name_it_says_what_there_is():
    with pytest.raises(BadLoop, match=r"'\^zzz' matches no module\.\n  known     conv1, conv1\.norm, .*, head$"):
        chosen(re.compile("^zzz"))
    with pytest.raises(BadLoop, match=r"known     0, 1, 2, 3, 4, 5, 6, 7 and 12 more"):
        chosen("zzz", [str(number) for number in range(20)])
    with pytest.raises(BadLoop, match="known     only '', the model itself"):
        chosen("zzz", [""])


def test_without_a_model_it_says_so():
    with pytest.raises(BadLoop, match=r"^Tap\(x\) found no module\.\n  give      model=\.\.\., a torch\.nn\.Module"):
        chosen("*", [])


def test_it_spells_itself():
    assert str(NamePattern("Tap", ["a.*", "", re.compile("^b")])) == "a.*, '', ^b"
