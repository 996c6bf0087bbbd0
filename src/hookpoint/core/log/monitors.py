"""Monitors: the way from what is logged to those who receive it, and the place to look a value up."""

from __future__ import annotations

import logging
from functools import partial
from time import monotonic
from typing import TYPE_CHECKING, Any

from hookpoint.core.hooks.entry import MONITOR, Entry
from hookpoint.core.log._monitor_queue import Delivery
from hookpoint.core.log.metrics import Metrics
from hookpoint.core.log.records import Kind, Record

if TYPE_CHECKING:
    from hookpoint.core.hooks.hooks import Hooks
    from hookpoint.core.run_view import RunView
    from hookpoint.core.schedule.clocks import Clocks

logger = logging.getLogger("hookpoint")

DRAIN_SECONDS = 10.0


class Monitors:
    """Everything that receives records, as one; callbacks ask it for the latest value of a metric and its history."""

    def __init__(self, hooks: Hooks, run: RunView, metrics: Metrics, clocks: Clocks) -> None:
        self.is_muted = False
        self._metrics = metrics
        self._clocks = clocks
        self._run = run
        self._gates = {
            Delivery(entry.name, partial(self._hand_over, entry), drops=getattr(entry.subject, "outside", False)): entry.gates()
            for entry in hooks.entries
            if entry.kind == MONITOR
        }
        self._deliveries = list(self._gates)
        self._resolver = Delivery("values", _resolve)

    def get_latest(self, name: str) -> float:
        """Return the latest value of a metric; a missing one is an error that lists what there is."""
        return self._metrics[name]

    def get_history(self, name: str) -> list[tuple[int, float]]:
        """Return (step, value) of the last 10,000 final values of a metric, the oldest first; empty if there are none."""
        return self._metrics.history(name)

    def put_scalar(self, name: str, value: Any) -> None:
        """Log a value under just this name, also in validation. It keeps its step: only `run.log` averages."""
        self._run.put_scalar(name, value)

    def put_image(self, name: str, image: Any) -> None:
        """Send an image, height x width x channels or a batch of such, to the monitors."""
        self._run.put_image(name, image)

    def put_event(self, name: str, **fields: Any) -> None:
        """Send word of something that happened to the monitors."""
        self._run.put_event(name, **fields)

    def put(self, kind: Kind, values: dict[str, Any], *, at: str = "value", mode: str | None = None) -> None:
        """Send a record to every monitor; a wrapper such as EnableCallbackIf says now whether the one in it gets this."""
        if self.is_muted:
            return
        clocks = self._clocks
        record = Record(kind, values, clocks.step, clocks.epoch, at, mode=mode, iteration=clocks.iteration)
        receivers = [one for one in self._deliveries if all(gate.ready(self._run, None) for gate in self._gates[one])]
        for delivery in receivers:
            delivery.put(record)
        if not receivers and kind == "scalars" and any(getattr(value, "is_pending", False) for value in values.values()):
            self._resolver.put(record)

    def raise_errors(self) -> None:
        """Raise what a monitor with `on_error="raise"` failed with, on the thread that trains."""
        errors = self.take_errors()
        if errors:
            raise errors[0] if len(errors) == 1 else ExceptionGroup("monitors failed", errors)

    def take_errors(self) -> list[Exception]:
        """Return what monitors failed with; they get no further records."""
        failed = [delivery for delivery in self._deliveries if delivery.error is not None]
        for delivery in failed:
            self._deliveries.remove(delivery)
        return [delivery.error for delivery in failed if delivery.error is not None]

    def drain(self, seconds: float = DRAIN_SECONDS) -> None:
        """Wait until every monitor has what was sent to it, for so long at most; say what was lost."""
        deadline = monotonic() + seconds
        for delivery in (*self._deliveries, self._resolver):
            left = delivery.drain(deadline)
            if left and delivery.error is None:
                logger.warning("%s was too slow: %d records did not reach it within %g s", delivery.name, left, seconds)
            if delivery.dropped:
                logger.warning("%s was too slow: the oldest %d records were dropped", delivery.name, delivery.dropped)

    def settle(self) -> None:
        """Wait until the monitors of this machine have what was sent to them, so that a checkpoint knows where they stand."""
        deadline = monotonic() + DRAIN_SECONDS
        for delivery in self._deliveries:
            if not delivery.drops:
                delivery.drain(deadline)

    def close(self) -> None:
        """End the threads; what was sent after this reaches nobody."""
        for delivery in (*self._deliveries, self._resolver):
            delivery.close()

    def _hand_over(self, entry: Entry, records: list[Record]) -> None:
        for handler in entry.handlers:
            if handler.point == "on_records":
                try:
                    entry.contained(handler.call, "on_records")({"records": records, "run": self._run})
                except BaseException as error:
                    error.add_note(f"in callback {entry.name} at on_records")
                    raise


def _resolve(records: list[Record]) -> None:
    for record in records:
        record.scalars()
