"""Harm: faults that a child causes to itself during training; each function is a task of `children`."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import subject

from hookpoint import Callback
from hookpoint.storage.disk._fs_calls import Operation, intercepted

POINTS = ("on_iter_begin", "on_backward_end", "on_step_end")
STORAGE = ("staged", "renamed", "retention")
SITES = (*POINTS, *STORAGE)


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def train(
    workdir: str,
    trace: str,
    variant: dict[str, Any],
    site: str | None = None,
    step: int = 0,
    operation: int = 0,
    after: bool = False,
    slow_from: int = 0,
    pause: float = 0.0,
    sends: int = signal.SIGKILL,
    announced: str | None = None,
) -> dict[str, str]:
    """Train to the end, or until killed at a site in or after a step, or before or after the n-th change to the disk.

    From the save of step `slow_from` on, each fsync of a checkpoint takes `pause` seconds. `sends` is the signal that is sent
    at a point. The name of each announced checkpoint is appended to the file `announced`.
    """
    here = KillsAtPoint(site, step, sends)
    with ExitStack() as stack:
        if pause:
            stack.enter_context(intercepted(partial(_slowly, slow_from, pause)))
        if site in STORAGE:
            stack.enter_context(intercepted(KillsInSave(str(site), step)))
        if operation:
            stack.enter_context(intercepted(KillsAt(operation, after)))
        more: list[Callback] = [here] if site in POINTS else []
        more += [NotesSaves(announced)] if announced else []
        return subject.train(workdir, trace, subject.Variant(**variant), more=more, reached=here.reached)


class KillsAtPoint(Callback):
    """Kill the process, once, at a point of a step: before it, after its backward, or after it but before its save."""

    def __init__(self, site: str | None, step: int, sends: int = signal.SIGKILL) -> None:
        super().__init__()
        self._site, self._step, self._now = site, step, 0
        self._sends = sends

    def on_iter_begin(self, run: Any) -> None:
        if run.mode == "train":
            self._now = run.step + 1
            self.reached("on_iter_begin")

    def on_backward_end(self) -> None:
        self.reached("on_backward_end")

    def on_step_end(self) -> None:
        self.reached("on_step_end")

    def reached(self, site: str) -> None:
        if site == self._site and self._now >= self._step:
            self._site = None
            os.kill(os.getpid(), self._sends)


class NotesSaves(Callback):
    """Append the name of each checkpoint to a file as soon as it is announced."""

    def __init__(self, path: str) -> None:
        super().__init__()
        self._path = path

    def on_save(self, path: Any) -> None:
        with open(self._path, "a") as file:
            file.write(f"{Path(path).name}\n")


class KillsInSave:
    """Kill the process during the save of a step, or the first later save that reaches the site.

    "staged": everything is written but not yet renamed. "renamed": right after the rename. "retention": an old checkpoint is
    half deleted.
    """

    def __init__(self, site: str, step: int) -> None:
        self._site, self._step = site, step
        self._saved = self._unlinked = 0

    def __call__(self, operation: Operation, proceed: Callable[[], Any]) -> Any:
        names = operation.name == "rename" and Path(str(operation.target)).name.startswith("step-")
        if names:
            self._saved = int(Path(str(operation.target)).name.split("-")[1])
        if self._saved < self._step:
            return proceed()
        if self._site == "staged" and names:
            die()
        if self._site == "retention" and operation.name == "unlink" and ".deleting-" in operation.path:
            self._unlinked += 1
            if self._unlinked == 2:
                die()
        returned = proceed()
        if self._site == "renamed" and names:
            die()
        return returned


class KillsAt:
    """Kill the process before or after the n-th change to the disk."""

    def __init__(self, number: int, after: bool) -> None:
        self._left, self._after = number, after

    def __call__(self, operation: Operation, proceed: Callable[[], Any]) -> Any:
        if operation.changes:
            self._left -= 1
            if self._left == 0 and not self._after:
                die()
            returned = proceed()
            if self._left == 0:
                die()
            return returned
        return proceed()


def _slowly(step: int, seconds: float, operation: Operation, proceed: Callable[[], Any]) -> Any:
    _, is_save, name = operation.path.partition(".staging-step-")
    if is_save and operation.name == "fsync" and int(name[:8]) >= step:
        end = time.monotonic() + seconds
        # If a signal arrives just before a sleep begins, Python calls the signal's handler only after the sleep.
        while (left := end - time.monotonic()) > 0:
            time.sleep(min(left, 0.01))
    return proceed()


def count(workdir: str, trace: str, variant: dict[str, Any]) -> tuple[dict[str, str], int]:
    """Train to the end; return the results and the number of changes to the disk."""
    changes = 0

    def counting(operation: Operation, proceed: Callable[[], Any]) -> Any:
        nonlocal changes
        changes += operation.changes
        return proceed()

    with intercepted(counting):
        return subject.train(workdir, trace, subject.Variant(**variant)), changes
