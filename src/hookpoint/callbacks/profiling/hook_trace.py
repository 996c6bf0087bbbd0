"""HookTrace: record when each callback runs, and for how long."""

from __future__ import annotations

from pathlib import Path
from time import perf_counter_ns
from typing import Any, Unpack

from hookpoint.callbacks._shared.arguments import integer
from hookpoint.callbacks._shared.workdir import rank_suffix, require_workdir
from hookpoint.callbacks.profiling._chrome_trace import ChromeTrace, next_free
from hookpoint.callbacks.profiling._hook_spans import BEGINS, DECIDE, ENDS, FOLLOW, HookSpans
from hookpoint.core.callback.callback import Options
from hookpoint.core.callback.watcher import Function, Watcher
from hookpoint.core.errors import BadArgument
from hookpoint.core.logger import logger
from hookpoint.core.run.run import Run
from hookpoint.core.run_view import Dispatch

LAST = ("on_exception", "on_run_end")


class HookTrace(Watcher):
    """Write a trace of the run and of every callback, for Perfetto and chrome://tracing.

    The trace contains spans for the run, its epochs, passes, data fetches, iterations, forward and backward passes and
    optimizer steps. The run's span begins at on_setup. These spans contain the points, and the points contain the callbacks'
    handlers. Monitors appear on their own threads. If no point fires for the forward pass, its span is the time between the
    start of the iteration and the backward pass. Times are measured on the host, so a GPU may still be working when a span
    ends. Use `ProfilerTrace` to record the GPU.

    When a run starts for the first time, the callback writes `profile/hooks-1.json` in the workdir. Each time the run starts
    again, the callback writes a new file: `hooks-2.json`, `hooks-3.json` and so on. Iterations are recorded for the first
    `steps` steps after each start and, with `every`, for the first `steps` of every `every` steps. With `steps=None`, all
    iterations are recorded. Epochs, passes and their points are always recorded. Recording ends after `max_events` events of
    about 130 bytes each. Events are written after each pass and every 512 events, so the file is useful even if the run is
    killed. A full disk ends the trace, not the run.

    Listens to on_setup, and traces every call to the other callbacks. With `ranks="all"`, each rank writes its own file.

    >>> import json
    >>> with Loop([HookTrace(steps=20)], workdir="runs/traced") as run:
    ...     for batch in run.batches(range(3)): run.log(loss=batch)
    >>> trace = json.loads(Path("runs/traced/profile/hooks-1.json").read_text())
    >>> [event["name"] for event in trace if event.get("name") in ("run", "train pass", "iteration")]
    ['run', 'train pass', 'iteration', 'iteration', 'iteration']
    """

    ranks = "chief"

    step_cost = "four microseconds per recorded span; three microseconds for a step that is not recorded"

    def __init__(
        self, steps: int | None = 100, *, every: int | None = None, max_events: int = 200_000, **options: Unpack[Options]
    ) -> None:
        super().__init__(**options)
        self.steps = None if steps is None else integer("HookTrace", "steps", steps, least=1)
        self.every = None if every is None else integer("HookTrace", "every", every, least=1)
        self.max_events = integer("HookTrace", "max_events", max_events, least=1)
        if self.every is not None and self.steps is not None and self.every <= self.steps:
            raise BadArgument(f"HookTrace: every={every} must be above steps={steps}.", give="steps=None to record every step")
        self._trace: ChromeTrace | None = None
        self._spans: HookSpans | None = None

    def on_setup(self, run: Run) -> None:
        require_workdir(self.name or "HookTrace", run)

    def around_call(self, name: str, point: str, function: Function) -> Function:
        is_last = point in LAST

        def watched(*args: Any, **kwargs: Any) -> Any:
            spans = self._spans
            if spans is not None and is_last:
                spans.end_all_but_run()
            if spans is None or not spans.records:
                return function(*args, **kwargs)
            return spans.call(name, point, function, args, kwargs)

        return watched

    def around_points(self, points: tuple[str, ...], dispatch: Dispatch | None) -> Dispatch | None:
        point = max(points, key=len)  # the most specific: on_train_iter_begin, not on_iter_begin, which fires with it
        if dispatch is None and point not in BEGINS and point not in ENDS and point != "on_setup":
            return None
        decides, follows = point in DECIDE, point in FOLLOW

        def watched(run: Run) -> None:
            spans = self._spans
            if spans is not None and (spans.begins_recorded(run) if decides else spans.records or not follows):
                spans.fire(point, dispatch, run)
            elif dispatch is not None:
                dispatch(run)

        if point != "on_setup":
            return watched

        def entered(run: Run) -> None:
            self._enter(run)
            watched(run)

        return entered

    def leave(self) -> None:
        spans, self._spans = self._spans, None
        trace, self._trace = self._trace, None
        if spans is not None:
            spans.end_run()
        if trace is not None:
            trace.close()

    def _enter(self, run: Run) -> None:
        self.leave()
        if run.workdir is None:
            return
        began = perf_counter_ns()
        path = next_free(Path(run.workdir) / "profile", f"hooks{rank_suffix(run)}")
        title = f"{run.name}, rank {run.rank}"
        try:
            self._trace = ChromeTrace(path, process=run.rank, title=title, began=began, max_events=self.max_events)
        except OSError as error:
            logger.warning("%s could not be written: %s; nothing is traced", path, error.strerror)
            return
        self._spans = HookSpans(run, self._trace, began, self.steps, self.every)

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "_trace": None, "_spans": None}
