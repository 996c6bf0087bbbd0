"""ReaderWindows: deliver values logged in training passes to readers with a step schedule.

A number on the host is visible to its readers immediately. A device tensor becomes visible one log step later. The values
between two log steps form a window. At a log step, the window is closed, and a copy of its values to the host is queued. Until
the next log step, the window is in flight. At the next log step, its values become visible. The iteration at which a reader
sees a value therefore depends only on the number of steps, not on the machine's speed, and no step waits for the device. In a
team, numbers on the host are delayed in the same way, and readers see means over all ranks. When the pass ends, all values are
visible.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import nullcontext
from typing import Any

from hookpoint.core.log.floats import Floats, MayWait, floats_one_by_one
from hookpoint.core.log.mean import Mean

MAX_PENDING = 16  # a reader with this many unread windows converts their values to floats, which frees the tensors


class ReaderWindows:
    """The readers of metrics that at least one rank reads on a step schedule. If there are none, this class does nothing."""

    def __init__(self, names: Iterable[str] = (), floats: Floats = floats_one_by_one, may_wait: MayWait = nullcontext) -> None:
        self.by_metric = {name: MetricReaders(floats) for name in names}
        self._may_wait = may_wait  # the context in which a reader may wait for a copy that was queued one log step ago

    def attach(self, name: str, reader: ReaderWindow) -> None:
        """Add a reader of this metric, if the metric is read on a step schedule."""
        if name in self.by_metric:
            self.by_metric[name].readers.append(reader)

    def delay_all(self) -> None:
        """Delay host numbers as well as device tensors, because a team computes all means at log steps."""
        for metric in self.by_metric.values():
            metric.delays_all = True

    def sync(self) -> None:
        """Deliver all values that were logged since the previous call of `sync`."""
        for metric in self.by_metric.values():
            metric.sync()

    def release(self) -> None:
        """Deliver the logged values, and drop the references to the lists that contain them. The caller clears these lists."""
        for metric in self.by_metric.values():
            metric.sync()
            metric.source = None

    def read(self, reader: ReaderWindow) -> float | None:
        """Return the mean of a reader's unread values, or None if there are none."""
        self.sync()
        with self._may_wait() if reader.is_pending else nullcontext():
            return reader.take()

    def ignore(self, names: Iterable[str]) -> None:
        """Make the readers of these metrics skip the result of the pass that just ended.

        This result is the mean of values that the readers have already received.
        """
        for name in names:
            for reader in self.by_metric[name].readers if name in self.by_metric else ():
                reader.ignored += 1

    def close(self) -> dict[str, Mean]:
        """Close the open windows, queue the copies of their values to the host, and return the closed windows."""
        self.sync()
        closed = {name: metric.late for name, metric in self.by_metric.items() if metric.late is not None}
        self.drop()
        for mean in closed.values():
            mean.close()
        return closed

    def launch(self, closed: Mapping[str, Mean]) -> None:
        """Put closed windows in flight. First, make the windows that are already in flight visible."""
        self.land()
        for name, mean in closed.items():
            if name in self.by_metric:
                self.by_metric[name].in_flight = mean

    def land(self) -> None:
        """Make windows in flight visible to their readers."""
        self.sync()
        for metric in self.by_metric.values():
            window, metric.in_flight = metric.in_flight, None
            if window is not None:
                for reader in metric.readers:
                    reader.add_window(window)
                    if reader.is_full:
                        with self._may_wait():
                            reader.settle()

    def drop(self) -> None:
        """Discard the open windows."""
        for metric in self.by_metric.values():
            metric.late = None

    def state_dict(self) -> dict[str, Any]:
        metrics = self.by_metric.items()
        return {
            "late": {name: metric.late.state() for name, metric in metrics if metric.late is not None},
            "in_flight": {name: metric.in_flight.state() for name, metric in metrics if metric.in_flight is not None},
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the windows. Older checkpoints do not contain them."""
        for name, metric in self.by_metric.items():
            metric.late, metric.in_flight = (metric.restored(state.get(key, {}), name) for key in ("late", "in_flight"))


class MetricReaders:
    """One metric's open window, its window in flight, and its readers.

    `source` is the list to which the pass's values are appended. Values before index `_taken` have been delivered.
    """

    __slots__ = ("_floats", "_taken", "delays_all", "in_flight", "late", "readers", "source")

    def __init__(self, floats: Floats) -> None:
        self._floats, self.delays_all, self._taken = floats, False, 0
        self.source: list[tuple[Any, float]] | None = None
        self.readers: list[ReaderWindow] = []
        self.late: Mean | None = None
        self.in_flight: Mean | None = None

    def follow(self, source: list[tuple[Any, float]]) -> None:
        """Take new values from this list from now on. The values that the list already contains have been delivered."""
        if self.source is not source:
            self.source, self._taken = source, len(source)

    def sync(self) -> None:
        """Deliver the values that were appended to the source since the last call."""
        if self.source is not None:
            new = self.source[self._taken :]
            self._taken += len(new)
            for value, weight in new:
                self._pass_on(value, weight)

    def put(self, value: Any, weight: float) -> None:
        """Add a value that is not in the source."""
        self.sync()
        self._pass_on(value, weight)

    def _pass_on(self, value: Any, weight: float) -> None:
        if not self.delays_all and (type(value) is float or type(value) is int):
            for reader in self.readers:
                reader.add(value, weight)
            return
        if self.late is None:
            self.late = Mean(self._floats)
        self.late.add(value, weight)

    def restored(self, sums: Mapping[str, Any], name: str) -> Mean | None:
        """Return the mean that a checkpoint stores under a name, or None."""
        return Mean(self._floats).restore(sums[name]) if name in sums else None


class ReaderWindow:
    """The unread values of a metric for one reader, as a mean weighted by samples.

    `ignored` is the number of pass results that the reader skips. Each of these results is the mean of values that the reader
    has already received.
    """

    __slots__ = ("_mean", "_windows", "ignored")

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """Discard all values, for a new run."""
        self._mean, self._windows, self.ignored = Mean(), 0, 0

    def add(self, value: float, weight: float) -> None:
        """Add a host number."""
        self._mean.add(value, weight)

    def add_window(self, window: Mean) -> None:
        """Add a closed window, whose copy to the host was queued one log step ago."""
        self._mean.add_mean(window)
        self._windows += 1

    @property
    def is_full(self) -> bool:
        """Whether to call `settle` before the next read."""
        return self._windows >= MAX_PENDING

    def settle(self) -> None:
        """Convert the values to floats, to free their tensors."""
        self._mean.sums()
        self._windows = 0

    @property
    def is_pending(self) -> bool:
        """Whether reading may wait for a copy to the host."""
        return self._mean.is_pending

    def take(self) -> float | None:
        """Return the mean, or None if nothing was logged. Start a new window."""
        mean, self._mean, self._windows = self._mean, Mean(), 0
        _, weight, _ = mean.sums()
        return float(mean) if weight else None

    def state_dict(self) -> dict[str, Any]:
        return {"unread": self._mean.state(), "ignored": self.ignored}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._mean, self._windows = Mean().restore(state.get("unread", (0.0, 0.0))), 0
        self.ignored = state.get("ignored", 0)

    __getstate__, __setstate__ = state_dict, load_state_dict  # a Mean holds a lock, which cannot be pickled
