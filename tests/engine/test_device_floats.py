from __future__ import annotations

import pytest
import torch

from hookpoint.engine.device_floats import device_floats


@pytest.mark.parametrize(
    "values",
    [
        [],
        [1, 2.5],
        [torch.tensor(1.0), torch.tensor([[2.5]])],
        [torch.tensor(1.0, dtype=torch.bfloat16), torch.tensor(2.5, dtype=torch.float64)],
        [torch.tensor(1.0), 2.5],
        [1, torch.tensor(2.5)],
    ],
    ids=["none", "numbers", "tensors", "several types", "tensors first", "numbers first"],
)
def test_values_are_converted_to_floats_in_order(values):
    floats = device_floats(values)()
    assert floats == [1.0, 2.5][: len(values)]
    assert all(type(number) is float for number in floats)
