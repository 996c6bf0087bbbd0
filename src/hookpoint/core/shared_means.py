"""Shared means: those of all processes of a team, weighted by samples, made of their sums."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from typing import Any

from hookpoint.core.metrics import Mean, floats_one_by_one
from hookpoint.core.sums import added
from hookpoint.core.talk import Talk


def shared_means(
    talk: Talk, may_wait: Callable[[], AbstractContextManager[None]], means: Mapping[str, Mean], what: str
) -> dict[str, Any]:
    """Return the mean over all processes with different data, of each name that any of them has; the same everywhere."""
    with may_wait():
        mine = {name: mean.state() for name, mean in means.items()}
    parts: list[dict[str, list[float]]] = []
    for sums, model_rank in talk.gather([mine, talk.model_rank], what):
        if model_rank == 0:
            parts.append({})
        parts[-1] = {**sums, **parts[-1]}  # of ranks with the same data the first counts; others may have names of their own
    names = dict.fromkeys(name for sums in parts for name in sums)
    return {name: _mean([sums[name] for sums in parts if name in sums]) for name in names}


def _mean(sums: list[list[float]]) -> Any:
    mean = Mean.of_state(added(sums), floats_one_by_one)
    return mean if mean.is_all_bad else float(mean)
