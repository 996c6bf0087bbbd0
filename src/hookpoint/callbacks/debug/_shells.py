"""Shells: interactive prompts inside a run."""

from __future__ import annotations

import code
import os
import pdb
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

from hookpoint.core.run.run import Run

HOW_TO_LEAVE = "The variable `run` contains the current run. exit() or Ctrl-D resumes training."


def is_at_terminal() -> bool:
    """Return whether stdin and stdout are a terminal that this process may read from."""
    try:
        if not all(stream is not None and stream.isatty() for stream in (sys.stdin, sys.stdout)):
            return False
    except ValueError:  # stdin or stdout is closed
        return False
    try:
        return os.tcgetpgrp(sys.stdin.fileno()) == os.getpgrp()
    except OSError:  # stdin is not the controlling terminal, so reading from it does not suspend the process
        return True


@contextmanager
def interruptible() -> Iterator[None]:
    """Make Ctrl-C interrupt the typed command, not the run."""
    if threading.current_thread() is not threading.main_thread() or signal.getsignal(signal.SIGINT) is None:
        yield
        return
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def python(run: Run) -> None:
    """Open Python's prompt."""
    with suppress(ImportError):
        import readline  # noqa: F401 - makes arrow keys work
    leave = Leave()
    with suppress(SystemExit):
        code.interact(HOW_TO_LEAVE, local={"run": run, "trainer": run, "exit": leave, "quit": leave}, exitmsg="")


def ipython(run: Run) -> None:
    """Open IPython's prompt. The prompt's variables are this function's locals."""
    from IPython import embed

    trainer = run  # noqa: F841 - tensorpack's name
    embed(header=HOW_TO_LEAVE, colors="neutral")


def debugger(run: Run) -> None:
    """Open the debugger in this function."""
    trainer = run  # noqa: F841 - tensorpack's name
    print("The variable `run` contains the current run. Type `up` to reach your code. `c`, `q` or Ctrl-D resumes training.")
    Debugger(nosigint=True).set_trace()
    return  # the debugger stops on this line


SHELLS: dict[str, Callable[[Run], None]] = {"ipython": ipython, "pdb": debugger, "python": python}


class Leave:
    """Replace `exit` and `quit`, because the versions from the site module close stdin."""

    def __call__(self, code: object = None) -> None:
        raise SystemExit(code)

    def __repr__(self) -> str:
        return "exit() or Ctrl-D resumes the run"


class Debugger(pdb.Pdb):
    """A debugger that continues the program on quit."""

    def do_quit(self, arg: str) -> bool | None:
        self.clear_all_breaks()
        self.set_continue()
        return True

    do_q = do_exit = do_quit

    def do_EOF(self, arg: str) -> bool | None:  # noqa: N802 - pdb's name
        self.message("")
        return self.do_quit(arg)
