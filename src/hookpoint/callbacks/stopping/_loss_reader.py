"""LossWatch: the losses of the training steps, as floats, without waiting for a device."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from hookpoint.callbacks._shared.async_scalars import AsyncScalars
from hookpoint.core.errors import BadValue, MissingMetric
from hookpoint.core.run.run import Run


@dataclass(frozen=True, slots=True)
class Loss:
    """A loss that was read: of which epoch, which batch in it, from 1, and after which step; the how manieth of a tuple."""

    epoch: int
    batch: int
    step: int
    part: int
    value: float

    @property
    def is_finite(self) -> bool:
        return math.isfinite(self.value)


class LossWatch:
    """Take `run.loss` after each step, or what was logged as "loss" where that is not set; hand losses out when they are there.

    A loss is a tensor, a number, or several of them in a tuple, list or dict; of a tensor with many elements it is the mean.
    """

    def __init__(self) -> None:
        self._late = AsyncScalars()
        self._iterations = self._losses = 0

    def reset(self) -> None:
        """Forget the run before."""
        self._late.clear()
        self._iterations = self._losses = 0

    def take(self, run: Run, *, shown: bool = False) -> list[Loss]:
        """Take in this iteration's loss; return what is there by now.

        One that is to be shown sets out at once, without being waited for; a good one on the host that is not, is left out.
        """
        self._iterations += 1
        loss = run.loss
        if loss is None:
            loss = _logged(run)
        if not shown and getattr(loss, "is_cpu", False) and loss.numel() == 1 and math.isfinite(loss.item()):
            self._losses += 1  # the usual case, in a third of the time
            return self._there() if self._late else []
        where = (run.epoch, run.batch_idx + 1, run.step)
        for part, value in enumerate(_parts(loss)):
            self._losses += 1
            self._late.add((*where, part), _scalar(value))
        if shown:
            self._late.start()
        return self._there()

    def finish(self, run: Run, reader: str) -> list[Loss]:
        """Return all losses, waiting for them: for the end of an epoch. Say so where there never was one."""
        if self._iterations and not self._losses:
            raise MissingMetric("loss", run.metrics, reader=reader, why="and run.loss was not set either")
        return self._there(wait=True)

    def _there(self, *, wait: bool = False) -> list[Loss]:
        return [Loss(epoch, batch, step, part, value) for (epoch, batch, step, part), value in self._late.take(wait=wait)]


def _logged(run: Run) -> Any:
    return run.metrics.as_logged("loss")  # as it was logged: read as a metric it would be waited for


def _parts(loss: Any) -> Iterator[Any]:
    if isinstance(loss, Mapping):
        loss = tuple(loss.values())
    if isinstance(loss, tuple | list):
        for one in loss:
            yield from _parts(one)
    elif loss is not None:
        yield loss


def _scalar(value: Any) -> Any:
    if isinstance(value, str | bytes) or not (hasattr(value, "__float__") or hasattr(value, "shape")):
        raise BadValue(
            f"run.loss holds {value!r}, which is no number.", set="run.loss to a number, a tensor, or several of them"
        )
    value = value.detach() if hasattr(value, "detach") else value
    if math.prod(getattr(value, "shape", ())) == 1 or not hasattr(value, "mean"):
        return value
    return (value.float() if hasattr(value, "float") else value).mean()
