from __future__ import annotations

from collections import OrderedDict, UserDict, namedtuple
from dataclasses import dataclass
from typing import NamedTuple

import pytest

from hookpoint.core.errors import BadLoop, BadValue
from hookpoint.core.loop.loop import Loop


class Array:
    def __init__(self, *shape):
        self.shape = shape


class Pair(NamedTuple):
    x: object
    y: object


class Counted(NamedTuple):
    x: object
    batch_size: int


@dataclass
class Columns:
    x: object
    y: object = None


@dataclass
class Graphs:
    """A batch of a graph loader: its graphs are joined into one graph with many nodes."""

    edge_index: object
    x: object
    num_graphs: object = None
    batch_size: object = None


class Opaque:
    """Has only the given attributes."""

    def __init__(self, **attributes):
        vars(self).update(attributes)


class Failing:
    """A batch whose number of graphs cannot be inferred."""

    batch_size = 5

    @property
    def num_graphs(self):
        raise ValueError("cannot infer the number of graphs")


class Method:
    def batch_size(self):
        return 5


class Whole(int):
    """An integer of another library."""


def counted(batch, **options):
    with Loop(**options) as run:
        for _ in run.batches([batch]):
            pass
    return run.samples


@pytest.mark.parametrize(
    ("batch", "count"),
    [
        (Array(8, 3), 8),
        (Array(0, 3), 0),
        (Array(), 1),
        ((Array(8, 3), Array(9)), 8),
        ([Array(8, 3), Array(9)], 8),
        ((Array(8, 3), None), 8),
        ([Array(8, 3)], 8),
        ({"x": Array(8, 3), "y": Array(8)}, 8),
        (OrderedDict(x=Array(8, 3), y=Array(8)), 8),
        (UserDict(input_ids=Array(8, 16), labels=Array(8)), 8),
        (Pair(Array(8), Array(8)), 8),
        (Columns(Array(8)), 8),
        (Columns({"x": Array(8)}), 8),
        (Columns, 1),
        (({"x": [Array(8)]}, Array(8)), 8),
        (["a", "b", "c"], 3),
        ([["a", "b", "c"], [0, 1]], 3),
        ((["a", "b"], [0, 1, 0]), 2),
        ([(Array(3), 0), (Array(3), 1)], 2),
        ([["a", "b"], Array(2)], 2),
        ("text", 1),
        (3.5, 1),
        (None, 1),
        (object(), 1),
        ([], 1),
        ((), 1),
        ({}, 1),
    ],
)
def test_a_batch_has_as_many_samples_as_its_arrays_are_long(batch, count):
    assert counted(batch) == count


@pytest.mark.parametrize(
    ("batch", "count"),
    [
        ({"edge_index": Array(2, 40), "x": Array(8, 3), "y": Array(8)}, 8),
        ((Array(2, 40), Array(8, 3), Array(8)), 8),
        (UserDict(edge_index=Array(2, 40), x=Array(8, 3), y=Array(8)), 8),
        (Graphs(Array(2, 40), {"x": Array(8, 3), "z": Array(8)}), 8),
        (({"edge_index": Array(2, 40), "x": Array(8, 3)}, Array(8)), 8),
        ({"graph": {"edge_index": Array(2, 40), "x": [Array(8, 3)]}, "y": (Array(8),)}, 8),
        ({"temperature": Array(), "x": Array(8, 3)}, 8),
        (("name", {"x": Array(8, 3)}), 8),
        ((Array(4), Array(8), Array(8), Array(4)), 4),
        ((Array(2), Array(8), Array(8), Array(4), Array(4)), 8),
        ((Array(), Array()), 1),
    ],
)
def test_the_most_common_first_dimension_is_the_number_of_samples(batch, count):
    assert counted(batch) == count


def test_inputs_take_precedence_over_a_list_of_targets():
    targets = [{"boxes": Array(number, 4), "labels": Array(number), "size": Array(2)} for number in range(1, 9)]
    assert counted((Array(8, 3, 4, 4), targets)) == 8


@pytest.mark.parametrize(
    ("batch", "count"),
    [
        (Graphs(Array(2, 40), Array(30, 3), num_graphs=4), 4),
        (Graphs(Array(2, 40), Array(30, 3), num_graphs=4, batch_size=5), 4),
        (Graphs(Array(2, 40), Array(30, 3), batch_size=5), 5),
        (Graphs(Array(2, 40), Array(30, 3), num_graphs=0), 0),
        (Counted(Array(30, 3), 5), 5),
        (Opaque(num_graphs=4), 4),
        (Opaque(num_graphs=Whole(4)), 4),
        (Failing(), 5),
        ((Opaque(num_graphs=4), Array(30)), 4),
        ({"graph": Opaque(num_graphs=4), "y": Array(30)}, 4),
        ([Opaque(num_graphs=4), Opaque(num_graphs=4)], 4),
    ],
)
def test_a_batch_can_declare_its_number_of_samples(batch, count):
    assert counted(batch) == count


@pytest.mark.parametrize("said", [True, -1, 2.5, "4", (8,), None, lambda: 4])
def test_an_attribute_that_is_not_a_count_is_ignored(said):
    assert counted(Graphs(Array(8, 3), Array(8), num_graphs=said, batch_size=said)) == 8
    assert counted(Method()) == 1


def test_numpy_integers_are_accepted_as_counts():
    numpy = pytest.importorskip("numpy")
    assert counted(Opaque(num_graphs=numpy.int64(4))) == 4
    assert counted(Array(8), samples=lambda batch: numpy.int32(4)) == 4


def test_a_named_tuple_is_counted_by_its_arrays():
    assert counted(namedtuple("Three", "index x y")(Array(2), Array(8), Array(8))) == 8


# A samples function


def test_a_function_returns_the_number_of_samples_of_a_batch():
    batches = [["a b", "c"], ["d e f"]]
    with Loop(samples=lambda batch: sum(len(one.split()) for one in batch)) as run:
        for batch in run.batches(batches):
            run.log(short=float(batch == ["d e f"]))
        assert run.samples == 6
        assert run.metrics["short"] == 0.5
        for batch in run.batches(batches[:1] * 2 + batches[1:], "val"):
            run.log(short=float(batch == ["d e f"]))
        assert run.metrics["val_short"] == pytest.approx(3 / 9)
        assert run.samples == 6


def test_the_function_is_not_called_for_predictions():
    with Loop(samples=lambda batch: len(batch["labels"])) as run:
        for batch in run.batches([{"x": Array(8)}], "pred"):
            assert batch


@pytest.mark.parametrize("count", [-1, True, 2.0, "4", None, (4,), float("nan")])
def test_an_invalid_count_raises_with_its_value(count):
    with pytest.raises(BadValue) as caught:
        counted(Array(8), samples=lambda batch: count)
    assert str(caught.value) == (
        f"samples= returned {count!r} for a batch of type Array.\n"
        "  expected  an integer >= 0\n  return    int(...) of the count"
    )


def test_an_error_in_the_function_propagates():
    with pytest.raises(KeyError, match="labels"):
        counted({}, samples=lambda batch: len(batch["labels"]))


def test_samples_that_is_not_a_function_raises_at_once():
    with pytest.raises(BadLoop, match="samples must be a function that takes the batch, got 8"):
        Loop(samples=8)
