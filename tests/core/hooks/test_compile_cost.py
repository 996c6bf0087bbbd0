"""The work of compiling is proportional to the number of callbacks, counted in function calls instead of seconds."""

from __future__ import annotations

import sys

import pytest

from hookpoint import Callback, Every, Hooks
from hookpoint.callbacks import PeriodicTrigger


class Reads(Callback):
    reads = ("x",)

    def on_epoch_end(self, run): ...
    def on_trigger(self, run): ...


class Writes(Callback):
    writes = ("x",)

    def on_epoch_end(self, run): ...


class First(Reads):
    before = ("Writes",)
    reads = ()


LISTS = {
    "a writer, then its readers": lambda number: [Writes(), *(Reads() for _ in range(number))],
    "readers, then their writer": lambda number: [*(Reads() for _ in range(number)), Writes()],
    "one after the other by name": lambda number: [
        type(f"C{one}", (Reads,), {"after": (f"C{one - 1}",), "reads": ()})() for one in range(number)
    ],
    "before one": lambda number: [Writes(), *(First() for _ in range(number))],
    "pipelines": lambda number: [PeriodicTrigger(Reads(), every_k_steps=2) for _ in range(number)],
    "schedules": lambda number: [Reads().when(Every(steps=2)) for _ in range(number)],
}


def calls_to_compile(callbacks):
    """Return the number of function calls, including C functions."""
    number = 0

    def count(frame, event, argument):
        nonlocal number
        number += event in ("call", "c_call")

    sys.setprofile(count)
    try:
        Hooks(callbacks)
    finally:
        sys.setprofile(None)
    return number


@pytest.mark.parametrize("case", LISTS)
def test_four_times_as_many_callbacks_take_about_four_times_the_work(case):
    few, many = (calls_to_compile(LISTS[case](number)) for number in (25, 100))
    assert many < 5.5 * few


def test_without_declarations_the_order_is_that_of_the_list():
    hooks = Hooks([Reads(name=f"r{number}") for number in range(30)])
    assert [call.entry.name for call in hooks.calls("on_epoch_end")][::2] == [f"r{number}" for number in range(30)]


def test_names_that_look_numbered_stay_unique():
    names = ["a", "a", "a#2", "a", "a#2#2", "a#3"]
    hooks = Hooks([Reads(name=name) for name in names])
    found = [entry.name for entry in hooks.entries]
    assert len(set(found)) == len(names)
    assert found[:2] == ["a", "a#2"]
