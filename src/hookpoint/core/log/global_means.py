"""Shared means: those of all processes of a team, weighted by samples, made of their sums."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager

from hookpoint.core.log.metrics import Mean
from hookpoint.core.log.sums import added
from hookpoint.core.team.checked_team import CheckedTeam


def global_means(
    team: CheckedTeam, may_wait: Callable[[], AbstractContextManager[None]], groups: Sequence[Mapping[str, Mean]], what: str
) -> list[dict[str, Mean]]:
    """Return groups of means over all processes with different data, of each name that any of them has; the same everywhere."""
    with may_wait():
        mine = [{name: mean.state() for name, mean in means.items()} for means in groups]
    said = team.gather([mine, team.model_rank], what)
    return [_together([(sums[number], model_rank) for sums, model_rank in said]) for number in range(len(groups))]


def _together(said: list[tuple[dict[str, list[float]], int]]) -> dict[str, Mean]:
    parts: list[dict[str, list[float]]] = []
    for sums, model_rank in said:
        if model_rank == 0:
            parts.append({})
        parts[-1] = {**sums, **parts[-1]}  # of ranks with the same data the first counts; others may have names of their own
    names = dict.fromkeys(name for sums in parts for name in sums)
    return {name: Mean().restore(added([sums[name] for sums in parts if name in sums])) for name in names}
