"""ChromeTrace: write spans to a file that Perfetto and chrome://tracing open."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from functools import lru_cache
from itertools import count
from pathlib import Path
from threading import Lock, current_thread, get_ident
from typing import Any

from hookpoint.core.logger import logger

_quoted = lru_cache(maxsize=1024)(json.dumps)

FLUSH_EVERY = 512  # events in memory; at most this many are lost if the process is killed


class ChromeTrace:
    """Write events in the Trace Event Format, as one JSON array.

    Times are in nanoseconds, from `perf_counter_ns`. A short span is one `complete` event. A long span is written as a `begin`
    event and an `end` event, so its start is on disk even if the process is killed. The closing bracket is then missing, but
    readers of the format accept this. After `max_events` events, `is_full` is True. The caller should then start no new
    spans, and only end the open spans. Any thread may write. If a write fails, a warning is logged and nothing more is written.
    """

    def __init__(self, path: Path, *, process: int, title: str, began: int, max_events: int) -> None:
        self.path = path
        self.is_full = False
        self._owner = os.getpid()
        self._process = process
        self._began = began
        self._left = max_events
        self._lines: list[str] = []
        self._threads: dict[int, int] = {}
        self._lock = Lock()
        path.parent.mkdir(parents=True, exist_ok=True)
        # Unbuffered, because a forked process would write the contents of an inherited buffer a second time.
        self._file: Any = open(path, "xb", buffering=0)  # noqa: SIM115 - stays open during the run
        self._write("[" + self._metadata("process_name", 0, title))

    def begin(self, name: str, at: int, **args: int | str) -> None:
        self._add(f'"ph":"B","name":{_quoted(name)},"ts":{self._time(at)}', args)

    def end(self, at: int) -> None:
        self._add(f'"ph":"E","ts":{self._time(at)}', {})

    def complete(self, name: str, began: int, ended: int, **args: int | str) -> None:
        span = f'"ts":{self._time(began)},"dur":{(ended - began) / 1000:.3f}'
        self._add(f'"ph":"X","name":{_quoted(name)},{span}', args)

    def flush(self) -> None:
        with self._lock:
            self._flush()

    def close(self) -> None:
        """Write the remaining events and the closing bracket."""
        with self._lock:
            self._lines.append("\n]\n")
            self._flush()
            self._close_file()

    def _add(self, event: str, args: Mapping[str, int | str]) -> None:
        pairs = [f'"{name}":{value if isinstance(value, int) else _quoted(value)}' for name, value in args.items()]
        arguments = f',"args":{{{",".join(pairs)}}}' if pairs else ""
        with self._lock:
            thread = self._threads.get(get_ident())
            if thread is None:
                thread = self._threads[get_ident()] = len(self._threads) + 1
                self._lines.append(",\n" + self._metadata("thread_name", thread, current_thread().name))
            self._lines.append(f',\n{{{event},"pid":{self._process},"tid":{thread}{arguments}}}')
            self._left -= 1
            self.is_full = self.is_full or self._left <= 0
            if len(self._lines) >= FLUSH_EVERY:
                self._flush()

    def _flush(self) -> None:
        lines, self._lines = self._lines, []
        self._write("".join(lines))

    def _write(self, text: str) -> None:
        if self._file is None or os.getpid() != self._owner:  # a forked process has a copy of this object
            return
        left = memoryview(text.encode())
        try:
            while left:
                left = left[self._file.write(left) :]
        except OSError as error:
            logger.warning("%s could not be written: %s; the trace ends here", self.path, error.strerror)
            self.is_full = True
            self._close_file()

    def _close_file(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None

    def _metadata(self, kind: str, thread: int, name: str) -> str:
        event = {"ph": "M", "name": kind, "pid": self._process, "tid": thread, "args": {"name": name}}
        return json.dumps(event, separators=(",", ":"))

    def _time(self, at: int) -> str:
        return f"{(at - self._began) / 1000:.3f}"


def next_free(folder: Path, stem: str) -> Path:
    """Return the first of stem-1.json, stem-2.json, ... that does not exist."""
    paths = (folder / f"{stem}-{number}.json" for number in count(1))
    return next(path for path in paths if not os.path.lexists(path))
