"""HookTrace: who ran at which point, and for how long."""

from __future__ import annotations

import logging
from pathlib import Path
from time import perf_counter_ns
from typing import TYPE_CHECKING, Any

from hookpoint.callbacks._shared.arguments import whole
from hookpoint.callbacks.profiling._chrome_trace import ChromeTrace, next_free
from hookpoint.callbacks.profiling._hook_spans import BEGINS, DECIDE, ENDS, FOLLOW, HookSpans, StepWindow
from hookpoint.core.callback.watcher import Watcher
from hookpoint.core.errors import BadArgument, BadLoop

if TYPE_CHECKING:
    from typing import Unpack

    from hookpoint.core.callback.callback import Options
    from hookpoint.core.callback.watcher import Function
    from hookpoint.core.run.run import Run
    from hookpoint.core.run_view import Dispatch

logger = logging.getLogger("hookpoint")

LAST = ("on_exception", "on_run_end")


class HookTrace(Watcher):
    """Write what the run did when, and each callback's part in it, as a trace that Perfetto and chrome://tracing open.

    Spans of the run from on_setup on, its epochs, passes, data fetches, iterations, forward, backward and optimizer steps; in
    them the points, and in these each callback's handler, also those of monitors, on threads of their own. A forward without a
    point is what an iteration did before its backward. Times are the host's: a GPU works on while they pass; `ProfilerTrace`
    shows that.

    The files are `profile/hooks-1.json` in the workdir, `hooks-2.json` of the next start, and so on. Iterations are recorded in
    the first `steps` steps of a start, and as many again after each `every`; all of them with `steps=None`. Epochs, passes and
    their points always are. After `max_events` nothing more is, 130 bytes each. What is written is in the file after each
    pass, and else after 512 events: also a run that is killed leaves a trace. A full disk ends the trace and not the run.

    Listens to on_setup; it is a watcher: the hooks show it each call of every other callback. Keeps nothing in the checkpoint.
    Runs on the chief; with `ranks="all"` each rank has a file of its own. A step pays four microseconds per span while it is
    recorded, and else three in all.

    >>> import json
    >>> with Loop([HookTrace(steps=20)], workdir="runs/traced") as run:
    ...     for batch in run.batches(range(3)): run.log(loss=batch)
    >>> trace = json.loads(Path("runs/traced/profile/hooks-1.json").read_text())
    >>> [event["name"] for event in trace if event.get("name") in ("run", "train pass", "iteration")]
    ['run', 'train pass', 'iteration', 'iteration', 'iteration']
    """

    ranks = "chief"

    def __init__(
        self,
        steps: int | None = 100,
        *,
        every: int | None = None,
        max_events: int = 200_000,
        **options: Unpack[Options],
    ) -> None:
        super().__init__(**options)
        self.steps = None if steps is None else whole("HookTrace", "steps", steps, least=1)
        self.every = None if every is None else whole("HookTrace", "every", every, least=1)
        self.max_events = whole("HookTrace", "max_events", max_events, least=1)
        if self.every is not None and self.steps is not None and self.every <= self.steps:
            raise BadArgument(
                f"HookTrace(steps={steps}, every={every}) records every step.", give="every= above steps=, or steps=None"
            )
        self._trace: ChromeTrace | None = None
        self._spans: HookSpans | None = None

    def on_setup(self, run: Run) -> None:
        if run.workdir is None:
            own = self.name or "HookTrace"
            raise BadLoop(f"{own} writes its trace into the workdir, and there is none.", give='workdir="runs/name"')

    def around_call(self, name: str, point: str, function: Function) -> Function:
        is_last = point in LAST

        def watched(*args: Any, **kwargs: Any) -> Any:
            spans = self._spans
            if spans is not None and is_last:
                spans.leave_all_but_run()
            if spans is None or not spans.records:
                return function(*args, **kwargs)
            return spans.call(name, point, function, args, kwargs)

        return watched

    def around_points(self, points: tuple[str, ...], dispatch: Dispatch | None) -> Dispatch | None:
        point = max(points, key=len)  # of on_iter_begin and on_train_iter_begin, which are fired as one, the latter
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
        path = next_free(Path(run.workdir) / "profile", "hooks" if run.rank == 0 else f"hooks-rank{run.rank}")
        title = f"{run.name}, rank {run.rank}"
        try:
            self._trace = ChromeTrace(path, process=run.rank, title=title, began=began, max_events=self.max_events)
        except OSError as error:
            logger.warning("%s could not be written: %s; there will be no trace", path, error.strerror)
            return
        self._spans = HookSpans(self._trace, StepWindow(self.steps, self.every))
        self._spans.begin_run(run, began)

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "_trace": None, "_spans": None}
