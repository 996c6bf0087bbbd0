"""Where a progress bar is drawn: a terminal, a notebook, or as plain lines anywhere else."""

from __future__ import annotations

import os
import sys
from typing import Any, Protocol

from hookpoint.callbacks._shared.progress_view import View, as_html, as_line, as_text
from hookpoint.core.text import terminal


class Display(Protocol):
    """Show views, from any thread. `seconds` is the time between two of them; the first may have to be shown at once."""

    seconds: float
    shows_at_once: bool

    def show(self, view: View) -> None: ...

    def shows_epoch_end(self, seconds: float) -> bool:
        """Say whether the end of an epoch that took so long is to be shown, however soon it is after the last view."""

    def close(self) -> None: ...


def choose_display(refresh_seconds: float, plain_every_seconds: float) -> Display:
    """Return the display for where this process runs. Only one at a time draws on a terminal."""
    if _is_notebook():
        return NotebookDisplay(refresh_seconds)
    if _is_terminal(sys.stderr) and not terminal.is_claimed():
        return TerminalDisplay(refresh_seconds)
    return PlainDisplay(plain_every_seconds)


class TerminalDisplay:
    """One line at the bottom of the terminal, through rich. What is printed meanwhile appears above it."""

    shows_at_once = True

    def __init__(self, seconds: float) -> None:
        from rich.console import Console
        from rich.live import Live
        from rich.text import Text

        _restore_streams_after_fork()
        self.seconds = seconds
        self._text = Text
        self._console = Console(
            stderr=True, force_jupyter=False, markup=False, emoji=False, highlight=False, soft_wrap=True
        )  # takes whatever is printed as it is
        to_terminal = _is_terminal(sys.stdout)  # a pipe's lines stay in the pipe
        self._live = Live(console=self._console, auto_refresh=False, redirect_stdout=to_terminal)
        self._live.start()
        self._console.show_cursor(True)  # rich hides it; a killed process could not bring it back
        terminal.claim(self._say)

    def show(self, view: View) -> None:
        width = self._console.width - 1  # a full line wraps on some terminals
        line = self._text.assemble(*as_line(view, width, ascii_only=self._console.options.ascii_only))
        line.truncate(width)  # names may have characters that are two columns wide
        self._live.update(line, refresh=True)

    def shows_epoch_end(self, seconds: float) -> bool:
        return False

    def close(self) -> None:
        terminal.release(self._say)
        self._live.stop()

    def _say(self, line: str) -> None:
        self._console.print(self._text(line))


class NotebookDisplay:
    """One piece of a cell's output that is replaced; needs no widgets."""

    shows_at_once = True

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self._handle: Any = None
        terminal.claim(self._say)

    def show(self, view: View) -> None:
        from IPython.display import display

        output = {"text/html": as_html(view), "text/plain": as_text(view)}
        if self._handle is None:
            self._handle = display(output, raw=True, display_id=True)
        else:
            self._handle.update(output, raw=True)

    def shows_epoch_end(self, seconds: float) -> bool:
        return False

    def close(self) -> None:
        terminal.release(self._say)

    def _say(self, line: str) -> None:
        print(line, flush=True)  # notebooks show stderr as if it were an error


class PlainDisplay:
    """A line now and then, for files and pipes: nothing for what is over before the first is due."""

    shows_at_once = False

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds

    def show(self, view: View) -> None:
        terminal.say(as_text(view))

    def shows_epoch_end(self, seconds: float) -> bool:
        return seconds > self.seconds

    def close(self) -> None:
        pass


def _is_terminal(stream: Any) -> bool:
    is_open = stream is not None and not getattr(stream, "closed", False)
    return is_open and stream.isatty() and os.environ.get("TERM", "") not in ("", "dumb", "unknown")


def _is_notebook() -> bool:
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython is not None and hasattr(ipython, "get_ipython") else None
    return hasattr(shell, "kernel")


_fork_is_watched = False


def _restore_streams_after_fork() -> None:
    """Give forked processes, such as a data loader's, the streams as they were.

    A thread may draw while the process forks: the lock it holds would never be released in the child, and a worker that
    prints would hang.
    """
    global _fork_is_watched
    if not _fork_is_watched and hasattr(os, "register_at_fork"):
        _fork_is_watched = True
        os.register_at_fork(after_in_child=_restore_streams)


def _restore_streams() -> None:
    terminal.forget_claims()
    sys.stdout = getattr(sys.stdout, "rich_proxied_file", sys.stdout)
    sys.stderr = getattr(sys.stderr, "rich_proxied_file", sys.stderr)
