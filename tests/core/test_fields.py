from __future__ import annotations

from collections import OrderedDict, UserDict
from dataclasses import dataclass
from typing import Any, NamedTuple

import pytest

from hookpoint.core.fields import field_values, named_fields, target_field


@dataclass
class Fields:
    x: Any
    y: Any


class Pair(NamedTuple):
    x: Any
    y: Any


class Graphs:
    def to(self, device): ...

    def keys(self):
        return ["x", "y"]

    def to_dict(self):
        return {"x": 1, "y": 2}


@pytest.mark.parametrize(
    "value", [Fields(1, 2), Pair(1, 2), Graphs(), {"x": 1, "y": 2}, OrderedDict(x=1, y=2), UserDict(x=1, y=2)]
)
def test_named_fields_returns_the_parts_of_a_value(value):
    assert dict(named_fields(value)) == {"x": 1, "y": 2}
    assert list(field_values(value)) == [1, 2]
    assert target_field(named_fields(value)) == 2


@pytest.mark.parametrize(("value", "parts"), [([1, 2], [1, 2]), ((1,), [1]), (3, []), (None, []), (Graphs, []), (Fields, [])])
def test_values_without_named_parts_have_no_named_fields(value, parts):
    assert not named_fields(value)
    assert list(field_values(value)) == parts


def test_an_ambiguous_or_missing_target_gives_no_target_field():
    assert target_field({"labels": 1, "target": 2}) is None
    assert target_field({"x": 1}) is None
