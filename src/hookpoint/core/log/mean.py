"""Mean: a weighted mean of logged values, such as the mean of a metric over an epoch."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from operator import itemgetter
from threading import Lock
from typing import Any

from hookpoint.core.log.floats import Floats, floats_one_by_one
from hookpoint.core.log.sums import plus, quotient, times

NUMBERS, FIRST = {float, int}, itemgetter(0)


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
