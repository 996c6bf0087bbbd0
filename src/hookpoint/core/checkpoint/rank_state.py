"""Shares: what each process of a team has of a state for itself, beside what all of them have in common.

A checkpoint of a team is the state of its chief, as one process alone would have it, and under "ranks" the share of each
process: `{}` for the chief's, which is there already. Where processes have different parts of the model, each of them, also the
chief, has its own in its share; what stands beside the shares is the whole.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from hookpoint.core.checkpoint.sharded_placeholder import ShardedPlaceholder
from hookpoint.core.log.sums import sum_means

OWN = ("clocks", "place", "logbook", "data", "rng", "finite_buffers")


def own_share(state: Mapping[str, Any]) -> dict[str, Any]:
    """Return what one process alone has: its numbers, its place in the data, its sums, and what callbacks keep for each."""
    share = {key: state[key] for key in OWN if key in state}
    callbacks, parts = state.get("callbacks", {}), state.get("parts", {})
    share["callbacks"] = {name: callbacks[name] for name in state.get("per_rank", ()) if name in callbacks}
    if "gradients" in parts:
        share["gradients"] = parts["gradients"]
    return share


def joined(
    state: Mapping[str, Any], others: Sequence[Mapping[str, Any]], chiefs: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """Return the state of a team: the chief's, and the shares in the order of ranks; of the chief's what the state has not."""
    whole = {key: value for key, value in state.items() if key != "per_rank"}
    return {**whole, "ranks": [dict(chiefs or {}), *map(dict, others)]}


def share_of(state: Mapping[str, Any], rank: int, size: int) -> dict[str, Any]:
    """Return the state that one of so many processes goes on from, whatever number of them has made it.

    Where it was another number, no process has a share that fits: `state["moved"]` then says from how many to how many. The
    generators of random numbers begin afresh, and the data is divided anew from the first sample that nobody has seen.
    """
    ranks: Sequence[Mapping[str, Any]] = state.get("ranks") or [{}]
    whole = {key: value for key, value in state.items() if key != "ranks"}
    if len(ranks) != size:
        return _moved(whole, ranks, rank, size)
    share = ranks[rank]
    whole |= {key: share[key] for key in OWN if key in share}
    if "clocks" in share:
        whole["clocks"] = {**share["clocks"], "elapsed": state["clocks"]["elapsed"]}
    if "callbacks" in share:
        whole["callbacks"] = {**state["callbacks"], **share["callbacks"]}
        whole["parts"] = {key: value for key, value in state["parts"].items() if key != "gradients"}
        whole["parts"] |= {"gradients": share["gradients"]} if "gradients" in share else {}
    if "parts" in share:
        whole["parts"] = {**whole["parts"], **share["parts"]}
    return whole


def _moved(state: dict[str, Any], ranks: Sequence[Mapping[str, Any]], rank: int, size: int) -> dict[str, Any]:
    shares = [own_share(state), *ranks[1:]]
    place = dict(state["place"])
    if place["in_epoch"]:
        place |= {"rng": None, "passes": [{**one, "rng": None} for one in place["passes"]]}
    parts = dict(state["parts"])
    if "gradients" in parts:
        parts["gradients"] = _mean_of([share["gradients"] for share in shares])
    seen = sum(share["clocks"]["samples"] for share in shares)
    return {
        **state,
        "clocks": {**state["clocks"], "samples": seen * (rank + 1) // size - seen * rank // size},
        "place": place,
        "parts": parts,
        "rng": None,
        "logbook": _sums_of([share["logbook"] for share in shares], is_chief=rank == 0),
        "data": {"begun": {}, "moved": {"data": state["data"], "from": len(ranks), "to": size, "rank": rank}},
        "moved": {"from": len(ranks), "to": size},
    }


def _sums_of(logbooks: Sequence[Mapping[str, Any]], *, is_chief: bool) -> dict[str, Any]:
    """Return the chief's logbook with the sums of all in it; a process that is not the chief begins with none."""
    made = dict(logbooks[0])
    for page in ("window", "whole", "put", "late"):  # older checkpoints have no values that were put, and none that are late
        names = dict.fromkeys(name for one in logbooks for name in one.get(page, ()))
        pairs = {name: [one[page][name] for one in logbooks if name in one.get(page, ())] for name in names}
        made[page] = {name: sum_means(found) for name, found in pairs.items() if is_chief}
    return made


def _mean_of(gradients: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    names = dict.fromkeys(name for one in gradients for name in one)
    found = {name: [one[name] for one in gradients if name in one] for name in names}
    # What lies elsewhere is in parts on all of them: nobody has a sum of its own.
    return {name: of[0] if isinstance(of[0], ShardedPlaceholder) else sum(of) / len(gradients) for name, of in found.items()}
