"""Surroundings: changes that a child makes to its environment; each function is a task of `children`."""

from __future__ import annotations

import os
import random
import resource
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import harm
import subject

from hookpoint import Callback

DAY = 86400.0
NOBODY = 65534
WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND


def with_jumping_clock(workdir: str, trace: str, variant: dict[str, Any], seed: int, step: int = 0) -> dict[str, str]:
    """Train with a clock that jumps by up to a day at each reading; with `step`, be killed before that step."""
    chance, real = random.Random(seed), time.time
    time.time = lambda: real() + DAY * chance.choice((-1, 0, 1))
    return harm.train(workdir, trace, variant, site="on_iter_begin" if step else None, step=step)


def as_nobody(workdir: str, trace: str, variant: dict[str, Any]) -> dict[str, str]:
    """Train as the user nobody, after importing everything that this user may not read."""
    with tempfile.TemporaryDirectory() as folder:
        harm.train(f"{folder}/run", f"{folder}/trace", variant)
    os.setgroups([])
    os.setgid(NOBODY)
    os.setuid(NOBODY)
    return harm.train(workdir, trace, variant)


def with_limited_files(workdir: str, trace: str, variant: dict[str, Any], limit: int, begin: int, end: int) -> dict[str, str]:
    """Train with a limit on the size of files from step `begin` until step `end`."""
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    with _written_by_another():
        try:
            return subject.train(workdir, trace, subject.Variant(**variant), more=[Limit(limit, begin, end)])
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, before)


@contextmanager
def _written_by_another() -> Iterator[None]:
    """Send stdout and stderr through a process without the limit."""
    kept = [os.dup(1), os.dup(2)]
    with subprocess.Popen(["cat"], stdin=subprocess.PIPE) as cat:
        assert cat.stdin is not None
        for number in (1, 2):
            os.dup2(cat.stdin.fileno(), number)
        try:
            yield
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            for number, descriptor in enumerate(kept, 1):
                os.dup2(descriptor, number)


class Limit(Callback):
    """Set the limit on the size of files, and lift it again."""

    def __init__(self, limit: int, begin: int, end: int) -> None:
        super().__init__()
        self._limit, self._steps = limit, range(begin, end)

    def on_train_iter_begin(self, run: Any) -> None:
        _, most = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (self._limit if run.step in self._steps else most, most))


def with_full_logs(workdir: str, trace: str, variant: dict[str, Any]) -> dict[str, str]:
    """Train with no space for logs, and space for everything else."""
    return subject.train(workdir, trace, subject.Variant(**variant), more=[FullLogs()])


class FullLogs(Callback):
    """Replace the monitors' files by ones that cannot be written."""

    def on_run_begin(self, run: Any) -> None:
        workdir = Path(run.workdir)
        for name in ("scalars.jsonl", "events.jsonl"):
            (workdir / name).symlink_to("/dev/full")
        (workdir / "tensorboard").write_text("no folder")


def watched(workdir: str, trace: str, variant: dict[str, Any], temporary: str, home: str) -> tuple[dict[str, str], list[str]]:
    """Train; return the results and every path outside the workdir that was created, changed or opened for writing."""
    outside: set[str] = set()
    allowed = (os.path.realpath(workdir), os.path.realpath(trace), os.devnull)

    def look(event: str, arguments: tuple[Any, ...]) -> None:
        paths: tuple[Any, ...] = ()
        opens = event == "open" and isinstance(arguments[2], int) and arguments[2] & WRITES
        if opens or event in ("os.mkdir", "os.remove", "os.rmdir", "os.truncate", "os.chmod", "os.utime"):
            paths = arguments[:1]
        elif event in ("os.rename", "os.link", "os.symlink"):
            paths = arguments[:2] if event == "os.rename" else arguments[1:2]
        for path in paths:
            if isinstance(path, str | bytes) or hasattr(path, "__fspath__"):
                found = os.path.realpath(os.fsdecode(path))
                # A path without a folder is relative to a descriptor or to the home folder, which must be empty at the end.
                if os.path.dirname(os.fsdecode(path)) and not found.startswith(allowed):
                    outside.add(found)

    os.environ.update(TMPDIR=temporary, HOME=home)
    os.chdir(home)
    sys.addaudithook(look)
    return harm.train(workdir, trace, variant), sorted(outside)
