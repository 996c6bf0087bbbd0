"""StopAtTime: stop after a duration, or at a time of day."""

from __future__ import annotations

import time
from datetime import datetime, timedelta
from typing import ClassVar, Unpack

from hookpoint.callbacks._shared.arguments import number
from hookpoint.core.callback.callback import Callback, Options
from hookpoint.core.errors import BadArgument
from hookpoint.core.run.run import Run

UNTIL = 'until="2030-01-31 08:00"'


class StopAtTime(Callback):
    """Stop the run after a given training time, or at the time `until`.

    The training time is the sum of `run_time` (in minutes), `seconds` and `hours`. `run_time` may also be a timedelta. `until`
    is a datetime or a string such as "2030-01-31 08:00". Without a time zone, it is local time. Training time counts across
    resumes: a run that has used up its time stops immediately when it is resumed. The current step runs to completion, and the
    run is saved if the callbacks include a saver. Sends the event "stop".

    >>> StopAtTime(90).seconds, StopAtTime(hours=8, seconds=30).seconds, StopAtTime(until="2030-01-31 08:00").seconds
    (5400.0, 28830.0, None)
    """

    step_cost: ClassVar[str] = "half a microsecond to read the clock"

    def __init__(
        self,
        run_time: float | timedelta | None = None,
        *,
        seconds: float | None = None,
        hours: float | None = None,
        until: datetime | str | None = None,
        **options: Unpack[Options],
    ) -> None:
        super().__init__(**options)
        if isinstance(run_time, timedelta):
            run_time = run_time / timedelta(minutes=1)
        durations = [
            number("StopAtTime", name, value, least=0.0) * factor
            for name, value, factor in (("run_time", run_time, 60.0), ("seconds", seconds, 1.0), ("hours", hours, 3600.0))
            if value is not None
        ]
        if not durations and until is None:
            raise BadArgument("StopAtTime needs a time.", give=f"run_time (minutes), seconds, hours or {UNTIL}")
        self.seconds = sum(durations) if durations else None
        try:
            self.until = until if until is None or isinstance(until, datetime) else datetime.fromisoformat(until)
        except (TypeError, ValueError):
            raise BadArgument(f"StopAtTime: until must be a time, got {until!r}.", write=UNTIL) from None

    def on_run_begin(self, run: Run) -> None:
        if self.seconds is not None and run.elapsed >= self.seconds:
            run.stop(f"{self.name or 'StopAtTime'}: reached {self.seconds:g} seconds of training")
        elif self.until is not None and time.time() >= self.until.timestamp():
            run.stop(f"{self.name or 'StopAtTime'}: it is {self.until.isoformat(' ')}")

    on_train_iter_end = on_run_begin

    def on_epoch_end(self, run: Run) -> None:
        if run.epoch != run.max_epochs:  # a run that has completed its last epoch is finished, not stopped
            self.on_run_begin(run)
