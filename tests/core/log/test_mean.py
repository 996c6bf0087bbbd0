from __future__ import annotations

import math
import random
import sys

import pytest
from tests.core.log.device_tensor import Tensor

from hookpoint.core.log.mean import Mean
from hookpoint.core.loop.loop import Loop

MOST = sys.float_info.max


# The largest numbers


@pytest.fixture
def means(new_monitor):
    """Log values; return the means of the log steps and the mean of the pass."""

    def go(values, *, kind=float, log_every=2):
        monitor = new_monitor()
        with Loop([monitor], log_every=log_every) as run:
            for batch in run.batches([[value] * 3 for value in values]):  # of three samples each
                run.log(x=kind(batch[0]))
        return [*(scalars["x"] for _, scalars in monitor.scalars("step")), run.metrics["x"]]

    return go


@pytest.mark.parametrize("kind", [float, Tensor])
def test_means_of_the_largest_floats_do_not_overflow(kind, means):
    assert means([1e308] * 5, kind=kind) == [1e308] * 3
    assert means([MOST] * 7, kind=kind) == [MOST] * 4
    assert means([-MOST, -MOST, MOST, MOST, 1.0], kind=kind) == [-MOST, MOST, 0.2]
    assert means([1e308, 5e307], kind=kind, log_every=1) == [1e308, 5e307, 7.5e307]


@pytest.mark.parametrize("kind", [float, Tensor])
@pytest.mark.parametrize("bad", [math.inf, -math.inf])
def test_infinity_and_nan_among_the_largest_floats_are_kept(kind, bad, means):
    assert means([1e308, 1e308, bad, -1e308, 1e308], kind=kind) == [1e308, bad, bad]
    assert all(math.isnan(mean) for mean in means([1e308, math.nan, 1e308, math.nan], kind=kind))


def test_means_of_other_floats_have_the_bits_of_plain_sums(means):
    generator = random.Random(7)
    values = [generator.uniform(-1e6, 1e6) for _ in range(60)]
    total = weight = 0.0
    for value in values:
        total, weight = total + value * 3, weight + 3
    assert means(values, log_every=0)[-1] == total / weight


def test_the_state_keeps_a_sum_that_overflows_a_float():
    mean = Mean()
    for _ in range(3):
        mean.add(1e308, 2)
    again = Mean().restore(mean.state())
    again.add(-1e308, 2)
    assert float(again) == 5e307


def test_a_mean_is_right_after_a_part_of_it_was_read(monitor):
    with Loop([monitor], log_every=4) as run:
        for batch in run.batches([0, 0, 0, 0, 6, 6]):
            run.log(loss=Tensor(batch))
            if run.batch_idx == 4:
                run.monitors.drain()  # the monitor has read the mean of the first four
    assert run.metrics["loss"] == 2.0
