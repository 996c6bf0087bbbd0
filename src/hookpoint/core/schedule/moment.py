"""Moment: where a run stands when something is logged, measured or saved."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple


class Moment(NamedTuple):
    """The epoch, the training batches done and the optimizer steps done at one point of a run.

    A run may train without steps that hookpoint can count, or without batches: the step alone does not tell two moments apart.
    `iteration` is None in older files, which do not have it; such a moment is compared by epoch and step.

    >>> Moment(2, 20, 20).is_after(Moment(1, 20, 20))
    True
    >>> Moment(2, None, 20).is_same(Moment(2, 25, 20))
    True
    """

    epoch: int
    iteration: int | None
    step: int

    @classmethod
    def of(cls, fields: Mapping[str, Any]) -> Moment:
        """Return the moment in a line of scalars.jsonl, in a manifest's clocks or in a state.

        `epoch` and `iteration` may be missing. In older lines, a float called `iteration` is a user's metric.
        """
        iteration = fields.get("iteration")
        return cls(int(fields.get("epoch") or 0), iteration if type(iteration) is int else None, int(fields["step"]))

    def fields(self) -> dict[str, Any]:
        """Return it by name, in plain values that `of` reads."""
        return self._asdict()

    def is_same(self, other: Moment) -> bool:
        """Say whether both are one moment of one run."""
        mine, theirs = self._comparable(other)
        return mine == theirs

    def is_after(self, other: Moment) -> bool:
        """Say whether this moment of a run comes after another one of it."""
        mine, theirs = self._comparable(other)
        return mine > theirs

    def _comparable(self, other: Moment) -> tuple[tuple[int, ...], tuple[int, ...]]:
        if self.iteration is None or other.iteration is None:
            return (self.epoch, self.step), (other.epoch, other.step)
        return (self.epoch, self.iteration, self.step), (other.epoch, other.iteration, other.step)
