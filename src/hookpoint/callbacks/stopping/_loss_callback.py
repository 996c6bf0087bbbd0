"""LossCallback: the base class of callbacks that check the loss of each step, without waiting for a device."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Iterator, Mapping
from typing import Any, ClassVar, NamedTuple, Unpack

from hookpoint.callbacks._shared.async_scalars import AsyncScalars
from hookpoint.core.callback.callback import Callback, Options
from hookpoint.core.errors import BadValue, MissingMetric
from hookpoint.core.run.run import Run


class Loss(NamedTuple):
    """A loss, and where it occurred: epoch, batch in the epoch (from 1), step, and position in a tuple of losses."""

    epoch: int
    batch: int
    step: int
    part: int
    value: float


class LossCallback(Callback):
    """Read the loss after each step, and check the loss once it is on the host.

    The loss is `run.loss` or, if `run.loss` is not set, the value logged as "loss" in the same iteration. A loss is a tensor, a
    number, or a tuple, list or dict of them. For a tensor with multiple elements, the mean is used.
    """

    handles_nonfinite_loss = True
    step_cost: ClassVar[str] = "one to three microseconds"

    def __init__(self, **options: Unpack[Options]) -> None:
        super().__init__(**options)
        self._scalars = AsyncScalars()

    @abstractmethod
    def check(self, run: Run, losses: list[Loss]) -> None:
        """Check losses that are on the host."""

    def on_run_begin(self) -> None:
        self._scalars.clear()
        self._iterations = self._losses = 0
        self._mark = (0, 0)

    def on_train_epoch_begin(self, run: Run) -> None:
        self._mark = run.metrics.log_mark("loss")

    def on_train_iter_end(self, run: Run) -> None:
        self._read(run)

    def on_train_epoch_end(self, run: Run) -> None:
        if self._iterations and not self._losses:
            reader = self.name or type(self).__name__
            raise MissingMetric("loss", run.metrics, reader=reader, why="and run.loss is not set either")
        self._check_ready(run, wait=True)

    def _read(self, run: Run, *, shown: bool = False) -> None:
        """Read this iteration's loss.

        A loss that will be printed (`shown`) is copied from the device immediately. A finite loss that is already on the host
        and will not be printed is not stored.
        """
        self._iterations += 1
        loss = run.loss if run.loss is not None else self._logged_loss(run)
        if not shown and getattr(loss, "is_cpu", False) and loss.numel() == 1 and math.isfinite(loss.item()):
            self._losses += 1  # the usual case: three times as fast as the code below
            if not self._scalars:
                return
        else:
            position = (run.epoch, run.batch_idx + 1, run.step)
            for part, value in enumerate(_flat(loss)):
                self._losses += 1
                self._scalars.add((*position, part), _scalar(value))
            if shown:
                self._scalars.start()
        self._check_ready(run)

    def _logged_loss(self, run: Run) -> Any:
        """Return the value logged as "loss" in this iteration, or None."""
        (shown, followed), self._mark = self._mark, run.metrics.log_mark("loss")
        is_new = self._mark[0] != shown or self._mark[1] > followed
        return run.metrics.as_logged("loss") if is_new else None

    def _check_ready(self, run: Run, *, wait: bool = False) -> None:
        ready = self._scalars.take(wait=wait)
        self.check(run, [Loss(epoch, batch, step, part, value) for (epoch, batch, step, part), value in ready])


def loss_of(run: Run) -> Any:
    """Return the newest loss, without waiting for a device, or None if there is no loss."""
    return run.loss if run.loss is not None else run.metrics.as_logged("loss")


def _flat(loss: Any) -> Iterator[Any]:
    if isinstance(loss, Mapping):
        loss = tuple(loss.values())
    if isinstance(loss, tuple | list):
        for value in loss:
            yield from _flat(value)
    elif loss is not None:
        yield loss


def _scalar(value: Any) -> Any:
    if isinstance(value, str | bytes) or not (hasattr(value, "__float__") or hasattr(value, "shape")):
        raise BadValue(f"run.loss must be a number, a tensor, or a tuple, list or dict of them, got {value!r}.")
    value = value.detach() if hasattr(value, "detach") else value
    if math.prod(getattr(value, "shape", ())) == 1 or not hasattr(value, "mean"):
        return value
    return (value.float() if hasattr(value, "float") else value).mean()
