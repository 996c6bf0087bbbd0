"""MirrorThread: upload in the background. A failed upload never stops the run."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from hookpoint.core.logger import logger
from hookpoint.storage.remote.upload import Upload

LONGEST_SHARE = 10  # after a log upload, the thread waits at least ten times as long as the upload took
ATTEMPTS_AT_END = 3


class MirrorThread:
    """Upload checkpoints on request, and logs at regular intervals. A failed upload is logged once and retried later.

    `explain` removes credentials from an error message.
    """

    def __init__(self, upload: Upload, owner: str, explain: Callable[[object], str]) -> None:
        self._upload, self._owner, self._explain = upload, owner, explain
        self._changed = threading.Condition()
        self._has_saved = True  # the workdir may contain checkpoints that are not uploaded yet
        self._is_ending = False
        self._is_failing = False
        self._next_logs = time.monotonic()
        self._failure = ""
        self._thread = threading.Thread(target=self._run, name="hookpoint-mirror", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def saved(self) -> None:
        """Upload new checkpoints as soon as possible."""
        with self._changed:
            self._has_saved = True
            self._changed.notify_all()

    def finish(self, seconds: float) -> str:
        """Upload everything and wait for at most `seconds`. Return why the upload is incomplete, or "" if it is complete."""
        with self._changed:
            self._is_ending = True
            self._changed.notify_all()
        self._thread.join(seconds)
        if self._thread.is_alive():
            return f"the upload takes longer than {seconds:g} seconds"
        return self._failure

    def _run(self) -> None:
        while True:
            with self._changed:
                while not (self._is_ending or self._has_saved or time.monotonic() >= self._next_logs):
                    self._changed.wait(max(self._next_logs - time.monotonic(), 0.0))
                is_ending, has_saved, self._has_saved = self._is_ending, self._has_saved, False
            if is_ending:
                self._finish()
                return
            if not self._try(self._checkpoints if has_saved else self._logs) and has_saved:
                with self._changed:
                    self._has_saved = True
                    self._changed.wait_for(lambda: self._is_ending, self._upload.every_seconds)

    def _finish(self) -> None:
        for attempt in range(ATTEMPTS_AT_END):
            if self._try(self._everything):
                self._failure = ""
                return
            time.sleep(2.0**attempt if attempt < ATTEMPTS_AT_END - 1 else 0)

    def _everything(self) -> None:
        self._upload.checkpoints()
        self._upload.logs(has_ended=True)

    def _checkpoints(self) -> None:
        self._upload.checkpoints()

    def _logs(self) -> None:
        began = time.monotonic()
        self._upload.logs()
        took = time.monotonic() - began
        self._next_logs = time.monotonic() + max(self._upload.every_seconds, LONGEST_SHARE * took)

    def _try(self, action: Callable[[], None]) -> bool:
        try:
            action()
        except Exception as error:  # each storage client raises its own exception classes
            self._failure = self._explain(f"{type(error).__name__}: {error}")
            self._next_logs = time.monotonic() + self._upload.every_seconds
            if not self._is_failing:
                self._is_failing = True
                text = "%s cannot write to %s and will retry every %g seconds: %s"
                logger.warning(text, self._owner, self._upload.remote.url, self._upload.every_seconds, self._failure)
            return False
        if self._is_failing:
            self._is_failing = False
            logger.warning("%s can write to %s again", self._owner, self._upload.remote.url)
        return True
