"""Rates: set the learning rates of all parameter groups, and keep their ratios."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from hookpoint.core.errors import BadValue

Address = tuple[str, int]  # an optimizer's name and a group's index
Groups = Mapping[Address, dict[str, Any]]


class Rates:
    """Set learning rates so that every parameter group of every optimizer keeps its ratio to the first group.

    The ratios are computed when a run begins, from `initial_lr` if a scheduler has set it, otherwise from `lr`. If a group is
    added later, its ratio is computed the next time a rate is set. If the first group's rate is zero, the ratio is 1.
    """

    def __init__(self, groups: Callable[[], Groups]) -> None:
        self._groups = groups
        self._ratios: dict[Address, float] = {}
        self._read_before: dict[int, tuple[Any, int, float]] = {}

    def begin(self) -> None:
        """Compute the ratios from the groups' current rates."""
        self._ratios.clear()
        self._read_before.clear()
        self._add_new(self._groups())

    def among(self, groups: Groups, addresses: Sequence[Address]) -> list[Address]:
        """Return the groups whose rate is a number and therefore has a ratio."""
        self._add_new(groups)
        return [address for address in addresses if address in self._ratios]

    def set(self, name: str, groups: Groups, addresses: Sequence[Address], value: float) -> None:
        """Set the rate of the first of these groups, and scale the others by their ratios to it.

        If these are only some of the groups, their ratios to the other groups change. If the first group already has the value,
        nothing changes, even if a scheduler has changed another group.
        """
        lead, first = addresses[0], next(address for address in groups if address in self._ratios)
        if self.read(groups[lead]["lr"]) == as_stored(groups[lead]["lr"], value):
            return
        rates = {address: self._scaled(value, address, lead) for address in addresses}
        for address, rate in rates.items():
            if not math.isfinite(rate):
                which = f"group {address[1]}" + (f" of {address[0]}" if address[0] else "")
                cures = {"got": repr(value), "ratio": repr(self._ratios[address])}
                raise BadValue(f"{name}: the rate of {which} would be {rate}.", **cures)
        for address, rate in rates.items():
            self._write(groups[address], rate)
        reference = self.read(groups[first]["lr"])
        if reference:
            others = [address for address in groups if address in self._ratios and address not in rates]
            for address in others if first in rates else addresses:
                rate = rates[address] if address in rates else self.read(groups[address]["lr"])
                self._ratios[address] = _ratio(rate, reference)

    def state_dict(self) -> dict[str, Any]:
        return {"ratios": [[*address, ratio] for address, ratio in self._ratios.items()]}

    def load_state_dict(self, state: Mapping[str, Any] | None) -> None:
        """Restore the ratios. If the checkpoint does not contain them, compute them from the restored rates."""
        self.begin()
        for optimizer, number, ratio in state["ratios"] if state is not None else ():
            if (optimizer, number) in self._ratios:
                self._ratios[optimizer, number] = ratio

    def _add_new(self, groups: Groups) -> None:
        """Compute the ratios of new groups."""
        if groups.keys() <= self._ratios.keys():
            return
        new = {
            address: group
            for address, group in groups.items()
            if address not in self._ratios and self._number(group.get("lr")) is not None
        }
        if new:
            first, is_fresh = next(groups[key] for key in groups if key in self._ratios or key in new), not self._ratios
            for address, group in new.items():
                rates = (self._initial(group), self._initial(first)) if is_fresh else self._present(group, first)
                self._ratios[address] = _ratio(*rates)

    def _scaled(self, value: float, address: Address, lead: Address) -> float:
        ratio = _ratio(self._ratios[address], self._ratios[lead])
        return value if ratio == 1 or address == lead else value * ratio

    def _initial(self, group: Mapping[str, Any]) -> float:
        initial = self._number(group.get("initial_lr"))
        return self.read(group["lr"]) if initial is None else initial

    def _present(self, group: Mapping[str, Any], first: Mapping[str, Any]) -> tuple[float, float]:
        """Return the rates of a new group and of the first group. Use their initial rates if both groups have one."""
        if "initial_lr" in group and "initial_lr" in first:
            return self._initial(group), self._initial(first)
        return self.read(group["lr"]), self.read(first["lr"])

    def _number(self, rate: Any) -> float | None:
        """Return a rate as a float, or None if it is not a number. Some optimizers use None, or one rate per parameter."""
        if isinstance(rate, bool) or not hasattr(rate, "__float__"):
            return None
        try:
            return self.read(rate)
        except (TypeError, ValueError, RuntimeError):
            return None

    def read(self, rate: Any) -> float:
        """Return a rate as a float. If the rate is on a device, read it again only if it has changed since the last read."""
        if getattr(rate, "is_cpu", True):
            return float(rate)
        cached = self._read_before.get(id(rate))
        if cached is None or cached[0] is not rate or cached[1] != _version_of(rate):
            cached = self._read_before[id(rate)] = (rate, _version_of(rate), float(rate))
        return cached[2]

    def _write(self, group: dict[str, Any], value: float) -> None:
        put(group, "lr", value)
        rate = group["lr"]
        if not getattr(rate, "is_cpu", True):
            self._read_before[id(rate)] = (rate, _version_of(rate), as_stored(rate, value))


def put(group: dict[str, Any], key: str, value: Any) -> None:
    """Set an entry of a parameter group. A tensor is changed in place, because compiled steps use the same tensor."""
    if hasattr(group[key], "fill_"):
        group[key].fill_(value)
    else:
        group[key] = value


def as_stored(rate: Any, value: Any) -> Any:
    """Return the value that this rate would have after it is set to `value`.

    If the rate is a tensor, the result is rounded to the precision of the tensor.
    """
    return float(rate.new_full((), value, device="cpu")) if hasattr(rate, "new_full") else value


def _version_of(rate: Any) -> int:
    """Return the number of in-place changes to a tensor."""
    return int(rate._version)


def _ratio(rate: float, reference: float) -> float:
    ratio = rate / reference if reference else 1.0
    return ratio if math.isfinite(ratio) else 1.0
