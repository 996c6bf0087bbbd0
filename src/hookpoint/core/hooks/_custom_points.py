"""CustomPoints: call the handlers for points that users declare. Guards and `run.fire` fire these points."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any
from weakref import WeakKeyDictionary

from hookpoint.core.callback.current import CURRENT
from hookpoint.core.callback.handlers import Handler, handlers_for
from hookpoint.core.callback.replace import Replace
from hookpoint.core.errors import BadArgument, HookpointWarning, OutsideRun
from hookpoint.core.hooks._asynchronous import send_payload
from hookpoint.core.hooks._calls import gates_of, schedule_key
from hookpoint.core.hooks._order import Order
from hookpoint.core.hooks._overridden_run import call_run
from hookpoint.core.hooks._returned import may_return, report
from hookpoint.core.hooks.entry import Entry
from hookpoint.core.points import BY_NAME, SPELLINGS, declared
from hookpoint.core.schedule.armed_schedule import ArmedSchedule
from hookpoint.core.schedule.clocks import Clocks
from hookpoint.core.text.spelling import near_miss


class CustomPoints:
    """The handlers of some callbacks for custom points. They are looked up when a point fires for the first time.

    `beginning` contains the clocks at the start of the run. Outside a run, it is None.
    """

    def __init__(self, entries: Sequence[Entry], logged_moves: set[str]) -> None:
        self.beginning: Clocks | None = None
        self._entries, self._logged_moves = entries, logged_moves
        self._handlers: dict[str, list[tuple[Entry, Handler, tuple[ArmedSchedule, ...]]]] = {}
        # The schedules of a guard, for each run that it was used in. They must not keep the run or the guard's callbacks alive.
        # None until the first use, so that hooks and plain objects that store them (see `compiled`) can be pickled.
        self._started: WeakKeyDictionary[CustomPoints, tuple[Clocks, list[tuple[Entry, str, ArmedSchedule]]]] | None = None

    def fire(self, point: str, payload: Mapping[str, Any], on_failure: Callable[[Exception], None] | None) -> Any:
        """See `Hooks.fire_payload`."""
        if point not in self._handlers:
            self._handlers[point] = list(self._handlers_of(point))
            if not self._handlers[point]:
                self._warn_of_slip(point)
        result = payload.get("result")
        for entry, handler, gates in self._handlers[point]:
            try:
                is_always_due = handler.when is None and not gates
                if not is_always_due and not self._is_due(entry, handler, gates, point, _run_of(payload, handler)):
                    continue
                answer = _call_handler(entry, handler, point, payload)
            except Exception as error:
                if on_failure is None:
                    raise
                on_failure(error)
                continue
            if isinstance(answer, Replace) and "result" in payload:
                result = answer.value
                payload = {**payload, "result": result}
            elif answer is not None and may_return(handler.function):
                report(entry, handler, point, answer)
        return result

    def _warn_of_slip(self, point: str) -> None:
        """Warn about a point that has no handlers, if its name looks like a misspelled name of a point."""
        if not isinstance(point, str):
            raise BadArgument(f"run.fire: expected the name of a point, got {point!r}.", write='run.fire("on_my_point")')
        if point in BY_NAME or point in declared():
            return
        handled = [handler.spelling for entry in self._entries for handler in entry.called if handler.point not in BY_NAME]
        known = (*BY_NAME, *handled)
        meant = f"on_{point}" if f"on_{point}" in known else near_miss(point, known) if point not in SPELLINGS else None
        if meant is not None:
            otherwise = f" If not, call hookpoint.declare({point!r}) once." if point.startswith("on_") else ""
            text = f"run.fire({point!r}) calls no handler. Did you mean {meant}?{otherwise}"
            warnings.warn(text, HookpointWarning, stacklevel=5)

    def _is_due(self, entry: Entry, handler: Handler, gates: tuple[ArmedSchedule, ...], point: str, run: Any) -> bool:
        of_run = getattr(getattr(run, "hooks", None), "custom_points", None)
        if isinstance(of_run, CustomPoints) and of_run.beginning not in (None, self.beginning):
            self._follow(of_run, of_run.beginning)
        allowed = entry.decided(point, lambda: all(gate.ready(run, None) for gate in gates))
        armed = entry.armed.get(schedule_key(handler))
        return allowed if armed is None else entry.decided(point, lambda: armed.take(run, None, allowed))

    def _follow(self, of_run: CustomPoints, beginning: Clocks) -> None:
        """Use schedules that started with a run. A guard may be used in several runs, one after another."""
        if self._started is None:
            self._started = WeakKeyDictionary()
        own_beginning, started = self._started.get(of_run, (None, []))
        if own_beginning is not beginning:
            started = []
            for entry in self._entries:
                for handler in entry.called:
                    if handler.when is not None:
                        armed = handler.when.arm()
                        armed.start(beginning)
                        started.append((entry, schedule_key(handler), armed))
            self._started[of_run] = beginning, started
        for entry, key, armed in started:
            entry.armed[key] = armed
        self.beginning = beginning

    def _handlers_of(self, point: str) -> Iterator[tuple[Entry, Handler, tuple[ArmedSchedule, ...]]]:
        entries = Order(point, [entry for entry in self._entries if _has_handler(entry, point)], self._logged_moves).entries
        for entry in entries:
            overrides_run = [handler for handler in entry.called if handler.spelling == "run"]
            for handler in overrides_run[:1] or handlers_for(entry.called, point):
                yield entry, handler, gates_of(entry, point)


def _has_handler(entry: Entry, point: str) -> bool:
    return any(handler.spelling == "run" or handler.handles(point) for handler in entry.called)


def _call_handler(entry: Entry, handler: Handler, point: str, payload: Mapping[str, Any]) -> Any:
    if entry.background is not None:
        return send_payload(entry.background, entry, handler, point, payload)
    call = partial(call_run, entry.subject, point) if handler.spelling == "run" else handler.call
    try:
        return entry.contained(call, point)(payload)
    except BaseException as error:
        run = CURRENT.get()
        where = f" (step {run.step}, rank {run.rank})" if run is not None else ""
        error.add_note(f"in callback {entry.name} at {point}{where}")
        raise


def _run_of(payload: Mapping[str, Any], handler: Handler) -> Any:
    if payload.get("run") is None:
        raise OutsideRun(
            f"{handler.owner}.{handler.spelling} has a schedule, which needs the clocks of a run; no run is active."
        )
    return payload["run"]
