"""Metrics: logged values. A tensor on the host becomes a number when it is logged, one on a device when it is read.

The training thread neither waits for a device tensor nor copies it. With torch, `engine/device_floats.py` reads device tensors,
many at once.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from operator import itemgetter
from threading import Lock
from typing import Any

from hookpoint.core.errors import BadArgument, BadValue, MissingMetric
from hookpoint.core.log.sums import plus, quotient, times
from hookpoint.core.schedule.moment import Moment
from hookpoint.core.text.spelling import near_miss

HISTORY_LENGTH = 10_000
NUMBERS, FIRST = {float, int}, itemgetter(0)
ON_HOST = ("builtins", "decimal", "fractions", "numpy")  # packages whose numbers are always on the host

# A function that starts converting values to floats. It is called on the training thread and does not wait. It returns a second
# function, which is called on another thread, may wait for the device, and returns the floats.
Floats = Callable[[Sequence[Any]], Callable[[], list[float]]]
MayWait = Callable[[], AbstractContextManager[None]]  # the training thread waits for the device only inside this context


def floats_one_by_one(values: Sequence[Any]) -> Callable[[], list[float]]:
    """Return a function that converts the values to floats. An engine may use a faster one, which copies all values at once."""
    return lambda: [float(value) for value in values]


def as_scalar(name: str, value: Any) -> Any:
    """Convert a logged value to a number or a detached device tensor. Raise BadValue if it is not a scalar."""
    kind = type(value)
    if kind is float or kind is int:
        return value
    if getattr(value, "is_cpu", False):  # reading a host tensor is cheaper than detaching it, and a number needs less memory
        try:
            number = value.item()
        except (RuntimeError, ValueError):  # the tensor has more than one element, or no data
            number = None
        if number is not None and type(number) is not complex:
            return number
    if isinstance(value, str | bytes) or value is None:
        raise BadValue(f"'{name}' is {value!r}; expected a number.", write=f"run.put_text('{name}', ...)")
    if math.prod(getattr(value, "shape", None) or (1,)) != 1:
        raise BadValue(
            f"'{name}' has shape {tuple(value.shape)}; expected a scalar.",
            log="its mean, or each element under its own name",
            write=f"run.put_histogram('{name}', ...) for its distribution",
        )
    _check_real(name, value)
    if hasattr(value, "detach"):
        return value.item() if getattr(value, "is_cpu", False) else value.detach()
    if hasattr(value, "__float__"):
        if type(value).__module__.split(".")[0] not in ON_HOST:
            return value
        try:
            return float(value.item() if hasattr(value, "item") else value)  # float() rejects NumPy arrays with dimensions
        except (TypeError, ValueError):
            pass  # the array does not contain numbers
    raise BadValue(f"'{name}' is {value!r}; expected a number.", log="a number or a one-element tensor")


def _check_real(name: str, value: Any) -> None:
    """Raise BadValue if the element is complex or has no value."""
    if getattr(value, "is_meta", False):
        raise BadValue(f"'{name}' is on the meta device and has no value.", log="a tensor that has data, on the CPU or a GPU")
    dtype = getattr(value, "dtype", None)
    if getattr(dtype, "is_complex", False) or getattr(dtype, "kind", "") == "c":  # torch, then NumPy
        raise BadValue(f"'{name}' is complex; expected a real number.", log="its magnitude, or each part under its own name")


class Mean:
    """A weighted mean of values that may not be floats yet. Reading the mean converts each value once.

    The mean is finite if all values are finite, because a sum that would overflow a float is stored as an exact integer.

    `pending` contains the values that are not in the sums yet, with their weights. Logging a value costs one append.
    """

    __slots__ = ("_bad", "_floats", "_lock", "_newest", "_started", "_total", "_weight", "pending")

    def __init__(self, floats: Floats = floats_one_by_one) -> None:
        self._floats, self._lock = floats, Lock()
        self._total = self._weight = 0.0
        self._bad = 0.0  # the weight of values that are NaN or infinite
        self._newest: Any = math.nan
        self._started: Callable[[], list[float]] | None = None
        self.pending: list[tuple[Any, float]] = []

    def add(self, value: Any, weight: float) -> None:
        """Add a value. Numbers are added to the sums immediately, so that they take no memory."""
        if not self.pending and (type(value) is float or type(value) is int):
            self._add_number(value, weight)
        else:
            self.pending.append((value, weight))

    def _add_numbers(self, pending: Sequence[tuple[float, float]]) -> None:
        """Add numbers in order of arrival. The result is bit-identical to calling `_add_number` for each."""
        total, sum_of_weights = self._total, self._weight
        try:
            for value, weight in pending:
                total += value * weight
                sum_of_weights += weight
        except OverflowError:
            total = math.nan
        if total - total:  # the sum is not finite: add the values one by one
            for value, weight in pending:
                self._add_number(value, weight)
        else:
            self._total, self._weight = total, sum_of_weights

    def _add_number(self, value: float, weight: float) -> None:
        try:
            total = self._total + value * weight
        except OverflowError:  # the sum is an integer that no float can hold
            total = math.nan
        if total - total:  # NaN if the sum is not finite, otherwise 0
            self._add_odd(float(value), weight)
        else:
            self._total = total
            self._weight += weight

    def add_mean(self, part: Mean) -> None:
        """Add all values of another mean, with their weights. If none of them is pending, merge the sums now to save memory."""
        with self._lock:
            if not self.pending and not part.is_pending:
                self._add_sums(part)
                return
            self.pending.append((part, 0.0))
            while self.pending and isinstance(self.pending[0][0], Mean) and not self.pending[0][0].is_pending:
                self._add_sums(self.pending.pop(0)[0])

    def close(self) -> None:
        """Add the pending values to the sums, or start converting them to floats. No values may be added afterwards."""
        if self.is_pending:
            self._started = self._floats([value for value, _ in self.pending if not isinstance(value, Mean)])
        else:
            with self._lock:
                if self.pending:
                    self._newest = self.pending[-1][0]
                    self._add_numbers(self.pending)
                    self.pending.clear()

    @property
    def is_pending(self) -> bool:
        """Whether some values are not numbers yet, so that reading the mean may wait for a device."""
        return bool(self.pending) and not NUMBERS.issuperset(map(type, map(FIRST, self.pending)))

    @property
    def newest(self) -> Any:
        """The last value that was appended to `pending`, even if it is in the sums now. Safe to read from any thread."""
        last = self.pending[-1:]
        return last[0][0] if last else self._newest

    def sums(self) -> tuple[float, float, float]:
        """Return the weighted sum, the sum of weights, and the weight of values that are NaN or infinite."""
        with self._lock:
            pending = self.pending
            count = len(pending)  # read once, because another thread may append
            if count:
                self._newest = pending[count - 1][0]
                if self.is_pending:
                    self._add_converted(pending[:count])
                else:
                    self._add_numbers(pending[:count])
                del pending[:count]  # last, so that `is_pending` stays True in other threads while this thread waits
            return self._total, self._weight, self._bad

    def _add_converted(self, pending: Sequence[tuple[Any, float]]) -> None:
        started, self._started = self._started, None
        if started is None:
            started = self._floats([value for value, _ in pending if not isinstance(value, Mean)])
        numbers = iter(started())
        for value, weight in pending:  # in order of arrival, so that the sum is reproducible
            if isinstance(value, Mean):
                self._add_sums(value)
            else:
                self._add_odd(next(numbers), weight)

    def _add_odd(self, value: float, weight: float) -> None:
        """Add any value, even if it is not finite or makes the sum too large for a float."""
        self._bad += weight if value - value else 0.0
        self._total = plus(self._total, times(value, weight))
        self._weight += weight

    def _add_sums(self, part: Mean) -> None:
        total, weight, bad = part.sums()
        self._bad += bad
        self._total = plus(self._total, total)
        self._weight += weight

    @property
    def is_all_bad(self) -> bool:
        """Whether there are values and all of them are NaN or infinite. Pending values do not count."""
        return self._weight > 0 and self._bad == self._weight

    def __float__(self) -> float:
        total, weight, _ = self.sums()
        return quotient(total, weight) if weight else math.nan

    def state(self) -> list[float]:
        """Return the state to save in a checkpoint. Waits for values on a device."""
        total, weight, bad = self.sums()
        return [total, weight, bad] if bad else [total, weight]

    def restore(self, state: Sequence[float]) -> Mean:
        """Restore the state that `state` returned. Return this mean."""
        self._total, self._weight, *bad = state
        self._bad = bad[0] if bad else 0.0
        return self


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
