"""Strategies that a Runner accepts in a single process."""

from __future__ import annotations

import pytest

from hookpoint import DataParallel, Sharded
from hookpoint.core.errors import BadStrategy
from hookpoint.engine.step.distributed_step import SINGLE_PROCESS, distribution


@pytest.mark.parametrize("strategy", ["auto", None, DataParallel(), Sharded()])
def test_a_single_process_needs_no_strategy(strategy):
    assert distribution(strategy) is SINGLE_PROCESS


def test_a_strategy_class_raises():
    with pytest.raises(BadStrategy, match=r"strategy=DataParallel is a class\.\n  give +strategy=DataParallel\(\)"):
        distribution(DataParallel)


def test_a_value_that_is_not_a_strategy_raises():
    with pytest.raises(BadStrategy, match=r"strategy='ddp' is not a strategy\.\n  choose +\"auto\", hookpoint"):
        distribution("ddp")
