"""Script rates: the learning rates that a script sets, compared with the rates in a checkpoint."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any


def rates_of(optimizers: Iterable[Any], key: str = "lr") -> list[float]:
    """Return the learning rates of all parameter groups of all optimizers. Skip groups without a learning rate."""
    groups = (group for optimizer in optimizers for group in _groups_of(optimizer) if isinstance(group, Mapping))
    return [float(group[key]) for group in groups if group.get(key) is not None]


def saved_optimizers(state: Any) -> Iterator[Mapping[str, Any]]:
    """Yield each optimizer's state from the saved state of one optimizer or a dict of optimizers."""
    if isinstance(state, Mapping):
        if "param_groups" in state:
            yield state
        else:
            for inner in state.values():
                yield from saved_optimizers(inner)


def changed_rate(script: Sequence[float], before: Sequence[float] | None, saved: Sequence[Mapping[str, Any]]) -> str:
    """Return a message if the script's learning rates have changed since the checkpoint, otherwise "".

    `before` contains the script's learning rates when the checkpoint was saved. For checkpoints from earlier releases,
    `before` is None. In that case, the scheduler's initial rates in the checkpoint are used. If the checkpoint contains no
    initial rates, its current learning rates are used.
    """
    saved_rates = rates_of(saved)
    if before is None:
        before = rates_of(saved, "initial_lr") or saved_rates
    if not script or not saved_rates or list(script) in (list(before), saved_rates):
        return ""
    return (
        f"the script's learning rate is {_shown(script)} (it was {_shown(before)}), but the run uses the learning rate in the"
        f' checkpoint, {_shown(saved_rates)}. To change it, add HumanHyperParamSetter("learning_rate") and write the line'
        f" learning_rate: {script[0]:g} to hyper.txt in the workdir"
    )


def _groups_of(optimizer: Any) -> Any:
    groups = optimizer.get("param_groups") if isinstance(optimizer, Mapping) else getattr(optimizer, "param_groups", None)
    return groups if isinstance(groups, list | tuple) else ()


def _shown(rates: Sequence[float]) -> str:
    return ", ".join(f"{rate:g}" for rate in dict.fromkeys(rates))
