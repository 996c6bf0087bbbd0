"""Background: one thing at a time, done beside the training, and what came of it."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable

from hookpoint.core.checkpoint.store import Saved


class Background:
    """Write checkpoints beside the training, one at a time. The process does not end before one that was begun is over."""

    def __init__(self) -> None:
        self._thread: threading.Thread | None = None
        self._saved: deque[Saved] = deque()
        self._errors: deque[BaseException] = deque()

    def start(self, save: Callable[[], Saved]) -> None:
        """Begin to save, when the one before is over."""
        self.wait()
        thread = threading.Thread(target=self._run, args=(save,), name="hookpoint-save", daemon=False)
        thread.start()  # which fails where there is no memory for another one
        self._thread = thread

    def wait(self) -> None:
        """Return when nothing is under way."""
        if self._thread is not None:
            self._thread.join()
            self._thread = None

    def collect(self) -> list[Saved]:
        """Return what was saved since the last call, or raise an error, each once; what was saved then waits for the next."""
        if self._errors:
            raise self._errors.popleft()
        return [self._saved.popleft() for _ in range(len(self._saved))]

    def left(self) -> list[BaseException]:
        """Return the errors that nobody asked for."""
        return [self._errors.popleft() for _ in range(len(self._errors))]

    def _run(self, save: Callable[[], Saved]) -> None:
        try:
            self._saved.append(save())
        except BaseException as error:
            self._errors.append(error)
