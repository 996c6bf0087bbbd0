"""Calls: which handlers run at which point, on which schedule, and with which checks."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from hookpoint.core.callback.handlers import Handler
from hookpoint.core.callback.pipeline import NEVER_GATED
from hookpoint.core.errors import MissingMetric
from hookpoint.core.hooks.dispatch import Call
from hookpoint.core.hooks.entry import Entry
from hookpoint.core.schedule.armed_schedule import ArmedSchedule

if TYPE_CHECKING:
    from hookpoint.core.run_view import RunView


def schedule_key(handler: Handler) -> str:
    return f"{handler.spelling}@{handler.point}"


def calls_of(entry: Entry, handler: Handler) -> Iterator[Call]:
    """Yield a `Call` for each point at which a run may call this handler.

    Most handlers have a single point. A trigger can have several, such as each point at which its schedule is checked.
    """
    if handler.point == "on_trigger":
        yield from _trigger_calls(entry, handler)
    else:
        armed = entry.arm(schedule_key(handler), handler.when) if handler.when is not None else None
        when = repr(handler.when) if handler.when is not None else ""
        yield Call(handler.point, entry, handler, armed=armed, when=when, gates=gates_of(entry, handler.point))


def _trigger_calls(entry: Entry, handler: Handler) -> Iterator[Call]:
    schedule = handler.when if handler.when is not None else entry.schedule
    if schedule is None:
        if handler.spelling == "_trigger" and any(other.spelling == "_trigger_epoch" for other in entry.handlers):
            return  # as in tensorpack, where _trigger_epoch calls _trigger by default
        yield Call("on_epoch_end", entry, handler, complete_only=True, gates=gates_of(entry, "on_epoch_end"))
    else:
        armed = entry.arm(schedule_key(handler), schedule)
        for moment, point in (("iter", "on_iter_end"), ("epoch", "on_epoch_end")):
            if moment in schedule.moments():
                call = Call(
                    point, entry, handler, armed=armed, when=repr(schedule), moment=moment, gates=gates_of(entry, point)
                )
                call.train_only, call.complete_only = moment == "iter", moment == "epoch"
                yield call
    if any(getattr(pipeline, "before_train", False) for pipeline in entry.path):
        yield Call("on_run_begin", entry, handler)
    yield Call("on_trigger", entry, handler)


def gates_of(entry: Entry, point: str) -> tuple[ArmedSchedule, ...]:
    """Return the conditions that a callback's wrappers set for this point."""
    return () if point in NEVER_GATED else entry.gates()


def check_reads(calls: list[Call]) -> None:
    """Add a check to each call that reads a metric written by an earlier call at the same point.

    The check raises MissingMetric if the metric was not logged. It is not added if the reader's errors do not end the run.

    Calls at points whose names end in `_begin` are not checked, because callbacks only do setup work at these points. In the
    last epoch, a missing metric does not raise an error, because training is already done.
    """
    writers: dict[str, list[Call]] = {}  # maps a metric to the earlier calls that write it
    for call in calls:
        if call.point in NEVER_GATED or call.point.endswith("_begin"):
            continue
        written: dict[Entry, set[str]] = {}
        for metric in call.entry.declared("reads"):
            for writer in writers.get(metric, ()):
                writer.notes_run = True
                written.setdefault(writer.entry, set()).add(metric)
        if written and call.entry.on_error == "raise":  # otherwise, a missing metric is a warning before the next epoch
            call.needs = _needs(call.entry.name, written)
        for metric in call.entry.declared("writes"):
            writers.setdefault(metric, []).append(call)


def _needs(reader: str, written: dict[Entry, set[str]]) -> Callable[[RunView], None]:
    def check(run: RunView) -> None:
        if run.max_epochs is None or run.epoch >= run.max_epochs:
            return
        for writer, names in written.items():
            for name in names if writer.has_run else ():
                if name not in run.metrics and run.stop_reason is None:  # after a stop, `writer` may not have run
                    raise MissingMetric(name, run.metrics, reader=reader, why=f"which {writer.name} declares but did not log")

    return check
