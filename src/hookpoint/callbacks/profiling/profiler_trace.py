"""ProfilerTrace: what torch's profiler sees in a few steps."""

from __future__ import annotations

import logging
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hookpoint.callbacks._shared.arguments import whole
from hookpoint.callbacks._shared.extras import optional
from hookpoint.callbacks.profiling._profiler_window import ProfilerWindow
from hookpoint.core.callback.callback import Callback
from hookpoint.core.errors import BadArgument, BadLoop
from hookpoint.core.text.terminal import say

if TYPE_CHECKING:
    from typing import Unpack

    from hookpoint.callbacks.profiling._torch_profile import TorchProfile
    from hookpoint.core.callback.callback import Options
    from hookpoint.core.run.run import Run

logger = logging.getLogger("hookpoint")


class ProfilerTrace(Callback):
    """Record a few training steps with torch's profiler: a Chrome trace in the workdir, and the most expensive operations.

    It waits `wait` steps of this start, warms up for `warmup`, and records `steps`; or it records from when `at` optimizer
    steps are done, however often the run was resumed. What is between these steps, such as a validation, is in the trace, and
    takes its time. The file is `profile/trace-step-00000012.json`, named after the first step in it, or .json.gz with
    `compress`; `rows` lines say on stderr what took longest. CPU and, where there is one, CUDA are recorded. `shapes`,
    `memory` and `stacks` add these to it, and make the steps slower. A run that ends in the middle writes what it has.

    The profiler slows the steps down that it sees, and makes a GPU wait where a recording begins and ends. There is one in a
    process: while someone else uses it, nothing is recorded, and one line says so. A failure never ends a run.

    Listens to on_setup, on_run_begin, on_train_iter_begin, on_train_iter_end and on_run_end. Sends the event "profile". Keeps
    nothing in the checkpoint. Runs on the chief; with `ranks="all"` each rank has a file of its own. A step pays a comparison
    when it is not recorded.

    >>> ProfilerTrace(wait=10, steps=3).steps, ProfilerTrace(at=500, steps=3, compress=True).at
    (3, 500)
    """

    ranks = "chief"
    on_error = "warn"

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
            raise BadArgument(f"ProfilerTrace(wait={wait}, at={at}) says twice when to record.", give="one of them")
        self.at = None if at is None else whole("ProfilerTrace", "at", at)
        self.wait = 5 if wait is None else whole("ProfilerTrace", "wait", wait)
        self.warmup = whole("ProfilerTrace", "warmup", warmup)
        self.steps = whole("ProfilerTrace", "steps", steps, least=1)
        self.rows = whole("ProfilerTrace", "rows", rows)
        self.compress = compress
        self._what = {"record_shapes": shapes, "profile_memory": memory, "with_stack": stacks}
        self._window: ProfilerWindow | None = None
        self._profile: TorchProfile | None = None
        self._first_step = 0

    def on_setup(self, run: Run) -> None:
        if run.workdir is None:
            own = self.name or "ProfilerTrace"
            raise BadLoop(f"{own} writes its trace into the workdir, and there is none.", give='workdir="runs/name"')

    def on_run_begin(self, run: Run) -> None:
        self._stop()
        self._window = None
        if run.workdir is not None and optional(self.name or "ProfilerTrace", "torch", extra="torch") is not None:
            wait = self.wait + (self.warmup if self.at is None else 0)
            self._window = ProfilerWindow(self.at, wait, self.warmup, self.steps)

    def on_train_iter_begin(self, run: Run) -> None:
        window = self._window
        if window is not None and run.step >= window.first:
            self._move(run)

    def on_train_iter_end(self, run: Run) -> None:
        if self._profile is not None:  # the next step is not to begin before this one is over
            self._move(run)

    def on_run_end(self, run: Run) -> None:
        self._window = None
        self._finish(run)

    def _move(self, run: Run) -> None:
        if self._window is None or (phase := self._window.phase(run.step)) == "off":
            return
        try:
            if phase == "over":
                self._window = None
                self._finish(run)
            elif self._profile is not None or self._open():
                assert self._profile is not None
                if phase == "warmup":
                    self._profile.warm_up()
                elif not self._profile.is_recording:
                    self._first_step = run.step
                    self._profile.record()
        except BaseException:
            self._window = None
            with suppress(Exception):  # what failed first is what is said
                self._stop()
            raise

    def _open(self) -> bool:
        from hookpoint.callbacks.profiling._torch_profile import TorchProfile

        if TorchProfile.is_taken():
            self._window = None
            logger.warning("%s records nothing: torch's profiler is in use", self.name or "ProfilerTrace")
            return False
        self._profile = TorchProfile(self._what)
        return True

    def _finish(self, run: Run) -> None:
        profile = self._stop()
        if profile is None or not profile.is_recording:
            return
        rank = "" if run.rank == 0 else f"-rank{run.rank}"
        name = f"trace-step-{self._first_step:08d}{rank}.json" + (".gz" if self.compress else "")
        path = Path(run.workdir) / "profile" / name
        profile.write(path)
        run.put_event("profile", path=f"profile/{name}", first_step=self._first_step, steps=run.step - self._first_step)
        lines = profile.table(self.rows) if self.rows else []
        say("\n".join([f"profile of steps {self._first_step + 1} to {run.step}: {path}", *lines]))

    def _stop(self) -> TorchProfile | None:
        profile, self._profile = self._profile, None
        if profile is not None:
            profile.stop()
        return profile

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "_window": None, "_profile": None}
