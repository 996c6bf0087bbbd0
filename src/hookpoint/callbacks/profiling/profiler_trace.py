"""ProfilerTrace: record a few steps with torch's profiler."""

from __future__ import annotations

import math
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack

from hookpoint.callbacks._shared.arguments import integer
from hookpoint.callbacks._shared.extras import optional
from hookpoint.callbacks._shared.workdir import rank_suffix, require_workdir
from hookpoint.core.callback.callback import Callback, Options
from hookpoint.core.errors import BadArgument
from hookpoint.core.logger import logger
from hookpoint.core.run.run import Run
from hookpoint.core.text.terminal import say

if TYPE_CHECKING:
    from hookpoint.callbacks.profiling._torch_profile import TorchProfile


class ProfilerTrace(Callback):
    """Record a few training steps with torch's profiler: write a Chrome trace, and print the most expensive operations.

    ProfilerTrace skips the first `wait` steps after a start or resume, warms up for `warmup` steps, and records `steps` steps.
    With `at`, it starts recording at optimizer step `at` instead. The trace includes everything that happens between these
    steps, such as a validation pass. The trace is written to the folder `profile` in the workdir. The file name, such as
    `trace-step-00000012.json`, contains the number of steps before the recording. With `compress`, the name ends in `.json.gz`.
    The `rows` most expensive operations are printed to stderr. CPU activity and, if available, CUDA activity are recorded.
    `shapes`, `memory` and `stacks` add details, and slow the steps down. If the run ends during the recording, the steps
    recorded so far are written.

    Profiled steps are slower, and a GPU is synchronized when a recording begins and ends. A process has only one profiler. If
    it is already in use, nothing is recorded and a warning is logged. If profiling fails, a warning is logged and the run
    continues.

    Listens to on_setup, on_run_begin, on_train_iter_begin, on_train_iter_end and on_run_end. Sends the event "profile". With
    `ranks="all"`, each rank writes its own file.

    >>> ProfilerTrace(wait=10, steps=3).steps, ProfilerTrace(at=500, steps=3, compress=True).at
    (3, 500)
    """

    ranks = "chief"
    on_error = "warn"
    step_cost = "one comparison, unless the step is recorded"

    def __init__(
        self,
        *,
        wait: int | None = None,
        at: int | None = None,
        warmup: int = 2,
        steps: int = 3,
        rows: int = 10,
        compress: bool = False,
        shapes: bool = False,
        memory: bool = False,
        stacks: bool = False,
        **options: Unpack[Options],
    ) -> None:
        super().__init__(**options)
        if wait is not None and at is not None:
            raise BadArgument(f"ProfilerTrace: wait={wait} and at={at} are mutually exclusive.", give="one of them")
        self.at = None if at is None else integer("ProfilerTrace", "at", at)
        self.wait = 5 if wait is None else integer("ProfilerTrace", "wait", wait)
        self.warmup = integer("ProfilerTrace", "warmup", warmup)
        self.steps = integer("ProfilerTrace", "steps", steps, least=1)
        self.rows = integer("ProfilerTrace", "rows", rows)
        self.compress = compress
        self._profile_options = {"record_shapes": shapes, "profile_memory": memory, "with_stack": stacks}
        self._profile: TorchProfile | None = None
        self._next = math.inf  # the next step at which to warm up, record or finish
        self._record_at: int | None = None
        self._first_step = 0  # number of steps before the recording; after a resume, it may exceed `_record_at`

    def on_setup(self, run: Run) -> None:
        require_workdir(self.name or "ProfilerTrace", run)

    def on_run_begin(self, run: Run) -> None:
        self._stop()
        self._record_at, self._next = self.at, math.inf
        if run.workdir is not None and optional(self.name or "ProfilerTrace", "torch", extra="torch") is not None:
            self._next = 0 if self.at is None else self.at - self.warmup

    def on_train_iter_begin(self, run: Run) -> None:
        if run.step >= self._next:
            self._advance(run)

    def on_train_iter_end(self, run: Run) -> None:
        if self._profile is not None:  # ends the recording before the next step begins
            self._advance(run)

    def on_run_end(self, run: Run) -> None:
        if self._record_at is not None and self._next < math.inf and 0 < run.step <= self._record_at:
            line = "%s recorded nothing: the run ended at step %d, and the recording begins after step %d"
            logger.warning(line, self.name or "ProfilerTrace", run.step, self._record_at)
            self._stop()
        self._next = math.inf
        self._finish(run)

    def _advance(self, run: Run) -> None:
        if self._record_at is None:
            self._next = run.step + self.wait
            self._record_at = run.step + self.wait + self.warmup
        try:
            if run.step >= self._record_at + self.steps:
                self._next = math.inf
                self._finish(run)
            elif run.step >= self._next and (profile := self._profile or self._open()) is not None:
                if run.step < self._record_at:
                    profile.warm_up()
                elif not profile.is_recording:
                    self._first_step = run.step
                    profile.record()
        except BaseException:
            self._next = math.inf
            with suppress(Exception):  # report only the first error
                self._stop()
            raise

    @staticmethod
    def new_profile(**options: Any) -> TorchProfile | None:
        """Return a recording that has not started, or None if torch's profiler is in use."""
        from hookpoint.callbacks.profiling._torch_profile import TorchProfile

        return None if TorchProfile.is_taken() else TorchProfile(options)

    def _open(self) -> TorchProfile | None:
        self._profile = self.new_profile(**self._profile_options)
        if self._profile is None:
            self._next = math.inf
            logger.warning("%s records nothing: torch's profiler is in use", self.name or "ProfilerTrace")
        return self._profile

    def _finish(self, run: Run) -> None:
        profile, first = self._stop(), self._first_step
        if profile is None or not profile.is_recording:
            return
        name = f"trace-step-{first:08d}{rank_suffix(run)}.json" + (".gz" if self.compress else "")
        path = Path(run.workdir) / "profile" / name
        profile.write(path)
        run.put_event("profile", path=f"profile/{name}", first_step=first, steps=run.step - first)
        lines = profile.table(self.rows) if self.rows else []
        say("\n".join([f"profile of steps {first + 1} to {run.step}: {path}", *lines]))

    def _stop(self) -> TorchProfile | None:
        profile, self._profile = self._profile, None
        if profile is not None:
            profile.stop()
        return profile

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "_profile": None}
