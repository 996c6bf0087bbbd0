"""LeavingCalls: the handlers inside of a step, which must run outside the CUDA graph when they are due."""

from __future__ import annotations

import logging
from typing import Any

from hookpoint.core.hooks.dispatch import Call
from hookpoint.core.hooks.hooks import Hooks

logger = logging.getLogger("hookpoint")

NAMED_AFTER = 10  # steps in a row that a callback with a schedule or declaration makes leave the graph
POINTS = ("on_backward_begin", "on_backward_end", "on_step_begin")


class LeavingCalls:
    """Tell before a step whether a handler at on_backward_begin, on_backward_end or on_step_begin is due.

    A handler with a schedule is due when that is. A callback that decides by itself has a method `leaves_graph(run)`, which
    returns whether the coming step concerns it. All others are due at every step.
    """

    def __init__(self, hooks: Hooks) -> None:
        calls = [call for point in POINTS for call in hooks.calls(point)]
        self._always = [call for call in calls if call.armed is None and not hasattr(call.entry.subject, "leaves_graph")]
        self._scheduled = [call for call in calls if call.armed is not None]
        self._declared = [call for call in calls if call.armed is None and hasattr(call.entry.subject, "leaves_graph")]
        self._in_a_row: dict[int, int] = {}
        self._named: set[tuple[str, str]] = set()
        hooks.remarks.append(self.lines)

    def are_due(self, run: Any, *, steps: bool) -> bool:
        """Return whether the coming batch, after which the optimizer `steps` or not, must run outside the graph."""
        if self._always:
            return True
        if not (self._scheduled or self._declared):
            return False
        calls = [call for call in (*self._scheduled, *self._declared) if steps or call.point != "on_step_begin"]
        due = [call for call in calls if _is_due(call, run)]
        for call in calls if not due else ():
            if call.armed is not None:
                call.armed.settle(run, call.moment, False)
        self._in_a_row = {id(call): self._in_a_row.get(id(call), 0) + 1 for call in due}
        self._warn([call for call in due if self._in_a_row[id(call)] == NAMED_AFTER])
        return bool(due)

    def warn(self) -> None:
        """Name the callbacks that make every step leave the graph."""
        self._warn(self._always)

    def _warn(self, calls: list[Call]) -> None:
        for name, point in dict.fromkeys((call.entry.name, call.point) for call in calls):
            if (name, point) not in self._named:
                self._named.add((name, point))
                logger.warning("%s listens to %s: every step runs outside the CUDA graph", name, point)

    def lines(self) -> list[str]:
        """Return the steps that run outside the graph, for `explain()`."""
        rows = [(call, "every step") for call in self._always]
        rows += [(call, f"steps of {call.when}") for call in self._scheduled]
        rows += [(call, "steps that it reads") for call in self._declared]
        listed = [f"  {call.entry.name} at {call.point}: {when}" for call, when in rows]
        return ["", "steps outside the CUDA graph", *(listed or ["  none, after the first three"])]


def _is_due(call: Call, run: Any) -> bool:
    if call.armed is None:
        return bool(call.entry.subject.leaves_graph(run))
    return call.armed.ready(run, call.moment) and all(gate.ready(run, None) for gate in call.gates)
