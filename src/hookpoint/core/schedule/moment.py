"""Moment: the position of a run when a value is logged, measured or saved."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple


class Moment(NamedTuple):
    """A position in a run: the epoch, the number of training batches done, and the number of optimizer steps done.

    The step alone does not identify a moment, because a run may train without batches, or without steps that hookpoint can
    count. In older files, `iteration` is missing. It is then None, and moments are compared by epoch and step.

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
        """Read a moment from a line of scalars.jsonl, a manifest's clocks or a saved state.

        `epoch` and `iteration` may be missing. In lines from older releases, `iteration` may be a float: a metric that
        the user logged under this name. This float is ignored.
        """
        iteration = fields.get("iteration")
        return cls(int(fields.get("epoch") or 0), iteration if type(iteration) is int else None, int(fields["step"]))

    def fields(self) -> dict[str, Any]:
        """Return the fields as a dict. `Moment.of` converts this dict back to a moment."""
        return self._asdict()

    def is_same(self, other: Moment) -> bool:
        """Return whether this moment and another are the same moment in a run."""
        return self.key_for(other) == other.key_for(self)

    def is_after(self, other: Moment) -> bool:
        """Return whether this moment is later in a run than another."""
        return self.key_for(other) > other.key_for(self)

    def key_for(self, other: Moment) -> tuple[int, ...]:
        """Return the numbers by which this moment is compared with another moment."""
        has_iterations = self.iteration is not None and other.iteration is not None
        return (self.epoch, *([self.iteration or 0] if has_iterations else []), self.step)
