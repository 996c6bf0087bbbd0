"""Notify: send a message when a run starts, ends or fails, or when a metric improves."""

from __future__ import annotations

from collections.abc import Sequence
from time import monotonic
from typing import Any, Unpack

from hookpoint.callbacks._shared.arguments import choices, number, string, strings
from hookpoint.callbacks._shared.new_values import NewValues
from hookpoint.callbacks.notify._apprise_transport import AppriseTransport
from hookpoint.callbacks.notify._messages import Tone, clean_text, command_line, error_lines, run_message
from hookpoint.callbacks.notify._sender import Sender
from hookpoint.core.callback.callback import Options
from hookpoint.core.callback.callback_info import set_default_name
from hookpoint.core.log.best import Best, mode_of
from hookpoint.core.run.run import Run
from hookpoint.core.run.verdicts import Reached


class Notify(Sender):
    """Send a message to a phone, a chat or a mailbox when a run starts, ends or fails, or when a metric reaches a new best.

    - `url`: an Apprise URL such as `"ntfys://topic"`, or a list of them (`pip install 'hookpoint[notify]'`). The
        unencrypted schemes `apprise`, `form`, `http`, `json` and `xml` raise an error, unless the host is this machine.
    - `on`: the events to report: "start" (the run starts or resumes), "end" (it finishes or is stopped early), "stop" (it is
        stopped early), "failure" and "best". "best" requires the argument `best`.
    - `best`: the metric to watch. `mode` is "min", "max" or "auto". With "auto", the metric's name determines the mode.
    - `minutes_between`: the shortest time between two messages about a new best. The next message says how many new bests were
      skipped.
    - `names`: the metrics to include; by default, all of them.

    A message contains the run's name, its progress, its workdir and its metrics. A message about a stop gives the reason. A
    message about a failure contains the error, the callback at fault, and the command that started the run, with secrets
    masked. To resume the run, enter this command again. All of this information leaves the machine.

    Messages are sent on a background thread. If a message cannot be sent, training continues without delay, and each kind of
    error is logged once. When a run ends, it waits up to five seconds for the remaining messages. A run killed with
    `kill -9` sends nothing.

    Listens to on_run_begin, on_save, on_load, on_exception and on_run_end. Checks for a new best when triggered: at the end of
    each complete epoch, unless `.when(...)` says otherwise. With a step schedule, the mean of the values logged since the
    last trigger is compared with the best value so far. Without `best`, `.when(...)` raises.

    >>> Notify("ntfys://topic", best="val_loss").name
    'Notify(val_loss)'
    """

    reads_windows = True
    keeps = "the best value"
    step_cost = "nothing; with a step schedule, one addition per step that logs the metric"

    _sent_best_at: float | None
    _unsent_bests: int

    def __init__(
        self,
        url: str | Sequence[str],
        *,
        on: str | Sequence[str] = ("start", "end", "failure", "best"),
        best: str | None = None,
        mode: str = "auto",
        minutes_between: float = 10,
        names: str | Sequence[str] | None = None,
        timeout_seconds: float = 10,
        **options: Unpack[Options],
    ) -> None:
        super().__init__(timeout_seconds, **options)
        self.on = choices("Notify", "on", on, ("start", "end", "failure", "stop", "best"))
        self.best = None if best is None else Best(mode_of(string("Notify", "best", best), mode))
        self.metric = best
        self.minutes_between = number("Notify", "minutes_between", minutes_between, least=0)
        self.names = None if names is None else strings("Notify", "names", names)
        self._url = url
        self.check_transport()
        self.reads = () if best is None else (best,)
        set_default_name(self, None if best is None else f"Notify({best})")
        self._values = NewValues(best or "")
        if best is None and type(self).on_trigger is Notify.on_trigger:
            vars(self)["on_trigger"] = None  # there is nothing to check, so `.when(...)` raises
        self._reset()

    def transport(self) -> AppriseTransport:
        return AppriseTransport("Notify", self._url, self.timeout_seconds)

    def on_run_begin(self, run: Run) -> None:
        super().on_run_begin(run)
        self._values.reset()
        if self.best is not None:
            self.best.reset()
        self._values.begin(run, self)
        self._reset()
        self._report(run, "start", "resumed" if run.resuming else "started")

    def on_save(self) -> None:
        self._can_resume = True

    on_load = on_save

    def on_trigger(self, run: Run) -> None:
        if self.best is None:
            return
        newest, before = self._values.take(run), self.best.value
        if newest is None or not self.best.take(newest[1], newest[0]) or "best" not in self.on:
            return
        now = monotonic()
        if self._sent_best_at is not None and now < self._sent_best_at + 60 * self.minutes_between:
            self._unsent_bests += 1
            return
        title = f"{self.metric} is {newest[1]:.5g}, the best so far{'' if before is None else f' (previously {before:.5g})'}"
        lines = [f"{self._unsent_bests + 1} new bests since the last message"] if self._unsent_bests else []
        self._sent_best_at, self._unsent_bests = now, 0
        self._report(run, "best", title, *lines, tone="success")

    def on_exception(self, run: Run, error: BaseException) -> None:
        self._has_failed = True
        name = type(error).__name__
        if isinstance(error, Exception):
            self._report(run, "failure", f"failed: {name}", *error_lines(error), self._resume_line(), tone="failure")
        else:
            self._report(run, "stop", f"stopped by {name}", self._resume_line(), tone="warning")

    def on_run_end(self, run: Run) -> None:
        lines = []
        if self.best is not None and self.best.value is not None:
            lines = [f"best {self.metric} {self.best.value:.5g}, at step {self.best.step}"]
        if self._has_failed:
            pass
        elif run.stop_reason is None or isinstance(run.stop_reason, Reached):
            self._report(run, "end", "finished", *lines, tone="success")
        else:
            self._report(run, "stop", "stopped", clean_text(run.stop_reason), *lines, self._resume_line(), tone="warning")
        super().on_run_end(run)

    def state_dict(self) -> dict[str, Any]:
        return {} if self.best is None else {**self.best.state_dict(), **self._values.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        if self.best is not None and state:
            self.best.load_state_dict(state)
            self._values.load_state_dict(state)

    def _reset(self) -> None:
        self._sent_best_at, self._unsent_bests = None, 0
        self._has_failed = self._can_resume = False

    def _report(self, run: Run, event: str, title: str, *lines: str, tone: Tone = "info") -> None:
        if event in self.on or (event == "stop" and "end" in self.on):
            self.send(run_message(run, title, *lines, tone=tone, names=self.names))

    def _resume_line(self) -> str:
        return f"{'resume' if self._can_resume else 'start over'} with: {command_line()}"
