"""HookSpans: from points and calls to spans that lie properly inside of each other."""

from __future__ import annotations

from collections.abc import Callable
from threading import get_ident
from time import perf_counter_ns
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from hookpoint.core.run.run import Run
    from hookpoint.core.run_view import Dispatch

MODES = ("train", "val", "pred")
FETCH, ITERATION, BACKWARD, STEP = "data fetch", "iteration", "backward", "optimizer step"

# What a point begins, and what it ends. A span begins before the handlers of its first point, and ends after those of its last.
BEGINS = {
    "on_epoch_begin": "epoch",
    "on_batch_fetch_begin": FETCH,
    "on_backward_begin": BACKWARD,
    "on_step_begin": STEP,
    **{f"on_{mode}_epoch_begin": f"{mode} pass" for mode in MODES},
    **{f"on_{mode}_iter_begin": ITERATION for mode in MODES},
}
ENDS = {
    **{point.replace("_begin", "_end"): level for point, level in BEGINS.items()},
    "on_iter_skip": ITERATION,
}
FORWARDS = ("on_train_forward", "on_val_forward", "on_pred_forward", "on_iter_forward")
OF_ITERATIONS = (FETCH, ITERATION, BACKWARD, STEP)
ENDS_FORWARD = ("on_train_forward", "on_iter_backward", "on_backward_begin", "on_train_iter_end", "on_iter_skip")
# There are many of these: the window is for them. Those in DECIDE are the first of an iteration, and the others follow them.
DECIDE = ("on_batch_fetch_begin", *(f"on_{mode}_iter_begin" for mode in MODES))
FOLLOW = (
    *(point for points in (BEGINS, ENDS) for point, level in points.items() if level in OF_ITERATIONS and point not in DECIDE),
    *FORWARDS,
    "on_iter_backward",
    "on_iter_error",
)


class Sink(Protocol):
    """Where spans go, as `ChromeTrace` takes them."""

    is_full: bool

    def begin(self, name: str, at: int, **about: Any) -> None: ...

    def end(self, at: int) -> None: ...

    def complete(self, name: str, began: int, ended: int, **about: Any) -> None: ...

    def flush(self) -> None: ...


class StepWindow:
    """Whether a step is recorded: the first `steps` of all, and after each `every` steps as many again."""

    def __init__(self, steps: int | None, every: int | None) -> None:
        self._steps = steps
        self._every = every
        self._first: int | None = None

    def has(self, step: int) -> bool:
        if self._first is None:
            self._first = step
        done = step - self._first
        return self._steps is None or (done if self._every is None else done % self._every) < self._steps


class HookSpans:
    """Keep the levels that are open on the thread of the run: run, epoch, pass, iteration and what is in it.

    A level ends with its point, with one further out, or, where an exception cut it off, with the handler it began in: no
    level outlives what it began in, and nothing that ends inside of a handler began before it. `records` says whether handlers
    and the points of iterations are written at this moment: whoever calls them asks it first, as most steps are not.
    """

    def __init__(self, sink: Sink, window: StepWindow, clock: Callable[[], int] = perf_counter_ns) -> None:
        self.records = True
        self._sink = sink
        self._window = window
        self._clock = clock
        self._thread = get_ident()
        self._levels: list[tuple[str, bool]] = []  # with what `records` was before
        self._floor = 0  # levels below it began outside of the handler that is running
        self._in_window = True
        self._body_began: tuple[int, int, int] | None = None

    def begin_run(self, run: Run, began: int) -> None:
        self._run = run
        self._levels.append(("run", True))
        self._sink.begin("run", began, run=run.name)

    def end_run(self) -> None:
        self._floor = 0
        self._close_to(0)

    def leave_all_but_run(self) -> None:
        """End what an exception cut off."""
        if get_ident() == self._thread:
            self._close_to(1)
            self.records = not self._sink.is_full

    def begins_recorded(self, run: Run) -> bool:
        """Say whether what now begins in a pass, a data fetch or an iteration, is recorded, and `records` with it."""
        if run.mode == "train":
            self._in_window = self._window.has(run.step)
            if get_ident() == self._thread:
                self._close_inside(f"{run.mode} pass")  # of a pass that failed in a handler that was not recorded
        self.records = self._in_window and not self._sink.is_full
        return self.records

    def call(self, name: str, point: str, function: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        """Call a handler, and write its span."""
        is_here = get_ident() == self._thread
        outer = self._floor
        if is_here:
            self._floor = len(self._levels)
        began = self._clock()
        try:
            return function(*args, **kwargs)
        finally:
            if is_here:
                self._close_to(self._floor)
                self._floor, self.records = outer, not self._sink.is_full
            self._sink.complete(name, began, self._clock(), point=point, step=self._run.step, epoch=self._run.epoch)

    def fire(self, point: str, dispatch: Dispatch | None, run: Run) -> None:
        """Make the calls of a point, and write its span; begin and end the levels it stands for."""
        if get_ident() != self._thread or self._sink.is_full:
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
        self._floor, began = len(self._levels), self._clock()
        try:
            if dispatch is not None:
                dispatch(run)
        finally:
            self._close_to(self._floor)
            if dispatch is not None:
                name = "forward" if point in FORWARDS else point
                self._sink.complete(name, began, self._clock(), step=run.step, epoch=run.epoch)
            self._floor, self.records = outer
            if begins is not None:
                self.records = not self._sink.is_full
            elif ends is not None:
                self._end(ends)
        if point == "on_train_iter_begin":
            self._body_began = self._clock(), len(self._levels), self._floor

    def _infer_forward(self, point: str, run: Run) -> None:
        """Write the span of a forward that has no point: what the iteration did before its backward, in the same place."""
        body, self._body_began = self._body_began, None
        if body is not None and point.endswith(("backward", "backward_begin")):
            began, *place = body
            if place == [len(self._levels), self._floor]:
                self._sink.complete("forward", began, self._clock(), step=run.step, epoch=run.epoch)

    def _begin(self, level: str, run: Run, records: bool) -> None:
        self._levels.append((level, records))
        at, name = self._clock(), level if level != "epoch" else f"epoch {run.epoch}"
        if level in (ITERATION, FETCH):
            self._sink.begin(name, at, step=run.step, epoch=run.epoch, batch_idx=getattr(run, "batch_idx", -1))
        else:
            self._sink.begin(name, at, step=run.step, epoch=run.epoch)

    def _close_inside(self, level: str) -> None:
        """End what is still open inside of a level."""
        for depth in range(len(self._levels), self._floor, -1):
            if self._levels[depth - 1][0] == level:
                self._close_to(depth)
                return

    def _end(self, level: str) -> None:
        if len(self._levels) > self._floor and self._levels[-1][0] == level:
            self._close_to(len(self._levels) - 1)
        if level not in OF_ITERATIONS:
            self._sink.flush()

    def _close_to(self, depth: int) -> None:
        while len(self._levels) > depth:
            _, self.records = self._levels.pop()
            self._sink.end(self._clock())
