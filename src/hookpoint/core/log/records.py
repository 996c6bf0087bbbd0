"""Records: the logged data that monitors receive."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from hookpoint.core.schedule.moment import Moment

Kind = Literal["scalars", "image", "histogram", "text", "embedding", "event"]


@dataclass(frozen=True, slots=True)
class Record:
    """Logged data, with the time, epoch, step and iteration at which it was logged.

    `values` maps names to scalars, or one name to an image, a histogram, a text, an `Embedding` or the fields of an event.
    `scalars()` converts scalars to floats. A monitor calls it outside the training thread. `at` is the kind of value: the mean
    since the last record ("step"), the mean of a whole pass ("epoch"), or a single value ("value"). For a mean, `mode` is the
    mode of its pass. For all other values, `mode` is None. `iteration` is the number of training batches done.
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
        """The epoch, iteration and step at which the record was logged."""
        return Moment(self.epoch, self.iteration, self.step)

    def scalars(self) -> dict[str, float]:
        """Return the values as floats. Waits for values that are still on a device."""
        return {name: float(value) for name, value in self.values.items()}
