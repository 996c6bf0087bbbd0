"""Notify: tell people when a run starts, ends, fails or gets better."""

from __future__ import annotations

from collections.abc import Sequence
from time import monotonic
from typing import TYPE_CHECKING, Any

from hookpoint.callbacks._shared.arguments import number
from hookpoint.callbacks._shared.saver import named, positive
from hookpoint.callbacks._shared.unseen_values import NewValues
from hookpoint.callbacks.notify._apprise_transport import NewsWay
from hookpoint.callbacks.notify._messages import News, blame, command, news, tidy
from hookpoint.callbacks.notify._send_queue import Outbox
from hookpoint.core.callback.callback import Callback
from hookpoint.core.callback.callback_info import set_default_name
from hookpoint.core.errors import BadArgument
from hookpoint.core.log.best import Best, mode_of
from hookpoint.core.run.verdicts import Reached

if TYPE_CHECKING:
    from typing import Unpack

    from hookpoint.core.callback.callback import Options
    from hookpoint.core.run.run import Run

KINDS = ("start", "end", "failure", "stop", "best")
WAIT_SECONDS = 5.0  # at the end of a run, for what is still to be sent


class Notify(Callback):
    """Send a message to a phone, a chat or a mailbox when a run starts, ends, fails, or a metric is better than ever.

    `url` is an address of Apprise's, or several, such as `"ntfys://topic"` (`pip install 'hookpoint[notify]'`); one that is
    not encrypted is refused. `on` says what to tell: "start" (a resume too), "end", "failure", "stop" (the end of a run that
    was stopped, which "end" tells as well) and "best", which is told where `best` names a metric; `mode` is "min", "max" or
    "auto", by its name. No two messages of a new best come within `minutes_between`: the next one counts those in between.

    A message has the run's name, where it stands, its workdir and the metrics in `names`, or all of them. That of a stop says
    why; that of a failure has the error, the callback at fault, and the command that goes on with the run, as it was typed,
    with what looks like a secret masked. All of it leaves the machine.

    Messages are sent on a thread of their own. A failure to send is logged, once for each kind; the end of a run waits five
    seconds for the last of them. None of it ends a run, or holds one up. A run that is killed with -9 tells nobody.

    Listens to on_run_begin, on_save, on_load, on_exception and on_run_end; a new best is looked for when triggered: at the end
    of each complete epoch, unless `.when(...)` says otherwise. Reads `best`. Keeps the best value in the checkpoint. Runs on
    the chief. A step pays nothing.

    With a step schedule it looks at the mean of what was logged since it last looked; a
    step that logs the metric pays for an addition then.

    >>> Notify("ntfys://topic", best="val_loss").name
    'Notify(val_loss)'
    """

    ranks = "chief"
    on_error = "warn"
    reads_windows = True

    _told_at: float | None
    _untold: int

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
        super().__init__(**options)
        self.on = (on,) if isinstance(on, str) else tuple(on)
        for kind in self.on:
            if kind not in KINDS:
                raise BadArgument(f"Notify(on={kind!r}) is nothing to tell.", choose=", ".join(map(repr, KINDS)))
        if not self.on:
            raise BadArgument("Notify(on=()) would tell nothing.", choose=", ".join(map(repr, KINDS)))
        self.best = None if best is None else Best(mode_of(named("Notify", "best", best), mode))
        self.metric = best
        self.minutes_between = number("Notify", "minutes_between", minutes_between, least=0)
        self.names = names if names is None else (names,) if isinstance(names, str) else tuple(names)
        self.timeout_seconds = float(positive("Notify", "timeout_seconds", timeout_seconds, kind=float))
        self._url = url
        try:
            self._way()
        except (TypeError, ValueError) as error:
            raise type(error)(f"Notify: {error}") from None
        self.reads = () if best is None else (best,)
        set_default_name(self, None if best is None else f"Notify({best})")
        self._values = NewValues(best or "")
        self._outbox: Outbox | None = None
        self._reset()

    def on_run_begin(self, run: Run) -> None:
        if not run.resuming:
            self._values.reset()
            if self.best is not None:
                self.best.reset()
        self._values.begin(run, self)
        self._reset()
        if self._outbox is None:
            self._outbox = Outbox(self.name or "Notify", self._way())
        self._tell("start", news(run, "goes on" if run.resuming else "started", names=self.names))

    def on_save(self) -> None:
        self._can_go_on = True

    def on_load(self) -> None:
        self._can_go_on = True

    def on_trigger(self, run: Run) -> None:
        if self.best is None or self._outbox is None:
            return
        found, before = self._values.take(run), self.best.value
        if found is None or not self.best.take(found[1], found[0]) or "best" not in self.on:
            return
        now = monotonic()
        if self._told_at is not None and now < self._told_at + 60 * self.minutes_between:
            self._untold += 1
            return
        was = "" if before is None else f", after {before:.5g}"
        more = f"the best {self._untold + 1} times since the last message" if self._untold else ""
        title = f"{self.metric} is {found[1]:.5g}, the best so far{was}"
        self._told_at, self._untold = now, 0
        self._tell("best", news(run, title, *filter(None, [more]), tone="success", names=self.names))

    def on_exception(self, run: Run, error: BaseException) -> None:
        self._has_failed = True
        if not isinstance(error, Exception):
            why = f"by {type(error).__name__}"
            self._tell("stop", news(run, f"stopped {why}", *self._again(), tone="warning", names=self.names), instead="end")
        else:
            lines = [*blame(error), *self._again()]
            self._tell("failure", news(run, f"failed: {type(error).__name__}", *lines, tone="failure", names=self.names))

    def on_run_end(self, run: Run) -> None:
        if not self._has_failed:
            if run.stop_reason is not None and not isinstance(run.stop_reason, Reached):
                lines = [tidy(run.stop_reason), *self._best_line(), *self._again()]
                self._tell("stop", news(run, "stopped", *lines, tone="warning", names=self.names), instead="end")
            else:
                self._tell("end", news(run, "finished", *self._best_line(), tone="success", names=self.names))
        outbox, self._outbox = self._outbox, None
        if outbox is not None:
            outbox.finish(WAIT_SECONDS)

    def state_dict(self) -> dict[str, Any]:
        return {} if self.best is None else {**self.best.state_dict(), **self._values.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        if self.best is not None and state:
            self.best.load_state_dict(state)
            self._values.load_state_dict(state)

    def _reset(self) -> None:
        self._told_at = None
        self._untold = 0
        self._has_failed = self._can_go_on = False

    def _tell(self, kind: str, what: News, *, instead: str | None = None) -> None:
        if self._outbox is not None and (kind in self.on or instead in self.on):
            self._outbox.put(what)

    def _best_line(self) -> list[str]:
        if self.best is None or self.best.value is None:
            return []
        return [f"best {self.metric} {self.best.value:.5g}, at step {self.best.step}"]

    def _again(self) -> list[str]:
        return [f"{'goes on' if self._can_go_on else 'starts anew'} with: {command()}"]

    def _way(self) -> NewsWay:
        return NewsWay("Notify", self._url, self.timeout_seconds)
