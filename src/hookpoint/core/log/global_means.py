"""Means over all ranks of a team, weighted by samples."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from hookpoint.core.log.floats import MayWait
from hookpoint.core.log.mean import Mean
from hookpoint.core.log.sums import sum_means
from hookpoint.core.team.checked_team import CheckedTeam


def global_means(
    team: CheckedTeam, may_wait: MayWait, groups: Sequence[Mapping[str, Mean]], what: str
) -> list[dict[str, Mean]]:
    """Average each group of means over all ranks. A name that only some ranks logged is included.

    If several ranks have the same data, only one of them counts.

    The result is the same on all ranks.
    """
    with may_wait():
        mine = [{name: mean.state() for name, mean in means.items()} for means in groups]
    gathered = team.gather([mine, team.model_rank], what)
    return [_merged([(sums[number], model_rank) for sums, model_rank in gathered]) for number in range(len(groups))]


def _merged(gathered: list[tuple[dict[str, list[float]], int]]) -> dict[str, Mean]:
    by_data: list[dict[str, list[float]]] = []
    for sums, model_rank in gathered:
        if model_rank == 0:
            by_data.append({})
        by_data[-1] = {**sums, **by_data[-1]}  # among ranks with the same data, the first rank's values take precedence
    names = dict.fromkeys(name for sums in by_data for name in sums)
    return {name: Mean().restore(sum_means([sums[name] for sums in by_data if name in sums])) for name in names}
