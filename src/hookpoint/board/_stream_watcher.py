"""StreamWatcher: a thread that checks the run folders for changes and informs open pages. It sleeps while no page is open."""

from __future__ import annotations

import asyncio
import json
import logging
import math
import time
from collections.abc import Iterable
from contextlib import suppress
from threading import Condition, Thread
from typing import Any

from hookpoint.board._curve_store import CurveStore
from hookpoint.board._run_table import Changes, RunTable
from hookpoint.core.text.plain_values import plain
from hookpoint.run_folder.describe_event import describe_event
from hookpoint.run_folder.file_follower import FileFollower
from hookpoint.run_folder.run_folder import EVENTS, RUNNING

logger = logging.getLogger("hookpoint")

TICK_SECONDS = 0.5
REST_SECONDS = 10.0  # interval between checks of a run that has ended.
MAX_WAITING = 1_000  # maximum number of messages in the queue for one page


class Subscription:
    """A queue of messages for one page. `next` returns None when the server shuts down or the queue is full."""

    def __init__(self, keys: Iterable[str]) -> None:
        self.keys = frozenset(keys)
        self._loop = asyncio.get_running_loop()
        self._queue: asyncio.Queue[bytes | None] = asyncio.Queue(MAX_WAITING)

    async def next(self) -> bytes | None:
        return await self._queue.get()

    def put(self, message: bytes | None) -> None:
        """Add a message. Any thread may call this."""
        with suppress(RuntimeError):  # the event loop is closed
            self._loop.call_soon_threadsafe(self._put, message)

    def _put(self, message: bytes | None) -> None:
        if message is None or self._queue.full():
            while not self._queue.empty():
                self._queue.get_nowait()
            message = None
        self._queue.put_nowait(message)


class StreamWatcher:
    """Send messages to open pages.

    All pages are informed when the table of runs changes. A page is also informed about the runs that it shows: about new
    values, new events and answers to commands.
    """

    def __init__(self, table: RunTable, store: CurveStore) -> None:
        self._table = table
        self._store = store
        self._subscriptions: set[Subscription] = set()
        self._changed = Condition()
        self._is_stopped = False
        self._versions: dict[str, int] = {}
        self._followers: dict[str, FileFollower] = {}
        self._looked: dict[str, float] = {}
        self._failed: set[str] = set()
        self._thread: Thread | None = None
        table.listen(self._publish_changes)

    def subscribe(self, keys: Iterable[str]) -> Subscription:
        """Start collecting messages about the runs with these keys. Call this in the server's event loop."""
        subscription = Subscription(keys)
        with self._changed:
            self._subscriptions.add(subscription)
            if self._is_stopped:
                subscription.put(None)
            elif self._thread is None:
                self._thread = Thread(target=self._work, name="hookpoint-watcher", daemon=True)
                self._thread.start()
            self._changed.notify()
        return subscription

    def unsubscribe(self, subscription: Subscription) -> None:
        with self._changed:
            self._subscriptions.discard(subscription)

    def publish(self, name: str, data: dict[str, Any], key: str | None = None) -> None:
        """Send a message to all pages or, with `key`, to those that show this run."""
        message = _message(name, data)
        with self._changed:
            for subscription in self._subscriptions:
                if key is None or key in subscription.keys:
                    subscription.put(message)

    def state(self, subscription: Subscription) -> bytes:
        """Return the first message for a page.

        It contains the current version numbers of the table and of each run's curves. If a version number differs from the one
        that the page has, the page has missed a change.
        """
        return _message(
            "state", {"table": self._table.version, "curves": {key: self._versions.get(key) for key in subscription.keys}}
        )

    def stop(self) -> None:
        """End all streams and the thread. Signal handlers may call this method."""
        self._is_stopped = True
        for subscription in list(self._subscriptions):
            subscription.put(None)

    def join(self) -> None:
        """Stop the thread, and wait until it has ended."""
        self.stop()
        with self._changed:
            self._changed.notify()
        if self._thread is not None:
            self._thread.join()

    def _work(self) -> None:
        while not self._is_stopped:
            with self._changed:
                while not self._subscriptions and not self._is_stopped:
                    self._changed.wait()
                keys = {key for subscription in self._subscriptions for key in subscription.keys}
            try:
                self._look(keys)
            except Exception:
                logger.exception("the board could not look for runs")
            with self._changed:
                self._changed.wait_for(lambda: self._is_stopped, TICK_SECONDS)

    def _look(self, keys: set[str]) -> None:
        self._table.update()
        for known in (self._followers, self._looked, self._versions):
            for key in [key for key in known if key not in keys]:
                del known[key]
        for key in keys:
            try:
                self._look_at(key)
            except Exception:
                if key not in self._failed:
                    self._failed.add(key)  # log it once, and continue with the other runs
                    logger.exception("the board cannot read %s", self._table.path(key))

    def _look_at(self, key: str) -> None:
        row, path = self._table.row(key), self._table.path(key)
        now = time.monotonic()
        is_due = now - self._looked.get(key, -math.inf) >= REST_SECONDS
        if not row or path is None or (row["status"] != RUNNING and not is_due and key in self._followers):
            if self._is_growing(key):
                self._look_at_curves(key)
            return
        self._looked[key] = now
        # Look at events before curves: once a page gets a message about curves, it also gets all later events.
        self._look_at_events(key)
        self._look_at_curves(key)

    def _is_growing(self, key: str) -> bool:
        """Return whether a run's curves have changed, for example because the board is still indexing the run's scalars."""
        path = self._table.path(key)
        return path is not None and self._store.of(key, path).version != self._versions.get(key)

    def _look_at_curves(self, key: str) -> None:
        path = self._table.path(key)
        if path is None:
            return
        version = self._store.of(key, path).update()
        if version != self._versions.get(key):
            self._versions[key] = version
            self.publish("curves", {"run": key, "version": version}, key)

    def _look_at_events(self, key: str) -> None:
        path = self._table.path(key)
        follower = self._followers.get(key)
        if path is None:
            return
        if follower is None:
            follower = self._followers[key] = FileFollower(path / EVENTS)
            follower.last(1)
        for event in follower.new():
            if isinstance(event.get("event"), str):
                self.publish("event", {"run": key, "text": describe_event(event), **event}, key)

    def _publish_changes(self, changes: Changes) -> None:
        for key in changes.gone:
            self._store.forget(key)
        self.publish("runs", {"rows": changes.rows, "gone": changes.gone})


def _message(name: str, data: dict[str, Any]) -> bytes:
    return f"event: {name}\ndata: {json.dumps(plain(data), allow_nan=False)}\n\n".encode()
