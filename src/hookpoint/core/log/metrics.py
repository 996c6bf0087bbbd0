"""Metrics: the latest value and the history of each metric, and `Logs`, the part of them that a handler gets as `logs`."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from hookpoint.core.errors import BadArgument, MissingMetric
from hookpoint.core.log.mean import Mean
from hookpoint.core.schedule.moment import Moment
from hookpoint.core.text.spelling import near_miss

HISTORY_LENGTH = 10_000


class Newest:
    """A reference to the newest value of a mean. `Metrics` stores the reference instead of a second copy of the value."""

    __slots__ = ("mean",)

    def __init__(self, mean: Mean) -> None:
        self.mean = mean


class Metrics(Mapping[str, float]):
    """The latest value of each metric, converted to a float when read.

    `observations(name)` is the number of final values so far. Callbacks use this count to detect new values. Final values are
    epoch means, validation results, and values logged outside an iteration.
    """

    def __init__(self) -> None:
        self._values: dict[str, Any] = {}
        self._epochs: dict[str, int] = {}
        self._counts: dict[str, int] = {}
        self._shown: dict[str, int] = {}  # how many times `show` was called; not in checkpoints
        self._history: dict[str, deque[tuple[Moment, Any]]] = {}

    def __getitem__(self, name: str) -> float:
        try:
            value = self._values[name]
        except KeyError:
            raise MissingMetric(name, self._values, **_meant(name, self._values)) from None
        if type(value) is not float:
            if type(value) is Newest:
                return float(value.mean.newest)
            value = self._values[name] = float(value)
        return value

    def __contains__(self, name: object) -> bool:
        return name in self._values

    def __iter__(self) -> Iterator[str]:
        return iter(list(self._values))

    def __len__(self) -> int:
        return len(self._values)

    def __repr__(self) -> str:
        return f"Metrics({', '.join(self)})"

    def as_logged(self, name: str, default: Any = None) -> Any:
        """Return the latest value as it was logged.

        If it is a tensor on a device, converting it to a float may wait for the device.
        """
        value = self._values.get(name, default)
        return value.mean.newest if type(value) is Newest else value

    def show(self, name: str, value: Any, epoch: int) -> None:
        """Set the latest value without counting it as an observation."""
        self._values[name] = value
        self._epochs[name] = epoch
        self._shown[name] = self._shown.get(name, 0) + 1

    def log_mark(self, name: str) -> tuple[int, int]:
        """Return two numbers. Each logged value increases at least one of them. The second number may also decrease."""
        value = self._values.get(name)
        followed = len(value.mean.pending) if type(value) is Newest else 0
        return self._shown.get(name, 0) + self.observations(name), followed

    def follow(self, name: str, mean: Mean, epoch: int) -> None:
        """Until `settle` is called, use the last value that was added to a mean as the latest value of the metric."""
        self.show(name, Newest(mean), epoch)

    def settle(self, name: str) -> None:
        """Replace a reference to a mean with the mean's newest value."""
        value = self._values.get(name)
        if type(value) is Newest:
            self._values[name] = value.mean.newest

    def observe(self, name: str, value: Any, moment: Moment) -> None:
        """Add a final value and the `Moment` at which it was logged."""
        self._values[name] = value
        self._epochs[name] = moment.epoch
        self._counts[name] = self._counts.get(name, 0) + 1
        self._history.setdefault(name, deque(maxlen=HISTORY_LENGTH)).append((moment, value))

    def observations(self, name: str) -> int:
        return self._counts.get(name, 0)

    def history(self, name: str) -> list[tuple[int, float]]:
        """Return the final values of a metric as (step, value) pairs, oldest first."""
        return [(moment.step, float(value)) for moment, value in self._history.get(name, ())]

    def newest(self, name: str) -> tuple[Moment, float]:
        """Return the moment and value of a metric's newest final value, which must exist."""
        moment, value = self._history[name][-1]
        return moment, float(value)

    def finals_of(self, epoch: int) -> dict[str, float]:
        """Return the newest final value of each metric, if it is from this epoch."""
        newest = {name: self._history[name][-1] for name in self._history}
        return {name: float(value) for name, (moment, value) in newest.items() if moment.epoch == epoch}

    def of_epoch(self, epoch: int) -> list[str]:
        """Return the names of the metrics whose latest value is from this epoch."""
        return [name for name, last in self._epochs.items() if last == epoch]

    def state_dict(self) -> dict[str, Any]:
        return {
            "values": {name: float(self.as_logged(name)) for name in self._values},
            "epochs": dict(self._epochs),
            "counts": dict(self._counts),
            "history": {name: [[*moment, float(value)] for moment, value in rows] for name, rows in self._history.items()},
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._values, self._epochs, self._counts = dict(state["values"]), dict(state["epochs"]), dict(state["counts"])
        self._history = {
            name: deque((_with_moment(row, self._epochs[name]) for row in rows), maxlen=HISTORY_LENGTH)
            for name, rows in state["history"].items()
        }


def _with_moment(row: Sequence[Any], epoch: int) -> tuple[Moment, float]:
    """Convert a row of a metric's history in a checkpoint to a `Moment` and a value.

    Older checkpoints store only the step. For these, `epoch` is used as the moment's epoch.
    """
    *moment, value = row
    return Moment(epoch, None, *moment) if len(moment) == 1 else Moment(*moment), value


class Logs(Mapping[str, float]):
    """The metrics that have a value from the current epoch. Names that start with a prefix in `without` are left out."""

    def __init__(self, metrics: Metrics, epoch: int, *, without: tuple[str, ...] = ()) -> None:
        self._metrics = metrics
        self._names = [name for name in metrics.of_epoch(epoch) if not name.startswith(without)]

    def __getitem__(self, name: str) -> float:
        if name not in self._names:
            raise MissingMetric(name, self._names, **_meant(name, self._names))
        return self._metrics[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)

    def __setitem__(self, name: str, value: object) -> None:
        raise BadArgument("logs is read-only.", log=f"run.log({name!r}, value), which every monitor receives")

    def __repr__(self) -> str:
        return f"Logs({', '.join(self._names)})"


def _meant(name: str, known: Iterable[str]) -> dict[str, str]:
    meant = near_miss(name, known)
    return {} if meant is None else {"read": f"'{meant}'?"}
