"""SendStat: tell someone how the run is doing."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from hookpoint.callbacks.notify._stat_sender import StatSender

if TYPE_CHECKING:
    from typing import Unpack

    from hookpoint.core.callback.callback import Options


class SendStat(StatSender):
    """Run a command with the latest values of metrics, or send them to the services behind `url`, such as a phone.

    A command is a list of arguments, or a string that is split as a shell would. Then each `{name}` is filled: the metrics in
    `names`, and `{epoch}`, `{step}`, `{run}` (its name), `{workdir}` and `{checkpoint}` (the newest, empty before the first).
    `{loss:.3f}` is a number as one likes it, `{{` is a brace. There is no shell, so that nothing that a value holds becomes a
    command; what needs one is refused, but for `> /dev/null 2>&1` at the end. `shell=True` is for that, and quotes values.
    What a program hands on to a shell of its own, as in `ssh host "echo {run}"`, nobody quotes.

    `url` is an address of Apprise's, or several, such as `"ntfys://topic"` (`pip install 'hookpoint[notify]'`). What is sent is
    the run's name, epoch, step and the metrics.

    Sends when one of the metrics has a new value, in the order of triggers, on a thread of its own. What takes longer than
    `timeout_seconds` is ended, and when 100 messages wait, the oldest are dropped. A failure is logged, once for each kind. The
    end of a run waits five seconds for the rest. None of it ends a run, or holds one up.

    Triggered at the end of each complete epoch, unless `.when(...)` says otherwise. Reads `names`. Keeps what was sent last in
    the checkpoint. Runs on the chief. A step pays nothing, a trigger for reading the metrics, and the machine for the command.

    >>> send = SendStat('curl -d "error is {val-error}" https://ntfy.sh/mine > /dev/null 2>&1', "val-error")
    >>> send.name
    'SendStat(val-error)'
    >>> with Loop([SendStat(["touch", "{workdir}/epoch-{epoch}"])], workdir="mine") as run:
    ...     for epoch in run.epochs(1): pass
    >>> import os
    >>> os.path.exists("mine/epoch-1")
    True
    """

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
        super().__init__(command, names, url, shell, timeout_seconds, **options)

    def is_due(self, new: set[str]) -> bool:
        return bool(new)
