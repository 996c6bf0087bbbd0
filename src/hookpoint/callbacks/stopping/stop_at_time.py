"""StopAtTime: stop after so much time, or at a time of the day."""

from __future__ import annotations

import time
from datetime import datetime, timedelta
from typing import Unpack

from hookpoint.callbacks._shared.arguments import number
from hookpoint.core.callback.callback import Callback, Options
from hookpoint.core.errors import BadArgument
from hookpoint.core.run.run import Run


class StopAtTime(Callback):
    """Stop the run when it has trained for `run_time` minutes, plus `seconds`, plus `hours`; or at the time `until`.

    `run_time` may be a timedelta.

    Training time counts across a resume; a run that has had its time stops at once when it is resumed. `until` is a datetime,
    or a text such as "2030-01-31 08:00", of the local time zone if it names none. The step that is under way is finished, and
    with a saver in the list the run is saved.

    Listens to on_run_begin and on_train_iter_end. Sends the event "stop". Keeps nothing in the checkpoint, as the run's clock
    does. Runs on all ranks. A step pays for a look at the clock, half a microsecond.

    >>> StopAtTime(90).seconds, StopAtTime(hours=8, seconds=30).seconds, StopAtTime(until="2030-01-31 08:00").seconds
    (5400.0, 28830.0, None)
    """

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
        given = [
            number("StopAtTime", name, value, least=0.0) * factor
            for name, value, factor in (("run_time", run_time, 60.0), ("seconds", seconds, 1.0), ("hours", hours, 3600.0))
            if value is not None
        ]
        if not given and until is None:
            raise BadArgument(
                "StopAtTime: at what time?", give='run_time (minutes), seconds, hours or until="2030-01-31 08:00"'
            )
        self.seconds = sum(given) if given else None
        self.until = _moment(until)

    def on_run_begin(self, run: Run) -> None:
        self._look(run)

    def on_train_iter_end(self, run: Run) -> None:
        self._look(run)

    def _look(self, run: Run) -> None:
        if self.seconds is not None and run.elapsed >= self.seconds:
            run.stop(f"{self.name or 'StopAtTime'}: {self.seconds:g} seconds of training are over")
        elif self.until is not None and time.time() >= self.until.timestamp():
            run.stop(f"{self.name or 'StopAtTime'}: it is {self.until.isoformat(' ')}")


def _moment(until: datetime | str | None) -> datetime | None:
    if until is None or isinstance(until, datetime):
        return until
    try:
        return datetime.fromisoformat(until)
    except (TypeError, ValueError):
        raise BadArgument(f"StopAtTime(until={until!r}) is no time.", write='until="2030-01-31 08:00"') from None
