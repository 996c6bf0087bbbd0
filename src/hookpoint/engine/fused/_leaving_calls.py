"""LeavingCalls: determine whether a step must run outside the CUDA graph because a handler inside the step is due."""

from __future__ import annotations

import logging
from typing import Any

from hookpoint.core.hooks.dispatch import Call
from hookpoint.core.hooks.hooks import Hooks
from hookpoint.engine.fused._hook_watch import HookWatch

logger = logging.getLogger("hookpoint")

NAMED_AFTER = 10  # after this many consecutive steps outside the graph, log which callback causes them
POINTS = ("on_backward_begin", "on_backward_end", "on_step_begin")


class LeavingCalls:
    """Determine before a step whether a handler at on_backward_begin, on_backward_end or on_step_begin is due.

    A handler with a schedule is due when its schedule fires. A callback can define a method `leaves_graph(run)` that returns
    whether the next step must run outside the graph. All other handlers are due at every step. A handler is also due at every
    step if its schedule or wrapper calls a user-defined function, because this function could read the step's loss.
    """

    def __init__(self, hooks: Hooks) -> None:
        calls = [call for point in POINTS for call in hooks.calls(point)]
        self._declared = [call for call in calls if call.armed is None and not call.gates and _declares(call)]
        self._scheduled = [call for call in calls if call.armed is not None and call.armed.by_clock and _are_by_clock(call)]
        self._always = [call for call in calls if call not in self._declared and call not in self._scheduled]
        self._watch: HookWatch | None = None
        self._in_a_row: dict[int, int] = {}
        self._named: set[tuple[str, str]] = set()
        hooks.remarks.append(self.lines)

    def begin(self, watch: HookWatch) -> None:
        """Log which callbacks force every step to run outside the graph."""
        self._watch = watch
        self._warn(self._always, "every step runs")

    def are_due(self, run: Any, *, steps: bool) -> bool:
        """Return whether the next batch must run outside the graph. `steps` is True if the optimizer steps after this batch."""
        if self._always:
            return True
        if not (self._scheduled or self._declared):
            return False
        calls = [call for call in (*self._scheduled, *self._declared) if steps or call.point != "on_step_begin"]
        due = [call for call in calls if _is_due(call, run)]
        for call in calls:
            self._in_a_row[id(call)] = self._in_a_row.get(id(call), 0) + 1 if call in due else 0
        self._warn([call for call in due if self._in_a_row[id(call)] == NAMED_AFTER], f"{NAMED_AFTER} steps in a row run")
        return bool(due)

    def settle(self, run: Any, *, steps: bool) -> None:
        """Advance the schedules after a replayed step, which does not call the handlers."""
        for call in self._scheduled:
            if call.armed is not None and (steps or call.point != "on_step_begin"):
                call.armed.settle(run, call.moment, False)

    def _warn(self, calls: list[Call], which: str) -> None:
        for name, point in dict.fromkeys((call.entry.name, call.point) for call in calls):
            if (name, point) not in self._named:
                self._named.add((name, point))
                logger.warning("%s listens to %s, so %s outside the CUDA graph", name, point, which)

    def lines(self) -> list[str]:
        """Return the lines of `explain()` that describe which steps run outside the graph."""
        rows = [(call, "every step") for call in self._always]
        rows += [(call, f"steps at which {call.when} fires") for call in self._scheduled]
        rows += [(call, "steps for which leaves_graph(run) is True") for call in self._declared]
        listed = [f"  {call.entry.name} at {call.point}: {when}" for call, when in rows]
        if self._watch is not None and self._watch.is_hooked():
            listed.append(f"  {self._watch.owner} has hooks: every step, until they are removed")
        return ["", "steps outside the CUDA graph", *(listed or ["  none after the first three steps"])]


def _is_due(call: Call, run: Any) -> bool:
    if call.armed is None:
        return bool(call.entry.subject.leaves_graph(run))
    return call.armed.ready(run, call.moment) and all(gate.ready(run, None) for gate in call.gates)


def _are_by_clock(call: Call) -> bool:
    return all(gate.by_clock for gate in call.gates)


def _declares(call: Call) -> bool:
    """Return whether the callback's `leaves_graph` applies to a handler. It does not apply to handlers added by a subclass."""
    classes = type(call.entry.subject).__mro__
    declaring = next((place for place, kind in enumerate(classes) if "leaves_graph" in vars(kind)), None)
    handling = next((place for place, kind in enumerate(classes) if call.handler.spelling in vars(kind)), None)
    is_of_wrapper = call.handler.owner not in {kind.__name__ for kind in classes}
    return declaring is not None and not is_of_wrapper and (handling is None or handling >= declaring)
