"""Shells: what a person types into while a run waits."""

from __future__ import annotations

import code
import os
import pdb
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hookpoint.core.run.run import Run

HOW_TO_LEAVE = "`run` is the run. exit() or Ctrl-D goes on with it."


def is_at_terminal() -> bool:
    """Say whether someone can type: input and output are a terminal, and this process may read from it."""
    if not all(_is_terminal(stream) for stream in (sys.stdin, sys.stdout)):
        return False
    try:
        return os.tcgetpgrp(sys.stdin.fileno()) == os.getpgrp()
    except OSError:  # a terminal that is not the one of this session: nobody would be halted for reading from it
        return True


@contextmanager
def interruptible() -> Iterator[None]:
    """Let Ctrl-C interrupt what was typed, and not the run."""
    if threading.current_thread() is not threading.main_thread() or signal.getsignal(signal.SIGINT) is None:
        yield
        return
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def python(run: Run) -> None:
    """Open Python's own prompt."""
    try:
        import readline  # noqa: F401 - arrow keys work once it is loaded
    except ImportError:
        pass
    leave = Leave()
    try:
        code.interact(HOW_TO_LEAVE, local={"run": run, "trainer": run, "exit": leave, "quit": leave}, exitmsg="")
    except SystemExit:
        pass


def ipython(run: Run) -> None:
    """Open IPython's prompt; its names are those of this function."""
    from IPython import embed

    trainer = run  # noqa: F841 - tensorpack's name
    embed(header=HOW_TO_LEAVE, colors="neutral")


def debugger(run: Run) -> None:
    """Open the debugger in this function."""
    trainer = run  # noqa: F841 - tensorpack's name
    print("`run` is the run, `up` leads to your code. `c`, `q` or Ctrl-D goes on with the run.")
    Debugger(nosigint=True).set_trace()
    return  # where the debugger stops


SHELLS: dict[str, Callable[[Run], None]] = {"ipython": ipython, "pdb": debugger, "python": python}


def is_installed(shell: str) -> bool:
    return shell != "ipython" or find_spec("IPython") is not None


class Leave:
    """What `exit` and `quit` are here: those of the site module would close the input for good."""

    def __call__(self, code: object = None) -> None:
        raise SystemExit(code)

    def __repr__(self) -> str:
        return "exit() or Ctrl-D goes on with the run"


class Debugger(pdb.Pdb):
    """The debugger, which goes on with the program when it is left."""

    def do_quit(self, arg: str) -> bool | None:
        self.clear_all_breaks()
        self.set_continue()
        return True

    do_q = do_exit = do_quit

    def do_EOF(self, arg: str) -> bool | None:  # noqa: N802 - pdb's name
        self.message("")
        return self.do_quit(arg)


def _is_terminal(stream: Any) -> bool:
    try:
        return stream is not None and bool(stream.isatty())
    except ValueError:  # it was closed
        return False
