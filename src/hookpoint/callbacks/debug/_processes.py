"""Start, watch and stop processes, threads and commands."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import cache
from time import monotonic
from typing import Any

from hookpoint.core.logger import logger

# The Loop installs handlers for these signals. A forked process would inherit the handlers.
LOOP_SIGNALS = ("SIGTERM", "SIGHUP", "SIGUSR1")

_forking = threading.local()


class Command:
    """A program with its arguments, started without a shell and without input. It can be started more than once."""

    def __init__(self, arguments: Sequence[str]) -> None:
        self.name = arguments[0]
        self._arguments = list(arguments)
        self._process: Any = None

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_process": None}

    def start(self) -> None:
        self._process = subprocess.Popen(self._arguments, stdin=subprocess.DEVNULL)

    def is_alive(self) -> bool:
        return self._process is not None and self._process.poll() is None

    @property
    def exitcode(self) -> Any:
        return None if self._process is None else self._process.poll()

    def terminate(self) -> None:
        self._process.terminate()

    def kill(self) -> None:
        self._process.kill()

    def join(self, timeout: float | None = None) -> None:
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(timeout)


def described(worker: Any) -> str:
    """Return the type and name of a process, thread or command."""
    name = getattr(worker, "name", None)
    return f"{type(worker).__name__} {name}" if isinstance(name, str) else type(worker).__name__


def was_started(worker: Any) -> bool:
    """Return whether a process or thread was already started. Neither can be started twice."""
    # Imported here, because this import registers the main module under a second name, __mp_main__.
    from multiprocessing.process import BaseProcess

    return isinstance(worker, threading.Thread | BaseProcess) and worker.ident is not None


def start(worker: Any) -> None:
    """Start a worker. It ignores Ctrl-C and ends on SIGTERM."""
    with _own_signals():
        worker.start()


def has_died(worker: Any) -> bool:
    """Return whether a process has ended with an exit code other than 0."""
    return not _is_alive(worker) and getattr(worker, "exitcode", None) not in (None, 0)


def stop(worker: Any, seconds: float) -> bool:
    """Ask a worker to end, wait at most `seconds`, then kill it if possible. Return whether it has ended."""
    ask: Callable[[], object] | None = getattr(worker, "stop", None) or getattr(worker, "terminate", None)
    if ask is not None and _is_alive(worker) is not False:
        ask()
    _join(worker, seconds if ask is not None else min(seconds, 0.1))
    if _is_alive(worker) and hasattr(worker, "kill"):
        logger.warning("%s did not end within %g s and was killed", described(worker), seconds)
        worker.kill()
        _join(worker, seconds)
    return not _is_alive(worker)


def _is_alive(worker: Any) -> bool | None:
    """Return whether a worker is running, or None if that is unknown."""
    ask = getattr(worker, "is_alive", None)
    return bool(ask()) if callable(ask) else None


def _join(worker: Any, seconds: float) -> None:
    join = getattr(worker, "join", None)
    if callable(join) and worker is not threading.current_thread():
        deadline = monotonic() + seconds
        try:
            join(timeout=seconds)
        except TypeError:  # this join takes no timeout, so it runs in a thread that can be abandoned
            waiter = threading.Thread(target=join, daemon=True)
            waiter.start()
            waiter.join(max(0.0, deadline - monotonic()))


@contextmanager
def _own_signals() -> Iterator[None]:
    """Block and ignore SIGINT in processes that start inside a `with` statement.

    This process receives a SIGINT only after the `with` statement. multiprocessing unblocks SIGINT on its first spawn, so
    blocking alone is not enough.
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


@cache
def _reset_signals_after_fork() -> None:
    """Make forked processes reset the signal handlers that they inherit. Only the first call has an effect."""
    os.register_at_fork(before=_hold_signals, after_in_parent=_release_signals, after_in_child=_reset_signals)


def _hold_signals() -> None:
    """Block signals until the new process has reset its handlers. Without this, a signal could be lost."""
    if getattr(_forking, "is_ours", False):
        _forking.mask = signal.pthread_sigmask(signal.SIG_BLOCK, [getattr(signal, name) for name in LOOP_SIGNALS])


def _release_signals() -> None:
    if getattr(_forking, "is_ours", False):
        signal.pthread_sigmask(signal.SIG_SETMASK, _forking.mask)


def _reset_signals() -> None:
    if getattr(_forking, "is_ours", False):
        for name in LOOP_SIGNALS:
            if callable(signal.getsignal(getattr(signal, name))):
                signal.signal(getattr(signal, name), signal.SIG_DFL)
        _release_signals()
        _forking.is_ours = False
