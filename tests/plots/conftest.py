"""Factories for series and runs to draw."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field

import pytest

from hookpoint.plots.figure_layout import Subject


@dataclass
class Values:
    """A series with one value every `stride` steps."""

    name: str
    values: Sequence[float]
    at: str = "step"
    stride: int = 1
    steps_per_epoch: int = 10
    steps: array = field(init=False)
    epochs: array = field(init=False)
    times: array = field(init=False)
    smoothed: None = None

    @property
    def count(self):
        return len(self.values)

    def __post_init__(self):
        self.steps = array("q", [self.stride * (index + 1) for index in range(len(self.values))])
        self.epochs = array("q", [1 + (step - 1) // self.steps_per_epoch for step in self.steps])
        self.times = array("d", [1_700_000_000.0 + step for step in self.steps])


@pytest.fixture
def values():
    return Values


@pytest.fixture
def subject():
    def make(*series, name="mine", **others):
        return Subject(name, {(one.name, one.at): one for one in series}, **others)

    return make
