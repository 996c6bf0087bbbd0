"""ChromeTrace: spans of time in a file that Perfetto and chrome://tracing open."""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Mapping
from pathlib import Path
from threading import Lock, current_thread, get_ident
from typing import Any

logger = logging.getLogger("hookpoint")

FLUSH_EVERY = 512  # events; so many at most are lost when the process is killed


class ChromeTrace:
    """Write events of the Trace Event Format as they come, as one JSON array.

    Times are nanoseconds of `perf_counter_ns`. A span is one `complete` event, or a `begin` and an `end`, which is for those
    that are long: they are there when the process is killed in the middle. Such a file lacks its last bracket, and readers of
    the format take it without. It `is_full` when `max_events` are written: then its owner begins no more, and only ends what
    began. Any thread may write; when the disk fails, that is said once and nothing more is written.
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
        self._strings: dict[str, str] = {}
        self._lock = Lock()
        path.parent.mkdir(parents=True, exist_ok=True)
        # Without a buffer of its own: what a forked process inherits of one, it would write a second time.
        self._file: Any = open(path, "xb", buffering=0)  # noqa: SIM115 - it is open as long as the run goes on
        self._write("[" + self._about("process_name", 0, title))

    def begin(self, name: str, at: int, **about: int | str) -> None:
        self._add(f'"ph":"B","name":{self._quoted(name)},"ts":{self._time(at)}', about)

    def end(self, at: int) -> None:
        self._add(f'"ph":"E","ts":{self._time(at)}', {})

    def complete(self, name: str, began: int, ended: int, **about: int | str) -> None:
        span = f'"ts":{self._time(began)},"dur":{(ended - began) / 1000:.3f}'
        self._add(f'"ph":"X","name":{self._quoted(name)},{span}', about)

    def flush(self) -> None:
        with self._lock:
            self._flush()

    def close(self) -> None:
        """Write what is left and the last bracket."""
        with self._lock:
            self._lines.append("\n]\n")
            self._flush()
            if self._file is not None:
                self._file.close()
                self._file = None

    def _add(self, event: str, about: Mapping[str, int | str]) -> None:
        pairs = [f'"{name}":{value if isinstance(value, int) else self._quoted(value)}' for name, value in about.items()]
        arguments = f',"args":{{{",".join(pairs)}}}' if pairs else ""
        with self._lock:
            thread = self._threads.get(get_ident())
            if thread is None:
                thread = self._threads[get_ident()] = len(self._threads) + 1
                self._lines.append(",\n" + self._about("thread_name", thread, current_thread().name))
            self._lines.append(f',\n{{{event},"pid":{self._process},"tid":{thread}{arguments}}}')
            self._left -= 1
            self.is_full = self.is_full or self._left <= 0
            if len(self._lines) >= FLUSH_EVERY:
                self._flush()

    def _flush(self) -> None:
        lines, self._lines = self._lines, []
        self._write("".join(lines))

    def _write(self, words: str) -> None:
        if self._file is None or os.getpid() != self._owner:  # a forked process, such as a loader's worker, has a copy of this
            return
        left = memoryview(words.encode())
        try:
            while left:
                left = left[self._file.write(left) :]
        except OSError as error:
            logger.warning("%s could not be written: %s; the trace ends here", self.path, error.strerror)
            self.is_full = True
            self._file.close()
            self._file = None

    def _about(self, what: str, thread: int, name: str) -> str:
        about = {"ph": "M", "name": what, "pid": self._process, "tid": thread, "args": {"name": name}}
        return json.dumps(about, separators=(",", ":"))

    def _quoted(self, words: str) -> str:
        """Return a JSON string; there are few, and each is needed often."""
        found = self._strings.get(words)
        if found is None:
            found = self._strings[words] = json.dumps(words)
        return found

    def _time(self, at: int) -> str:
        return f"{(at - self._began) / 1000:.3f}"


def next_free(folder: Path, stem: str) -> Path:
    """Return the first of stem-1.json, stem-2.json, ... that is not there: what an earlier start wrote stays."""
    number = 1
    while os.path.lexists(folder / f"{stem}-{number}.json"):
        number += 1
    return folder / f"{stem}-{number}.json"
