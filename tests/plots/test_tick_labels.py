from __future__ import annotations

import pytest

from hookpoint.plots._tick_labels import tick_texts


@pytest.mark.parametrize(
    ("values", "texts"),
    [
        ([40.0, 60.0, 80.0, 100.0], ["40", "60", "80", "100"]),
        ([0.0, 1000.0, 2000.0, 3000.0], ["0", "1000", "2000", "3000"]),
        ([0.001, 0.1, 10.0, 1000.0], ["0.001", "0.1", "10", "1000"]),
        ([1e4, 1.25e4], ["10000", "12500"]),
        ([0.0, 2e7, 4e7], ["0", "2e7", "4e7"]),
        ([1.00000001e9, 1.00000002e9], ["1.00000001e9", "1.00000002e9"]),
        ([0.0, 2e-9], ["0", "2e-9"]),
    ],
)
def test_tick_labels_use_exponents_only_if_they_are_shorter(values, texts):
    assert tick_texts(values) == texts
