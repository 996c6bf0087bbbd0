"""Sender: the base class of callbacks that send messages, and its message queue."""

from __future__ import annotations

import threading
from abc import abstractmethod
from collections import deque
from time import monotonic
from typing import Any, Protocol, Unpack

from hookpoint.callbacks._shared.arguments import positive
from hookpoint.core.callback.callback import Callback, Options
from hookpoint.core.logger import logger
from hookpoint.core.run.run import Run

CAPACITY = 100  # maximum number of messages in the queue.
WAIT_SECONDS = 5.0  # how long a run waits for unsent messages when it ends


class Sender(Callback):
    """Send messages on a background thread during a run. Subclasses choose the transport and the messages."""

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
        """Create a transport to check its arguments. Errors start with the class name."""
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


class SendFailed(Exception):
    """The error for a message that was not sent. Failures of the same `kind` are logged once."""

    def __init__(self, kind: str, text: str) -> None:
        super().__init__(text)
        self.kind = kind


class Transport(Protocol):
    """The protocol of objects that deliver messages, for example by running a command."""

    def send(self, message: Any) -> None:
        """Send a message within a limited time, or raise."""

    def cancel(self) -> None:
        """Interrupt a send that is in progress, if possible. Any thread may call this method."""


class SendQueue:
    """Send messages in order, on a thread that starts with the first message.

    The oldest messages are dropped when the queue is full. No method raises: the first failure of each kind is logged, and
    later messages are still sent, because the network may recover.
    """

    def __init__(self, name: str, transport: Transport, *, capacity: int = CAPACITY) -> None:
        self.failed = self.dropped = 0
        self._name = name
        self._transport = transport
        self._messages: deque[Any] = deque()
        self._capacity = capacity
        self._is_sending = self._is_closed = False
        self._logged: set[str] = set()
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None

    def put(self, message: Any) -> None:
        """Add a message and return immediately."""
        with self._changed:
            if len(self._messages) >= self._capacity:
                self._messages.popleft()
                self.dropped += 1
            self._messages.append(message)
            if self._thread is None:
                self._thread = threading.Thread(target=self._work, name=f"hookpoint {self._name}", daemon=True)
                self._thread.start()
            self._changed.notify_all()

    def finish(self, seconds: float) -> None:
        """Wait at most `seconds` for all messages to be sent, then drop unsent messages and end the thread.

        If messages were lost, log how many.
        """
        deadline = monotonic() + seconds
        with self._changed:
            while (self._messages or self._is_sending) and monotonic() < deadline:
                self._changed.wait(0.05)  # wait in short intervals, so that Ctrl-C can interrupt the wait
            unsent = len(self._messages) + self._is_sending
            self._messages.clear()
            self._is_closed = True
            self._changed.notify_all()
        if unsent:
            self._transport.cancel()
        counts = {"failed": self.failed, "dropped from a full queue": self.dropped, "not sent before the run ended": unsent}
        lost = ", ".join(f"{count} {fate}" for fate, count in counts.items() if count)
        if lost:
            logger.warning("%s: messages lost: %s", self._name, lost)

    def _work(self) -> None:
        while True:
            with self._changed:
                self._is_sending = False
                self._changed.notify_all()
                self._changed.wait_for(lambda: self._messages or self._is_closed)
                if self._is_closed:
                    return
                message = self._messages.popleft()
                self._is_sending = True
            try:
                self._transport.send(message)
            except Exception as error:
                self._fail(error)

    def _fail(self, error: Exception) -> None:
        if self._is_closed:  # the message was cancelled and is already counted as not sent
            return
        self.failed += 1
        kind = error.kind if isinstance(error, SendFailed) else type(error).__name__
        if kind not in self._logged:
            self._logged.add(kind)
            text = str(error) if isinstance(error, SendFailed) else f"{kind}: {error}"
            logger.warning("%s: %s; the run continues. Later failures of this kind are not logged", self._name, text)
