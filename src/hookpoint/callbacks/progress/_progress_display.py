"""Displays for a progress bar: a terminal, a notebook, or plain lines."""

from __future__ import annotations

import os
import sys
from functools import cache
from typing import Any

from hookpoint.callbacks._shared.progress_view import View, as_html, as_line, as_text
from hookpoint.core.text import terminal


class Display:
    """Show the progress every `seconds` seconds. Any thread may call the methods.

    If `shows_at_once` is True, the progress is also shown when the first pass begins and when the run ends.
    """

    shows_at_once = True

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds

    def show(self, view: View) -> None:
        raise NotImplementedError

    def shows_epoch_end(self, seconds: float) -> bool:
        """Return whether to show the progress at the end of an epoch that took `seconds` seconds.

        If so, the progress is shown even if the last regular update was a moment ago.
        """
        return False

    def close(self) -> None:
        """Release the terminal."""


def choose_display(refresh_seconds: float, plain_every_seconds: float) -> Display:
    """Return a display that suits this process's environment. Only one display at a time draws on a terminal."""
    if _is_notebook():
        return NotebookDisplay(refresh_seconds)
    if _is_terminal(sys.stderr) and not terminal.is_claimed():
        return TerminalDisplay(refresh_seconds)
    return PlainDisplay(plain_every_seconds)


class TerminalDisplay(Display):
    """Draw one line at the bottom of the terminal, with rich. Other output appears above it."""

    def __init__(self, seconds: float) -> None:
        from rich.console import Console
        from rich.live import Live
        from rich.text import Text

        super().__init__(seconds)
        _restore_streams_after_fork()
        self._text = Text
        self._console = Console(  # other output is printed unchanged
            stderr=True, force_jupyter=False, markup=False, emoji=False, highlight=False, soft_wrap=True
        )
        to_terminal = _is_terminal(sys.stdout)  # redirected output stays redirected
        self._live = Live(console=self._console, auto_refresh=False, redirect_stdout=to_terminal)
        self._live.start()
        self._console.show_cursor(True)  # rich would hide the cursor, and a killed process could not show it again
        terminal.claim(self._say)

    def show(self, view: View) -> None:
        width = self._console.width - 1  # a line of full width wraps on some terminals
        line = self._text.assemble(*as_line(view, width, ascii_only=self._console.options.ascii_only))
        line.truncate(width)  # names may contain characters that are two columns wide
        self._live.update(line, refresh=True)

    def close(self) -> None:
        terminal.release(self._say)
        self._live.stop()

    def _say(self, line: str) -> None:
        self._console.print(self._text(line))


class NotebookDisplay(Display):
    """Update one output of a notebook cell in place. Needs no widgets."""

    def __init__(self, seconds: float) -> None:
        super().__init__(seconds)
        self._handle: Any = None
        terminal.claim(self._say)

    def show(self, view: View) -> None:
        from IPython.display import display

        output = {"text/html": as_html(view), "text/plain": as_text(view)}
        if self._handle is None:
            self._handle = display(output, raw=True, display_id=True)
        else:
            self._handle.update(output, raw=True)

    def close(self) -> None:
        terminal.release(self._say)

    def _say(self, line: str) -> None:
        print(line, flush=True)  # notebooks show stderr like an error


class PlainDisplay(Display):
    """Print a line at regular intervals, for output to a file or pipe. A short run prints nothing."""

    shows_at_once = False

    def show(self, view: View) -> None:
        terminal.say(as_text(view))

    def shows_epoch_end(self, seconds: float) -> bool:
        return seconds > self.seconds


def _is_terminal(stream: Any) -> bool:
    is_open = stream is not None and not getattr(stream, "closed", False)
    return is_open and stream.isatty() and os.environ.get("TERM", "") not in ("", "dumb", "unknown")


def _is_notebook() -> bool:
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython is not None and hasattr(ipython, "get_ipython") else None
    return hasattr(shell, "kernel")


@cache
def _restore_streams_after_fork() -> None:
    """Restore the original streams in forked processes, such as data loader workers.

    A process may fork while a thread draws. The child could then never acquire the lock that the thread holds, and a worker
    that prints would hang.
    """
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=_restore_streams)


def _restore_streams() -> None:
    terminal.forget_claims()
    sys.stdout = getattr(sys.stdout, "rich_proxied_file", sys.stdout)
    sys.stderr = getattr(sys.stderr, "rich_proxied_file", sys.stderr)
