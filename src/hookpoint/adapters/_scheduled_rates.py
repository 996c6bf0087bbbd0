"""ScheduledRates: keep a scheduler from undoing the changes that callbacks make to learning rates."""

from __future__ import annotations

from typing import Any


class ScheduledRates:
    """Scale a scheduler's base rates when other code has changed the rate of a parameter group.

    Most schedulers compute each rate from `base_lrs`, which would undo the change at the next step.
    """

    def __init__(self, optimizer: Any, scheduler: Any) -> None:
        self._groups = getattr(optimizer, "param_groups", [])
        self._base = getattr(scheduler, "base_lrs", None)
        self._written: list[float | None] = []
        self.remember()

    def remember(self) -> None:
        """Remember the current rates. Call this after the scheduler has written them."""
        self._written = [_number(group["lr"]) for group in self._groups]

    def keep_changes(self) -> None:
        """Scale the base rate of each group whose rate has changed. Call this before the scheduler writes the rates again."""
        for number, (group, written) in enumerate(zip(self._groups, self._written, strict=False)):
            rate = _number(group["lr"])
            if rate != written and self._base is not None and number < len(self._base):
                base = self._base[number]
                self._base[number] = rate if not written or base == written else base * (rate / written)


def _number(rate: Any) -> Any:
    """Return a rate if it is a number. For a tensor, return None, because reading it would wait for the device."""
    return rate if isinstance(rate, int | float) else None
