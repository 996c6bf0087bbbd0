"""Children: processes, threads and commands that are started, watched and stopped, whatever they are made with."""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from time import monotonic
from typing import Any

logger = logging.getLogger("hookpoint")

KEPT_FROM_CHILDREN = ("SIGTERM", "SIGHUP", "SIGUSR1")  # what a run's loop handles, and a forked process would inherit

_forking = threading.local()


class Command:
    """A program with its arguments, started without a shell and without input. It can be started again."""

    def __init__(self, arguments: Sequence[str]) -> None:
        self.name = arguments[0]
        self._arguments = list(arguments)
        self._process: subprocess.Popen[bytes] | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_process": None}

    def start(self) -> None:
        self._process = subprocess.Popen(self._arguments, stdin=subprocess.DEVNULL)

    def is_alive(self) -> bool:
        return self._process is not None and self._process.poll() is None

    @property
    def exitcode(self) -> int | None:
        return None if self._process is None else self._process.poll()

    def terminate(self) -> None:
        if self._process is not None:
            self._process.terminate()

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()

    def join(self, timeout: float | None = None) -> None:
        try:
            if self._process is not None:
                self._process.wait(timeout)
        except subprocess.TimeoutExpired:
            pass


def described(child: Any) -> str:
    name = getattr(child, "name", None)
    return f"{type(child).__name__} {name}" if isinstance(name, str) else type(child).__name__


def was_started(child: Any) -> bool:
    """Say whether it was, and is of a kind that is started once in its life."""
    from multiprocessing.process import BaseProcess  # which gives the main module a second name, so not when we are imported

    return isinstance(child, threading.Thread | BaseProcess) and child.ident is not None


def start(child: Any) -> None:
    """Start it such that Ctrl-C does not reach it, and a SIGTERM means to it what it means to any process."""
    with _apart():
        child.start()


def has_died(child: Any) -> bool:
    """Say whether a process has ended with something other than 0."""
    return not _is_alive(child) and getattr(child, "exitcode", None) not in (None, 0)


def stop(child: Any, seconds: float) -> bool:
    """Ask it to end, wait for so long at most, and kill what can be killed then; say whether it has ended."""
    ask: Callable[[], object] | None = getattr(child, "stop", None) or getattr(child, "terminate", None)
    if ask is not None and _is_alive(child) is not False:
        ask()
    _join(child, seconds if ask is not None else min(seconds, 0.1))
    if _is_alive(child) and hasattr(child, "kill"):
        logger.warning("%s did not end within %g s and was killed", described(child), seconds)
        child.kill()
        _join(child, seconds)
    return not _is_alive(child)


def _is_alive(child: Any) -> bool | None:
    """Say whether it is running; None where it does not tell."""
    ask = getattr(child, "is_alive", None)
    return bool(ask()) if callable(ask) else None


def _join(child: Any, seconds: float) -> None:
    join = getattr(child, "join", None)
    if callable(join) and child is not threading.current_thread():
        deadline = monotonic() + seconds
        try:
            join(timeout=seconds)
        except TypeError:  # one of its own that takes no time limit is waited for in a thread that may be left behind
            waiter = threading.Thread(target=join, daemon=True)
            waiter.start()
            waiter.join(max(0.0, deadline - monotonic()))


@contextmanager
def _apart() -> Iterator[None]:
    """Start processes whose SIGINT is blocked, and ignored: multiprocessing unblocks it where it spawns for the first time.

    One that comes to this process meanwhile waits, as it is blocked, and is handled right after.
    """
    if sys.platform == "win32":
        yield
        return
    _reset_signals_after_fork()
    blocked = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
    handler = signal.getsignal(signal.SIGINT)
    ignores = handler is not None and threading.current_thread() is threading.main_thread()
    if ignores:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
    _forking.is_ours = True
    try:
        yield
    finally:
        _forking.is_ours = False
        if ignores:
            signal.signal(signal.SIGINT, handler)
        signal.pthread_sigmask(signal.SIG_SETMASK, blocked)


_registered = False


def _reset_signals_after_fork() -> None:
    """See to it, once in a process, that what is forked here has none of this process's handlers."""
    global _registered
    if not _registered:
        _registered = True
        os.register_at_fork(before=_hold_signals, after_in_parent=_release_signals, after_in_child=_reset_signals)


def _hold_signals() -> None:
    """Let signals wait until the new process has its own handlers: one that comes before would be lost."""
    if getattr(_forking, "is_ours", False):
        _forking.mask = signal.pthread_sigmask(signal.SIG_BLOCK, [getattr(signal, name) for name in KEPT_FROM_CHILDREN])


def _release_signals() -> None:
    if getattr(_forking, "is_ours", False):
        signal.pthread_sigmask(signal.SIG_SETMASK, _forking.mask)


def _reset_signals() -> None:
    if getattr(_forking, "is_ours", False):
        for name in KEPT_FROM_CHILDREN:
            if callable(signal.getsignal(getattr(signal, name))):
                signal.signal(getattr(signal, name), signal.SIG_DFL)
        _release_signals()
        _forking.is_ours = False
