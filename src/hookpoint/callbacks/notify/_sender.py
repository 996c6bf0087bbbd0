"""Sender: the base class of callbacks that send messages."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any, Unpack

from hookpoint.callbacks._shared.arguments import positive
from hookpoint.callbacks.notify._send_queue import SendQueue, Transport
from hookpoint.core.callback.callback import Callback, Options
from hookpoint.core.run.run import Run

WAIT_SECONDS = 5.0  # at the end of a run, for messages that are not sent yet


class Sender(Callback):
    """Send messages on a background thread while a run is open. Subclasses choose the transport and the messages."""

    ranks = "chief"
    on_error = "warn"

    def __init__(self, timeout_seconds: float, **options: Unpack[Options]) -> None:
        super().__init__(**options)
        self.timeout_seconds = float(positive(type(self).__name__, "timeout_seconds", timeout_seconds))
        self._queue: SendQueue | None = None

    @abstractmethod
    def transport(self) -> Transport:
        """Create the transport, or raise if its arguments are wrong."""

    def check_transport(self) -> None:
        """Raise what `transport` raises, with the class's name in front."""
        try:
            self.transport()
        except (TypeError, ValueError) as error:
            raise type(error)(f"{type(self).__name__}: {error}") from None

    def send(self, message: Any) -> None:
        if self._queue is not None:
            self._queue.put(message)

    def on_run_begin(self, run: Run) -> None:
        if self._queue is None:
            self._queue = SendQueue(self.name or type(self).__name__, self.transport())

    def on_run_end(self, run: Run) -> None:
        queue, self._queue = self._queue, None
        if queue is not None:
            queue.finish(WAIT_SECONDS)
