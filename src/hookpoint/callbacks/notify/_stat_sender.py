"""StatSender: what SendStat and SendMonitorData have in common."""

from __future__ import annotations

import os
from abc import abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from hookpoint.callbacks._shared.saver import named, positive
from hookpoint.callbacks.notify._apprise_transport import UrlWay
from hookpoint.callbacks.notify._command import Command
from hookpoint.callbacks.notify._command_transport import CommandWay
from hookpoint.callbacks.notify._send_queue import Outbox, Way
from hookpoint.callbacks.notify._template import Value
from hookpoint.core.callback.callback import Callback
from hookpoint.core.callback.callback_info import set_default_name
from hookpoint.core.errors import BadArgument

if TYPE_CHECKING:
    from typing import Unpack

    from hookpoint.core.callback.callback import Options
    from hookpoint.core.run.run import Run

NUMBERS = ("epoch", "step")
WORDS = ("checkpoint", "run", "workdir")
WAIT_SECONDS = 5.0  # at the end of a run, for what is still to be sent


class StatSender(Callback):
    """Send metrics by a command or through Apprise, off the training thread; derived classes say when."""

    ranks = "chief"
    on_error = "warn"

    def __init__(
        self,
        command: str | Sequence[str] | None,
        names: str | Sequence[str],
        url: str | Sequence[str] | None,
        shell: bool,
        timeout_seconds: float,
        **options: Unpack[Options],
    ) -> None:
        super().__init__(**options)
        owner = type(self).__name__
        self.names = (names,) if isinstance(names, str) else tuple(names)
        for name in self.names:
            if named(owner, "names", name) in (*NUMBERS, *WORDS):
                raise BadArgument(f"{owner}: '{name}' is what the run says of itself, and no metric.", leave="it out")
        self.timeout_seconds = float(positive(owner, "timeout_seconds", timeout_seconds, kind=float))
        if (command is None) == (url is None):
            raise BadArgument(f"{owner} takes either a command or url=.")
        if url is not None and shell:
            raise BadArgument(f"{owner}: shell=True is for a command.", leave="it out")
        self._command, self._url, self._shell = command, url, shell
        try:
            self._way()
        except (TypeError, ValueError) as error:
            raise type(error)(f"{owner}: {error}") from None
        self.reads = self.names
        set_default_name(self, f"{owner}({', '.join(self.names)})" if self.names else None)
        self._checkpoint = ""
        self._sent: dict[str, list[Any]] = {}
        self._outbox: Outbox | None = None

    @abstractmethod
    def is_due(self, new: set[str]) -> bool:
        """Say whether to send, where these of the metrics have a new value."""

    def on_run_begin(self, run: Run) -> None:
        if not run.resuming:
            self._sent, self._checkpoint = {}, ""
        if self._outbox is None:
            self._outbox = Outbox(self.name or type(self).__name__, self._way())

    def on_save(self, path: Any) -> None:
        self._checkpoint = _absolute(path)

    def on_load(self, path: Any) -> None:
        self._checkpoint = _absolute(path)

    def on_trigger(self, run: Run) -> None:
        if self._outbox is None or any(name not in run.metrics for name in self.names):
            return
        values = {name: run.metrics[name] for name in self.names}
        seen = {name: [run.metrics.observations(name), str(value)] for name, value in values.items()}
        if not self.names or self.is_due({name for name in seen if seen[name] != self._sent.get(name)}):
            self._sent = seen
            of_run: dict[str, Value] = {
                "run": run.name,
                "workdir": "" if run.workdir is None else os.path.abspath(run.workdir),
                "checkpoint": self._checkpoint,
                "epoch": run.epoch,
                "step": run.step,
            }
            self._outbox.put({**of_run, **values})

    def on_run_end(self) -> None:
        outbox, self._outbox = self._outbox, None
        if outbox is not None:
            outbox.finish(WAIT_SECONDS)

    def state_dict(self) -> dict[str, Any]:
        return {"sent": {name: list(seen) for name, seen in self._sent.items()}}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._sent = {name: list(seen) for name, seen in state["sent"].items()}

    def _way(self) -> Way:
        owner = type(self).__name__
        if self._url is not None:
            return UrlWay(owner, self._url, self.names, self.timeout_seconds)
        assert self._command is not None
        command = Command(self._command, numbers=(*self.names, *NUMBERS), words=WORDS, shell=self._shell)
        return CommandWay(command, self.timeout_seconds)


def _absolute(path: Any) -> str:
    """Return where a checkpoint is, for a command that may look at it from elsewhere; not every store keeps them in files."""
    return os.path.abspath(path) if os.path.exists(path) else str(path)
