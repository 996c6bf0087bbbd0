"""Outbox: messages that are sent on a thread of their own, so that nobody waits for them."""

from __future__ import annotations

import logging
import threading
from collections import deque
from time import monotonic
from typing import Any, Protocol

logger = logging.getLogger("hookpoint")

CAPACITY = 100


class SendFailed(Exception):
    """A message was not sent. Failures of one `kind` are said once."""

    def __init__(self, kind: str, words: str) -> None:
        super().__init__(words)
        self.kind = kind


class Way(Protocol):
    """How messages are sent."""

    def send(self, message: Any) -> None:
        """Send a message, in a limited time, or raise an error."""

    def cancel(self) -> None:
        """End a sending that is under way, if that can be done; any thread may call it."""


class Outbox:
    """Send messages one after the other, on a thread that starts with the first of them.

    When too many wait, the oldest are dropped. Nothing here raises: a failure is logged, once for each kind of failure, and the
    next message is tried all the same, as a network may come back.
    """

    def __init__(self, name: str, way: Way, *, capacity: int = CAPACITY) -> None:
        self.failed = self.dropped = 0
        self._name = name
        self._way = way
        self._messages: deque[Any] = deque()
        self._capacity = capacity
        self._is_sending = self._is_closed = False
        self._said: set[str] = set()
        self._change = threading.Condition()
        self._thread: threading.Thread | None = None

    def put(self, message: Any) -> None:
        """Take in a message, and return at once."""
        with self._change:
            if len(self._messages) >= self._capacity:
                self._messages.popleft()
                self.dropped += 1
            self._messages.append(message)
            if self._thread is None:
                self._thread = threading.Thread(target=self._work, name=f"hookpoint {self._name}", daemon=True)
                self._thread.start()
            self._change.notify_all()

    def finish(self, seconds: float) -> None:
        """Wait until all is sent, for so long at most; drop the rest, end the thread, and say what was not sent."""
        deadline = monotonic() + seconds
        with self._change:
            while (self._messages or self._is_sending) and monotonic() < deadline:
                self._change.wait(0.05)  # wakes now and then, so that Ctrl-C gets through
            left = len(self._messages) + self._is_sending
            self._messages.clear()
            self._is_closed = True
            self._change.notify_all()
        if left:
            self._way.cancel()
        counts = {"failed": self.failed, "dropped as too many waited": self.dropped, "not sent at the end": left}
        if any(counts.values()):
            what = ", ".join(f"{number} {words}" for words, number in counts.items() if number)
            logger.warning("%s: of its messages %s", self._name, what)

    def _work(self) -> None:
        while True:
            with self._change:
                self._is_sending = False
                self._change.notify_all()
                while not self._messages and not self._is_closed:
                    self._change.wait()
                if self._is_closed:
                    return
                message = self._messages.popleft()
                self._is_sending = True
            try:
                self._way.send(message)
            except Exception as error:
                self._fail(error)

    def _fail(self, error: Exception) -> None:
        if self._is_closed:  # it was cancelled, and counted as not sent
            return
        self.failed += 1
        kind = error.kind if isinstance(error, SendFailed) else type(error).__name__
        if kind not in self._said:
            self._said.add(kind)
            words = str(error) if isinstance(error, SendFailed) else f"{kind}: {error}"
            logger.warning("%s: %s; the run goes on, and this is not said again", self._name, words)
