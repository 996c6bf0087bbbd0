"""Rank state: the state of each rank of a team, in addition to the state that they share.

A checkpoint of a team is the state of its chief, as a single process would save it, and under "ranks" the own state of each
rank: `{}` for the chief, whose state is there already. If the model is split across ranks, each rank, including the chief, has
its own entry; the state beside the entries is the complete one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from hookpoint.core.checkpoint.sharded_placeholder import ShardedPlaceholder
from hookpoint.core.log.sums import sum_means

OWN = ("clocks", "place", "logbook", "data", "rng", "finite_buffers")


def own_state(state: Mapping[str, Any]) -> dict[str, Any]:
    """Return the state of one rank only: its counters, position in the data, sums, and per-rank state of callbacks."""
    own = {key: state[key] for key in OWN if key in state}
    callbacks, parts = state.get("callbacks", {}), state.get("parts", {})
    own["callbacks"] = {name: callbacks[name] for name in state.get("per_rank", ()) if name in callbacks}
    if "gradients" in parts:
        own["gradients"] = parts["gradients"]
    return own


def joined(
    state: Mapping[str, Any], others: Sequence[Mapping[str, Any]], chiefs: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """Return the state of a team: the chief's, and the own states in rank order; `chiefs` adds what the state lacks."""
    whole = {key: value for key, value in state.items() if key != "per_rank"}
    return {**whole, "ranks": [dict(chiefs or {}), *map(dict, others)]}


def state_of_rank(state: Mapping[str, Any], rank: int, size: int) -> dict[str, Any]:
    """Return the state from which one of `size` ranks resumes, whatever number of ranks has saved it.

    If the number differs, no rank has an own state that fits: `state["moved"]` then has both numbers. Random generators start
    from scratch, and the data is partitioned again from the first sample that no rank has seen.
    """
    ranks: Sequence[Mapping[str, Any]] = state.get("ranks") or [{}]
    whole = {key: value for key, value in state.items() if key != "ranks"}
    if len(ranks) != size:
        return _moved(whole, ranks, rank, size)
    own = ranks[rank]
    whole |= {key: own[key] for key in OWN if key in own}
    if "clocks" in own:
        whole["clocks"] = {**own["clocks"], "elapsed": state["clocks"]["elapsed"]}
    if "callbacks" in own:
        whole["callbacks"] = {**state["callbacks"], **own["callbacks"]}
        whole["parts"] = {key: value for key, value in state["parts"].items() if key != "gradients"}
        whole["parts"] |= {"gradients": own["gradients"]} if "gradients" in own else {}
    if "parts" in own:
        whole["parts"] = {**whole["parts"], **own["parts"]}
    return whole


def _moved(state: dict[str, Any], ranks: Sequence[Mapping[str, Any]], rank: int, size: int) -> dict[str, Any]:
    every = [own_state(state), *ranks[1:]]
    place = dict(state["place"])
    if place["in_epoch"]:
        place |= {"rng": None, "passes": [{**done, "rng": None} for done in place["passes"]]}
    parts = dict(state["parts"])
    if "gradients" in parts:
        parts["gradients"] = _mean_of([own["gradients"] for own in every])
    seen = sum(own["clocks"]["samples"] for own in every)
    return {
        **state,
        "clocks": {**state["clocks"], "samples": seen * (rank + 1) // size - seen * rank // size},
        "place": place,
        "parts": parts,
        "rng": None,
        "logbook": _sums_of([own["logbook"] for own in every], is_chief=rank == 0),
        "data": {"begun": {}, "moved": {"data": state["data"], "from": len(ranks), "to": size, "rank": rank}},
        "moved": {"from": len(ranks), "to": size},
    }


def _sums_of(logbooks: Sequence[Mapping[str, Any]], *, is_chief: bool) -> dict[str, Any]:
    """Return the chief's logbook with the sums of all ranks; another rank than the chief starts with none."""
    result = dict(logbooks[0])
    for page in ("window", "whole", "put", "late"):  # older checkpoints lack "put" and "late"
        names = dict.fromkeys(name for logbook in logbooks for name in logbook.get(page, ()))
        sums = {name: [logbook[page][name] for logbook in logbooks if name in logbook.get(page, ())] for name in names}
        result[page] = {name: sum_means(values) for name, values in sums.items() if is_chief}
    return result


def _mean_of(gradients: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    names = dict.fromkeys(name for of_rank in gradients for name in of_rank)
    found = {name: [of_rank[name] for of_rank in gradients if name in of_rank] for name in names}
    # A placeholder stands for a tensor that is sharded over all ranks: there is nothing to sum.
    return {name: of[0] if isinstance(of[0], ShardedPlaceholder) else sum(of) / len(gradients) for name, of in found.items()}
