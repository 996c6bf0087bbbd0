"""MonitorQueue: a bounded queue and a thread for one monitor or asynchronous callback, so that it does not stall training."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from time import monotonic
from typing import Generic, TypeVar

from hookpoint.core.text.thread_frames import frames_by_thread

CAPACITY = 1000
LINGER_SECONDS = 0.25  # collect records for this long, because each delivery takes the GIL from training

Item = TypeVar("Item")


class MonitorQueue(Generic[Item]):
    """Deliver records to one monitor in order, on a thread. The thread starts when `start` is called, or with the first record.

    `receive` gets a list of all queued records or, with `one_by_one`, a list with one record. It may modify the list.

    If the queue is full, `put` waits. If `drops` is set, it drops and counts the oldest record instead. An error in `receive`
    ends delivery. The error is stored in `error`, and the training thread raises it.

    `is_blocked` is set when `wait` or `put` has waited too long for the monitor. From then on, the run does not wait for the
    monitor, and a full queue drops its oldest records until the monitor catches up. The thread is a daemon, so the process can
    exit.
    """

    def __init__(
        self,
        name: str,
        receive: Callable[[list[Item]], object],
        *,
        drops: bool = False,
        capacity: int = CAPACITY,
        linger_seconds: float | None = None,
        one_by_one: bool = False,
    ) -> None:
        self.name, self.drops, self.dropped, self.is_blocked = name, drops, 0, False
        self.error: Exception | None = None
        self._receive, self._capacity = receive, capacity
        self._linger_seconds = LINGER_SECONDS if linger_seconds is None else linger_seconds
        self._one_by_one = one_by_one
        self._records: deque[Item] = deque()
        self._in_hand = 0
        self._closing = self._is_urgent = False
        self._lock = threading.RLock()
        self._change = threading.Condition(self._lock)  # `put` enters the lock directly, which is faster
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Start the thread, unless it is already running."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._work, name=f"hookpoint {self.name}", daemon=True)
            self._thread.start()

    def put(self, record: Item, seconds: float) -> bool:
        """Add a record. If the queue is full and `drops` is not set, wait up to `seconds`.

        Return whether the monitor has just become blocked.
        """
        was_blocked, until = self.is_blocked, None
        with self._lock:
            while len(self._records) >= self._capacity and self.error is None:
                until = monotonic() + seconds if until is None else until
                if self.drops or self.is_blocked:
                    self._records.popleft()
                    self.dropped += 1
                elif monotonic() >= until:
                    self.is_blocked = True
                else:
                    self._change.wait(min(0.1, seconds))  # wake up regularly, so that Ctrl-C can interrupt the wait
            if self.error is None:
                self._records.append(record)
            if self._thread is None:
                self.start()
            if len(self._records) == 1 or self._is_half_full():
                self._change.notify_all()
            return self.is_blocked and not was_blocked

    def wait(self, seconds: float) -> bool:
        """Wait up to `seconds` for all records to be delivered. Return whether the monitor has just become blocked."""
        if self.is_blocked:
            return False
        left = self.drain(monotonic() + seconds)
        with self._change:
            self.is_blocked = left > 0 and self._in_hand > 0 and self.error is None
            return self.is_blocked

    def where(self) -> str:
        """Return the source line that the monitor is executing, or "" if it is idle."""
        frame = None if self._thread is None else frames_by_thread().get(self._thread.ident or 0)
        while frame is not None and frame.f_globals.get("__name__") == "threading":
            frame = frame.f_back
        if frame is None or frame.f_code is self._work.__code__:
            return ""
        return f"{frame.f_code.co_filename}:{frame.f_lineno}"

    def hurry(self) -> None:
        """Make the thread deliver the queued records now instead of waiting for more. Do not wait for the delivery."""
        with self._change:
            self._is_urgent = True
            self._change.notify_all()

    def drain(self, deadline: float) -> int:
        """Wait until all records are delivered or `monotonic()` passes the deadline. Return the number of records left."""
        with self._change:
            self.hurry()
            while (self._records or self._in_hand) and self.error is None and monotonic() < deadline:
                self._change.wait(0.05)
            self._is_urgent = False
            return len(self._records) + self._in_hand

    @property
    def is_in_hand(self) -> bool:
        """Whether the monitor is still processing its last records."""
        return self._in_hand > 0 and self.error is None

    def close(self) -> None:
        """End the thread after it has delivered the queued records."""
        with self._change:
            self._closing = True
            self._change.notify_all()

    def _work(self) -> None:
        while True:
            with self._change:
                if not self._records or not self._one_by_one:
                    while not self._records and not self._closing:
                        self._change.wait()
                    self._linger()
                if not self._records:
                    return
                records = [self._records.popleft() for _ in range(1 if self._one_by_one else len(self._records))]
                self._in_hand = len(records)
                self._change.notify_all()
            try:
                self._receive(records)
            except Exception as error:
                self.error = error
            with self._change:
                self._in_hand = 0
                self.is_blocked = self.is_blocked and bool(self._records)
                self._change.notify_all()
            if self.error is not None:
                return

    def _linger(self) -> None:
        """Wait briefly for more records, unless the run is waiting for those already queued."""
        until = monotonic() + self._linger_seconds
        while not (self._closing or self._is_urgent or self._is_half_full()) and monotonic() < until:
            self._change.wait(until - monotonic())

    def _is_half_full(self) -> bool:
        return len(self._records) * 2 >= self._capacity
