"""Windows: the values of training passes on their way to readers with a step schedule.

A host number is visible to its readers at once. A device tensor is visible one log step late: its window closes at a log step,
where a copy to the host is queued, and is in flight until the next log step, where it is always read. The moment at which a
value counts therefore depends on steps only, not on the speed of a machine, and the device is never waited for. In a team, all
values take this way, as means over all processes. When the pass ends, everything is visible.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from hookpoint.core.log.metrics import Floats, Mean, floats_one_by_one
from hookpoint.core.log.reader_window import ReaderWindow


class Windows:
    """A way for each metric that any rank reads by steps. Without such readers there is none, and nothing is done."""

    def __init__(
        self,
        names: Iterable[str] = (),
        floats: Floats = floats_one_by_one,
        may_wait: Callable[[], AbstractContextManager[None]] = nullcontext,
    ) -> None:
        self.ways = {name: Way(floats) for name in names}  # where values of a name go; a name that nobody reads has none
        self._may_wait = may_wait  # for a copy that was queued a log step ago, and for nothing else

    def attach(self, name: str, reader: ReaderWindow) -> None:
        """Let a reader have what is logged under this name from now on, where it is a name that is read by steps."""
        if name in self.ways:
            self.ways[name].readers.append(reader)

    def have_all_late(self) -> None:
        """Make numbers of the host as late as device tensors: a team has the means of both at log steps."""
        for way in self.ways.values():
            way.is_all_late = True

    def read(self, reader: ReaderWindow) -> float | None:
        """Return the mean of what a reader sees and has not read; None where there is nothing new."""
        with self._may_wait() if reader.is_pending else nullcontext():
            return reader.take()

    def ignore(self, names: Iterable[str]) -> None:
        """Note a final value of each of these names, which readers have seen, or will see, in their windows."""
        for name in names:
            for reader in self.ways[name].readers if name in self.ways else ():
                reader.ignored += 1

    def close(self) -> dict[str, Mean]:
        """Close the current windows, queue their copies to the host, and return them."""
        closed = {name: way.late for name, way in self.ways.items() if way.late is not None}
        self.drop()
        for mean in closed.values():
            mean.close()
        return closed

    def launch(self, closed: Mapping[str, Mean]) -> None:
        """Put closed windows in flight; what was in flight before is visible."""
        self.land()
        for name, mean in closed.items():
            if name in self.ways:
                self.ways[name].in_flight = mean

    def land(self) -> None:
        """Make what is in flight visible to its readers."""
        for way in self.ways.values():
            part, way.in_flight = way.in_flight, None
            if part is not None:
                for reader in way.readers:
                    reader.add_part(part)
                    if reader.has_many_parts:
                        with self._may_wait():
                            reader.settle()

    def drop(self) -> None:
        """Forget the current windows: their pass is cut off."""
        for way in self.ways.values():
            way.late = None

    def state_dict(self) -> dict[str, Any]:
        return {
            "late": {name: way.late.state() for name, way in self.ways.items() if way.late is not None},
            "in_flight": {name: way.in_flight.state() for name, way in self.ways.items() if way.in_flight is not None},
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take back what was kept; checkpoints of before there were windows have none."""
        for name, way in self.ways.items():
            way.late, way.in_flight = way.kept(state.get("late", {}), name), way.kept(state.get("in_flight", {}), name)


class Way:
    """What is known of one metric: the window that is open, the one in flight, and who reads them."""

    __slots__ = ("_floats", "in_flight", "is_all_late", "late", "readers")

    def __init__(self, floats: Floats) -> None:
        self._floats = floats
        self.is_all_late = False
        self.readers: list[ReaderWindow] = []
        self.late: Mean | None = None
        self.in_flight: Mean | None = None

    def put(self, value: Any, weight: float) -> None:
        """Take in a value."""
        if not self.is_all_late and (type(value) is float or type(value) is int):
            for reader in self.readers:
                reader.add(value, weight)
            return
        if self.late is None:
            self.late = Mean(self._floats)
        self.late.add(value, weight)

    def mean(self) -> Mean:
        """Return a mean for a page of the logbook, whose values go to the readers too."""
        return ReadMean(self, self._floats)

    def kept(self, sums: Mapping[str, Any], name: str) -> Mean | None:
        """Return the mean that a checkpoint has under a name, or None."""
        return Mean(self._floats).restore(sums[name]) if name in sums else None


class ReadMean(Mean):
    """A mean whose values go to readers, too. With a class of its own, a metric that nobody reads pays nothing."""

    __slots__ = ("_way",)

    def __init__(self, way: Way, floats: Floats) -> None:
        super().__init__(floats)
        self._way = way

    def add(self, value: Any, weight: float) -> None:
        super().add(value, weight)
        self._way.put(value, weight)
