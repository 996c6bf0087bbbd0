"""Records: what monitors receive."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from hookpoint.core.schedule.moment import Moment

Kind = Literal["scalars", "image", "histogram", "text", "event"]


@dataclass(frozen=True, slots=True)
class Record:
    """Something that was logged, with the clocks of that moment.

    `values` holds scalars by name, or one image, histogram, text, or an event's fields under its name. Scalars become
    floats in `scalars()`, which a monitor calls off the training thread. `at` says what they are: the mean since the last
    record ("step"), the mean of a whole pass ("epoch"), or values that stand for themselves ("value"). `mode` is that of the
    pass a mean belongs to, and None for everything else. `iteration` counts the training batches done.
    """

    kind: Kind
    values: Mapping[str, Any]
    step: int
    epoch: int
    at: str = "value"
    time: float = field(default_factory=time.time)
    mode: str | None = None
    iteration: int | None = None

    @property
    def moment(self) -> Moment:
        """Epoch, iteration and step of the run when this was logged."""
        return Moment(self.epoch, self.iteration, self.step)

    def scalars(self) -> dict[str, float]:
        """Return the values as floats; waits for the device where they are still on one."""
        return {name: float(value) for name, value in self.values.items()}
