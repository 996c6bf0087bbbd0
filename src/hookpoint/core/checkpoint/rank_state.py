"""Rank state: the state of each rank in a team, in addition to the state that all ranks share.

A team's checkpoint contains the chief's state, in the form that a single process would save. It also contains a list "ranks"
with one entry per rank. An entry contains the state that differs between ranks. The chief's entry is `{}`, because the
checkpoint already contains its state. If the model is split across ranks, the checkpoint describes the full model, and every
rank, including the chief, has its own entry.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from hookpoint.core.checkpoint.sharded_placeholder import ShardedPlaceholder
from hookpoint.core.log.sums import sum_means

PER_RANK = ("clocks", "place", "logbook", "data", "rng", "finite_buffers")


def extract_rank_state(state: Mapping[str, Any]) -> dict[str, Any]:
    """Return the state that differs between ranks, such as counters, sums of metrics, and per-rank callback state."""
    rank_state = {key: state[key] for key in PER_RANK if key in state}
    callbacks, parts = state.get("callbacks", {}), state.get("parts", {})
    rank_state["callbacks"] = {name: callbacks[name] for name in state.get("per_rank", ()) if name in callbacks}
    if "gradients" in parts:
        rank_state["gradients"] = parts["gradients"]
    return rank_state


def merge_rank_states(
    state: Mapping[str, Any], others: Sequence[Mapping[str, Any]], chief: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """Build a team's checkpoint from the chief's state and the rank states of the other ranks, in rank order.

    `chief` is the chief's entry in the list "ranks". It is needed only if the model is split across ranks.
    """
    shared = {key: value for key, value in state.items() if key != "per_rank"}
    return {**shared, "ranks": [dict(chief or {}), *map(dict, others)]}


def state_for_rank(state: Mapping[str, Any], rank: int, size: int) -> dict[str, Any]:
    """Return the state from which one of `size` ranks resumes, regardless of how many ranks saved the checkpoint.

    If the number of ranks has changed, a rank cannot use a saved rank state unchanged. The result then contains "moved", with
    the old and the new number of ranks. In that case, random generators start from scratch, and the ranks partition the unseen
    samples again.
    """
    ranks: Sequence[Mapping[str, Any]] = state.get("ranks") or [{}]
    result = {key: value for key, value in state.items() if key != "ranks"}
    if len(ranks) != size:
        return _redistributed(result, ranks, rank, size)
    own = ranks[rank]
    result |= {key: own[key] for key in PER_RANK if key in own}
    if "clocks" in own:
        result["clocks"] = {**own["clocks"], "elapsed": state["clocks"]["elapsed"]}
    if "callbacks" in own:
        result["callbacks"] = {**state["callbacks"], **own["callbacks"]}
        result["parts"] = {key: value for key, value in state["parts"].items() if key != "gradients"}
        result["parts"] |= {"gradients": own["gradients"]} if "gradients" in own else {}
    if "parts" in own:
        result["parts"] = {**result["parts"], **own["parts"]}
    return result


def _redistributed(state: dict[str, Any], ranks: Sequence[Mapping[str, Any]], rank: int, size: int) -> dict[str, Any]:
    rank_states = [extract_rank_state(state), *ranks[1:]]
    place, parts = dict(state["place"]), dict(state["parts"])
    if place["in_epoch"]:
        place |= {"rng": None, "passes": [{**done, "rng": None} for done in place["passes"]]}
    if "gradients" in parts:
        parts["gradients"] = _mean_gradients([saved["gradients"] for saved in rank_states])
    seen = sum(saved["clocks"]["samples"] for saved in rank_states)
    return {
        **state,
        "clocks": {**state["clocks"], "samples": seen * (rank + 1) // size - seen * rank // size},
        "place": place,
        "parts": parts,
        "rng": None,
        "logbook": _summed_logbook([saved["logbook"] for saved in rank_states], is_chief=rank == 0),
        "data": {"begun": {}, "moved": {"data": state["data"], "from": len(ranks), "to": size, "rank": rank}},
        "moved": {"from": len(ranks), "to": size},
    }


def _summed_logbook(logbooks: Sequence[Mapping[str, Any]], *, is_chief: bool) -> dict[str, Any]:
    """Return the chief's logbook, with the sums of each metric added up over all ranks.

    For a rank other than the chief, return the chief's logbook without these sums.
    """
    result = dict(logbooks[0])
    for page in ("window", "whole", "put", "late"):  # in older checkpoints, a logbook has no "put" and no "late"
        names = dict.fromkeys(name for logbook in logbooks for name in logbook.get(page, ()))
        sums = {name: [logbook[page][name] for logbook in logbooks if name in logbook.get(page, ())] for name in names}
        result[page] = {name: sum_means(values) for name, values in sums.items() if is_chief}
    return result


def _mean_gradients(gradients: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    names = dict.fromkeys(name for of_rank in gradients for name in of_rank)
    values = {name: [of_rank[name] for of_rank in gradients if name in of_rank] for name in names}
    # A placeholder stands for a tensor that is sharded across all ranks, so there is nothing to sum.
    return {name: of[0] if isinstance(of[0], ShardedPlaceholder) else sum(of) / len(gradients) for name, of in values.items()}
