from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from torch.utils.data import ConcatDataset, DataLoader, Subset, TensorDataset, random_split

from hookpoint.core.data.data_graph import MAX_DEPTH, MAX_INDICES, graph_of


def classes(node):
    """Return the classes of a graph as nested lists."""
    inputs = [classes(one) for one in node.get("inputs", ())]
    return [node["class"], *inputs] if inputs else node["class"]


def test_the_graph_lists_the_objects_that_data_passes_through():
    data = TensorDataset(torch.ones(10))
    parts = random_split(data, [6, 4])
    graph = graph_of(DataLoader(ConcatDataset([*parts, data]), batch_size=4))
    subset = ["Subset", "TensorDataset"]
    assert classes(graph) == ["DataLoader", ["ConcatDataset", subset, subset, "TensorDataset"]]
    assert (graph["length"], graph["inputs"][0]["length"]) == (5, 20)


def test_subsets_differ_by_their_indices():
    data = TensorDataset(torch.ones(10))
    first, same, other, wide, many = (
        graph_of(Subset(data, indices)).get("digest")
        for indices in ([1, 2], [1, 2], [2, 1], range(10), [0] * (MAX_INDICES + 1))
    )
    assert first == same != other
    assert wide is not None
    assert many is None
    assert "digest" not in graph_of(Subset(data, ["a"]))


def test_a_fingerprint_is_used_as_the_digest():
    data = SimpleNamespace(_fingerprint="abc123")
    assert graph_of(data) == {"class": "SimpleNamespace", "digest": "abc123"}


def test_a_loader_inside_itself_is_cut_at_the_maximum_depth():
    odd = SimpleNamespace()
    odd.datasets = [odd]
    node, depth = graph_of(odd), 0
    while "inputs" in node:
        (node,), depth = node["inputs"], depth + 1
    assert depth == MAX_DEPTH


def test_a_property_is_not_read():
    class Loads:
        @property
        def dataset(self):
            pytest.fail("data was loaded")

    assert graph_of(Loads()) == {"class": "Loads"}
