from __future__ import annotations

import math

import pytest

from hookpoint.callbacks.hyper_params.reduce_lr_on_plateau import Plateau


def reductions(plateau, values):
    """Return at which values it reduces, where each time it is done."""
    found = []
    for number, value in enumerate(values, 1):
        if plateau.take(value, number):
            plateau.start_cooling()
            found.append(number)
    return found


@pytest.mark.parametrize(
    ("options", "values", "found"),
    [
        ({"patience": 2}, [3.0, 2.0, 2.0, 2.0, 2.0, 2.0], [4, 6]),
        ({"patience": 0}, [3.0, 2.0, 2.0, 1.0, 1.5], [3, 5]),
        ({"patience": 1}, [3.0, 2.0, 2.0, 1.0, 1.5], [3, 5]),  # as in Keras, where 0 and 1 are one
        ({"patience": 1, "min_delta": 0.5}, [3.0, 2.75, 2.25, 1.75], [2, 4]),
        ({"patience": 1, "cooldown": 2}, [1.0] * 8, [2, 4, 6, 8]),
        ({"patience": 2, "cooldown": 1}, [1.0] * 8, [3, 5, 7]),
        ({"patience": 1}, [math.nan, 1.0, math.nan, 0.5], [1, 3]),
        ({"patience": 1}, [0.0, 0.0], [2]),
        ({"patience": 2}, [math.inf, math.inf, 5.0, 4.0], []),
        ({"patience": 1}, [math.nan, math.inf, math.inf, 5.0], [1, 3]),
    ],
)
def test_when_to_reduce(options, values, found):
    assert reductions(Plateau("min", **options), values) == found
    assert reductions(Plateau("max", **options), [-value for value in values]) == found


def test_what_was_not_reduced_is_asked_for_again():
    plateau = Plateau("min", patience=2)
    assert [plateau.take(1.0, step) for step in range(5)] == [False, False, True, True, True]


@pytest.mark.parametrize("cut", range(9))
def test_the_state_is_all_there_is(cut):
    values = [3.0, 2.0, 2.0, 2.5, 1.0, 1.0, 1.0, 1.0, 1.0]
    options = {"patience": 2, "cooldown": 1}
    first, second = Plateau("min", **options), Plateau("min", **options)
    found = reductions(first, values[:cut])
    second.load_state_dict(first.state_dict())
    assert found + [cut + number for number in reductions(second, values[cut:])] == reductions(
        Plateau("min", **options), values
    )
