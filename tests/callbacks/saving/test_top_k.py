from __future__ import annotations

import json
import math
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hookpoint.callbacks.saving._top_k import TopK


@given(st.integers(1, 5), st.sampled_from(["min", "max"]), st.lists(st.floats()))
def test_the_best_k_values_are_ranked_and_ties_go_to_the_earlier_value(k, mode, values):
    top = TopK(k, mode)
    said = [top.take(value, step) for step, value in enumerate(values)]
    real = [(value, step) for step, value in enumerate(values) if not math.isnan(value)]
    expected = sorted(real, key=lambda pair: (pair[0] if mode == "min" else -pair[0], pair[1]))[:k]
    assert top.ranking == expected
    assert [step for step in range(len(values)) if step in top] == sorted(step for _, step in expected)
    assert all(said[step] for _, step in expected)


def test_a_second_value_for_a_step_replaces_the_first():
    top = TopK(2, "min")
    assert top.take(1.0, 10)
    assert top.take(2.0, 20)
    assert not top.take(5.0, 30)
    assert top.take(0.5, 20)
    assert top.ranking == [(0.5, 20), (1.0, 10)]


def test_the_state_survives_json_and_reset_discards_it():
    first, second = TopK(2, "max"), TopK(2, "max")
    first.take(0.1, 1)
    first.take(0.2, 2)
    second.load_state_dict(json.loads(json.dumps(first.state_dict())))
    assert second.ranking == first.ranking == [(0.2, 2), (0.1, 1)]
    second.reset()
    assert second.ranking == []
    assert 2 not in second


@pytest.mark.parametrize("k", [0, -1, 2.0, True, "3", None])
def test_k_must_be_a_positive_integer(k):
    message = f"TopKSaver: k must be an integer >= 1, got {k!r}."
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        TopK(k)
