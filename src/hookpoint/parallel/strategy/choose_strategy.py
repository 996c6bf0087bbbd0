"""choose_strategy: select a run's strategy from the user's argument and the number of ranks."""

from __future__ import annotations

from typing import Literal

from hookpoint.core.errors import BadStrategy
from hookpoint.parallel.strategy.data_parallel import DataParallel
from hookpoint.parallel.strategy.strategy import Strategy
from hookpoint.parallel.team.world import world_size


def choose_strategy(strategy: Strategy | Literal["auto"] | None) -> Strategy | None:
    """Return the strategy for a run, or None for a single process. Raise BadStrategy if the argument is not a strategy."""
    if isinstance(strategy, type):  # a class also has the methods of a strategy
        raise BadStrategy(f"strategy={strategy.__name__} is a class.", give=f"strategy={strategy.__name__}()")
    if strategy != "auto" and strategy is not None and not isinstance(strategy, Strategy):
        cure = '"auto", hookpoint.DataParallel() or another strategy from docs/parallel.md'
        raise BadStrategy(f"strategy={strategy!r} is not a strategy.", choose=cure)
    if world_size() == 1:
        return None
    return DataParallel() if isinstance(strategy, str) or strategy is None else strategy
