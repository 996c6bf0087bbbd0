"""SendStat: send metrics to a command or to notification services."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any, Unpack

from hookpoint.callbacks._shared.arguments import strings
from hookpoint.callbacks.notify._apprise_transport import AppriseTransport
from hookpoint.callbacks.notify._command import Command, Value
from hookpoint.callbacks.notify._command_transport import CommandTransport
from hookpoint.callbacks.notify._messages import Message, short_line
from hookpoint.callbacks.notify._sender import Sender, Transport
from hookpoint.core.callback.callback import Options
from hookpoint.core.callback.callback_info import set_default_name
from hookpoint.core.errors import BadArgument
from hookpoint.core.run.run import Run

NUMBERS = ("epoch", "step")
TEXTS = ("checkpoint", "run", "workdir")


class SendStat(Sender):
    """Run a command with the latest metrics, or send them to notification services, for example to a phone.

    A command is a list of arguments, or a string that is split as in a shell. It may contain these fields: each metric in
    `names`, `{epoch}`, `{step}`, `{run}` (the run's name), `{workdir}` and `{checkpoint}` (the newest checkpoint; empty if
    there is none). `{loss:.3f}` formats a number. Write `{{` and `}}` for literal braces. The command runs without a shell, so
    a value is never executed as a command. Shell syntax is not allowed, except for `> /dev/null 2>&1` at the end. Pass
    `shell=True` to use shell syntax; values are then quoted. Values that a program passes on to another shell, as in
    `ssh host "echo {run}"`, are not quoted.

    `url` is an Apprise URL such as `"ntfys://topic"`, or a list of Apprise URLs. To use `url`, install Apprise with
    `pip install 'hookpoint[notify]'`. The message contains the run's name, the epoch, the step and the metrics.

    A message is sent if at least one of the metrics has a new value. Without `names`, a message is sent at every trigger.
    Messages are sent in order, on a background thread. A send that takes longer than `timeout_seconds` is cancelled. If more
    than 100 messages are waiting, the oldest are dropped. Each kind of failure is logged once. When a run ends, it waits up to
    five seconds for the remaining messages. A failure never stops or delays a run.

    Triggered at the end of each complete epoch, unless `.when(...)` replaces this schedule.

    >>> send = SendStat('curl -d "error is {val-error}" https://ntfy.sh/mine > /dev/null 2>&1', "val-error")
    >>> send.name
    'SendStat(val-error)'
    >>> with Loop([SendStat(["touch", "{workdir}/epoch-{epoch}"])], workdir="mine") as run:
    ...     for epoch in run.epochs(1): pass
    >>> import os
    >>> os.path.exists("mine/epoch-1")
    True
    """

    keeps = "the last values sent"
    step_cost = "nothing; a trigger reads the metrics, and a background thread runs the command"

    def __init__(
        self,
        command: str | Sequence[str] | None = None,
        names: str | Sequence[str] = (),
        *,
        url: str | Sequence[str] | None = None,
        shell: bool = False,
        timeout_seconds: float = 10,
        **options: Unpack[Options],
    ) -> None:
        super().__init__(timeout_seconds, **options)
        owner = type(self).__name__
        self.names = strings(owner, "names", names)
        for name in self.names:
            if name in (*NUMBERS, *TEXTS):
                raise BadArgument(f"{owner}: '{name}' is a reserved field, not a metric.", leave="it out")
        if (command is None) == (url is None):
            raise BadArgument(f"{owner} takes either a command or url=.")
        if url is not None and shell:
            raise BadArgument(f"{owner}: shell=True needs a command, not url=.", leave="it out")
        self._command, self._url, self._shell = command, url, shell
        self.check_transport()
        self.reads = self.names
        set_default_name(self, f"{owner}({', '.join(self.names)})" if self.names else None)
        self._checkpoint = ""
        self._sent: dict[str, list[Any]] = {}

    def is_due(self, new: set[str]) -> bool:
        """Return whether to send a message. `new` contains the names of the metrics that have a new value."""
        return bool(new)

    def transport(self) -> Transport:
        if self._url is not None:
            return AppriseTransport(type(self).__name__, self._url, self.timeout_seconds)
        assert self._command is not None
        command = Command(self._command, numbers=(*self.names, *NUMBERS), texts=TEXTS, shell=self._shell)
        return CommandTransport(command, self.timeout_seconds)

    def on_run_begin(self, run: Run) -> None:
        super().on_run_begin(run)
        self._sent, self._checkpoint = {}, ""

    def on_save(self, path: Any) -> None:
        # If the checkpoint store writes no files, `path` is the name of a checkpoint.
        self._checkpoint = os.path.abspath(path) if os.path.exists(path) else str(path)

    on_load = on_save

    def on_trigger(self, run: Run) -> None:
        if any(name not in run.metrics for name in self.names):
            return
        metrics = {name: run.metrics[name] for name in self.names}
        seen = {name: [run.metrics.observations(name), str(value)] for name, value in metrics.items()}
        if self.names and not self.is_due({name for name in seen if seen[name] != self._sent.get(name)}):
            return
        self._sent = seen
        if self._url is not None:
            lines = [f"epoch {run.epoch}, step {run.step}"]
            lines += [f"{short_line(name)}: {value:.5g}" for name, value in metrics.items()]
            self.send(Message(short_line(run.name), "\n".join(lines)))
        else:
            values: dict[str, Value] = {"run": run.name, "checkpoint": self._checkpoint, "epoch": run.epoch, "step": run.step}
            values["workdir"] = "" if run.workdir is None else os.path.abspath(run.workdir)
            self.send({**values, **metrics})

    def state_dict(self) -> dict[str, Any]:
        return {"sent": {name: list(seen) for name, seen in self._sent.items()}}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._sent = {name: list(seen) for name, seen in state["sent"].items()}
