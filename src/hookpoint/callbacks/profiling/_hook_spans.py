"""HookSpans: turn points and handler calls into nested spans."""

from __future__ import annotations

from collections.abc import Callable
from threading import get_ident
from time import perf_counter_ns
from typing import Any

from hookpoint.callbacks.profiling._chrome_trace import ChromeTrace
from hookpoint.core.run.run import Run
from hookpoint.core.run_view import Dispatch

MODES = ("train", "val", "pred")
FETCH, ITERATION, BACKWARD, STEP = "data fetch", "iteration", "backward", "optimizer step"

# The span that a point begins or ends. A span begins before the handlers of its first point are called, and ends after the
# handlers of its last point.
BEGINS = {
    "on_epoch_begin": "epoch",
    "on_batch_fetch_begin": FETCH,
    "on_backward_begin": BACKWARD,
    "on_step_begin": STEP,
    **{f"on_{mode}_epoch_begin": f"{mode} pass" for mode in MODES},
    **{f"on_{mode}_iter_begin": ITERATION for mode in MODES},
}
ENDS = {**{point.replace("_begin", "_end"): level for point, level in BEGINS.items()}, "on_iter_skip": ITERATION}
FORWARDS = ("on_train_forward", "on_val_forward", "on_pred_forward", "on_iter_forward")
OF_ITERATIONS = (FETCH, ITERATION, BACKWARD, STEP)
ENDS_FORWARD = ("on_train_forward", "on_iter_backward", "on_backward_begin", "on_train_iter_end", "on_iter_skip")
# Iteration points are recorded only in a window of steps. Points in DECIDE come first in an iteration and determine whether it
# is recorded. Points in FOLLOW come later and apply that decision.
DECIDE = ("on_batch_fetch_begin", *(f"on_{mode}_iter_begin" for mode in MODES))
FOLLOW = (
    *(point for points in (BEGINS, ENDS) for point, level in points.items() if level in OF_ITERATIONS and point not in DECIDE),
    *FORWARDS,
    "on_iter_backward",
    "on_iter_error",
)


class HookSpans:
    """Track the levels that are open on the run's thread: run, epoch, pass, iteration, and the spans inside an iteration.

    A level ends at its end point, or when an enclosing level ends. If an exception interrupts a level, the level ends together
    with the handler in which it began. `records` is True while iteration points and their handlers are recorded. The first
    `steps` steps are recorded. With `every=1000`, the first `steps` steps of each 1000 steps are recorded. Callers check
    `records` first, because most steps are not recorded.
    """

    def __init__(self, run: Run, trace: ChromeTrace, began: int, steps: int | None, every: int | None) -> None:
        self.records = True
        self._run = run
        self._trace = trace
        self._steps, self._every = steps, every
        self._first_step: int | None = None
        self._thread = get_ident()
        self._levels: list[tuple[str, bool]] = [("run", True)]  # each level's name, and `records` before the level began
        self._floor = 0  # levels below this index began outside the running handler
        self._in_window = True
        self._body_began: tuple[int, int, int] | None = None
        trace.begin("run", began, run=run.name)

    def end_run(self) -> None:
        self._floor = 0
        self._close_to(0)

    def end_all_but_run(self) -> None:
        """End the spans that an exception interrupted."""
        if get_ident() == self._thread:
            self._close_to(1)
            self.records = not self._trace.is_full

    def begins_recorded(self, run: Run) -> bool:
        """Return whether to record the data fetch or iteration that begins now, and set `records`."""
        if run.mode == "train":
            if self._first_step is None:
                self._first_step = run.step
            done = run.step - self._first_step
            self._in_window = self._steps is None or (done if self._every is None else done % self._every) < self._steps
            if get_ident() == self._thread:
                self._close_inside(f"{run.mode} pass")  # ends spans of a pass that failed in an unrecorded handler
        self.records = self._in_window and not self._trace.is_full
        return self.records

    def call(self, name: str, point: str, function: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        """Call a handler and record its span."""
        is_run_thread = get_ident() == self._thread
        outer = self._floor
        if is_run_thread:
            self._floor = len(self._levels)
        began = perf_counter_ns()
        try:
            return function(*args, **kwargs)
        finally:
            if is_run_thread:
                self._close_to(self._floor)
                self._floor, self.records = outer, not self._trace.is_full
            self._trace.complete(name, began, perf_counter_ns(), point=point, step=self._run.step, epoch=self._run.epoch)

    def fire(self, point: str, dispatch: Dispatch | None, run: Run) -> None:
        """Dispatch a point, record its span, and begin or end the level it belongs to."""
        if get_ident() != self._thread or self._trace.is_full:
            if dispatch is not None:
                dispatch(run)
            return
        begins, ends = BEGINS.get(point), ENDS.get(point)
        outer = self._floor, self.records
        self.records = True
        if point in ENDS_FORWARD:
            self._infer_forward(point, run)
        if begins is not None:
            self._begin(begins, run, outer[1])
        elif ends is not None:
            self._close_inside(ends)
        self._floor, began = len(self._levels), perf_counter_ns()
        try:
            if dispatch is not None:
                dispatch(run)
        finally:
            self._close_to(self._floor)
            if dispatch is not None:
                name = "forward" if point in FORWARDS else point
                self._trace.complete(name, began, perf_counter_ns(), step=run.step, epoch=run.epoch)
            self._floor, self.records = outer
            if begins is not None:
                self.records = not self._trace.is_full
            elif ends is not None:
                self._end(ends)
        if point == "on_train_iter_begin":
            self._body_began = perf_counter_ns(), len(self._levels), self._floor

    def _infer_forward(self, point: str, run: Run) -> None:
        """Record a forward pass for which no point fires, from the start of the iteration to the backward pass."""
        body, self._body_began = self._body_began, None
        if body is not None and point.endswith(("backward", "backward_begin")):
            began, *place = body
            if place == [len(self._levels), self._floor]:
                self._trace.complete("forward", began, perf_counter_ns(), step=run.step, epoch=run.epoch)

    def _begin(self, level: str, run: Run, records: bool) -> None:
        self._levels.append((level, records))
        at, name = perf_counter_ns(), level if level != "epoch" else f"epoch {run.epoch}"
        batch = {"batch_idx": getattr(run, "batch_idx", -1)} if level in (ITERATION, FETCH) else {}
        self._trace.begin(name, at, step=run.step, epoch=run.epoch, **batch)

    def _close_inside(self, level: str) -> None:
        """End the spans that are open inside a level."""
        for depth in range(len(self._levels), self._floor, -1):
            if self._levels[depth - 1][0] == level:
                self._close_to(depth)
                return

    def _end(self, level: str) -> None:
        if len(self._levels) > self._floor and self._levels[-1][0] == level:
            self._close_to(len(self._levels) - 1)
        if level not in OF_ITERATIONS:
            self._trace.flush()

    def _close_to(self, depth: int) -> None:
        while len(self._levels) > depth:
            _, self.records = self._levels.pop()
            self._trace.end(perf_counter_ns())
