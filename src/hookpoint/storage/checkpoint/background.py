"""Background: write checkpoints on a background thread."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable

from hookpoint.core.checkpoint.store import Saved


class Background:
    """Write checkpoints on a background thread, one at a time. The process does not exit until a running write has finished."""

    def __init__(self) -> None:
        self._thread: threading.Thread | None = None
        self._is_over = threading.Event()
        self._saved: deque[Saved] = deque()
        self._errors: deque[BaseException] = deque()

    def start(self, save: Callable[[], Saved], when_saved: Callable[[], object] | None = None) -> None:
        """Wait for the previous save to finish, then start `save` on a thread. The thread calls `when_saved` afterwards."""
        self.wait()
        self._is_over.clear()
        self._thread = thread = threading.Thread(target=self._run, args=(save, when_saved), name="hookpoint-save", daemon=False)
        try:
            thread.start()
        except BaseException:
            # Without enough memory, the thread does not start. In all other cases, the thread is running, and a signal handler
            # raised the error.
            if thread.ident is None and thread not in threading.enumerate():
                self._thread = None
            raise

    def wait(self) -> None:
        """Wait until no save is running."""
        if self._thread is not None:
            # Wait for this event before calling `join`: `join` may fail if a signal interrupted the start of the thread.
            self._is_over.wait()
            self._thread.join()
            self._thread = None

    def collect(self) -> list[Saved]:
        """Return the saves that have finished since the last call. If a save has failed, raise its error instead.

        Each save and each error is reported once. After an error, call this method again to get the other results.
        """
        if self._errors:
            raise self._errors.popleft()
        return [self._saved.popleft() for _ in range(len(self._saved))]

    def errors(self) -> list[BaseException]:
        """Return the errors that `collect` has not raised yet. Each error is returned only once."""
        return [self._errors.popleft() for _ in range(len(self._errors))]

    def _run(self, save: Callable[[], Saved], when_saved: Callable[[], object] | None) -> None:
        try:
            self._saved.append(save())
        except BaseException as error:
            self._errors.append(error)
        finally:
            self._is_over.set()
        if when_saved is not None:
            when_saved()
