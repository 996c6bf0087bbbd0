from __future__ import annotations

import os
import sys

import pytest

from hookpoint.callbacks._shared.progress_view import View
from hookpoint.callbacks.progress import _progress_display as progress_display
from hookpoint.callbacks.progress._progress_display import PlainDisplay, choose_display
from hookpoint.core.text import terminal

VIEW = View("train", 5, 10, epoch=1)


def test_a_file_gets_plain_lines():
    assert isinstance(choose_display(0.25, 30), PlainDisplay)


def test_plain_lines_go_to_stderr(capsys):
    PlainDisplay(30).show(VIEW)
    assert capsys.readouterr() == ("", "epoch 1  5/10  (50%)\n")


def test_an_epoch_longer_than_the_interval_gets_a_plain_line():
    assert not PlainDisplay(30).shows_epoch_end(29.9)
    assert PlainDisplay(30).shows_epoch_end(30.1)


PROGRAM = """
import os, sys
from hookpoint.callbacks.progress._progress_display import choose_display
from hookpoint.callbacks._shared.progress_view import View
from hookpoint.core.text import terminal
display = choose_display(0.25, 30)
"""


def test_printed_text_appears_unchanged_above_the_bar(in_terminal):
    shown = in_terminal(
        PROGRAM
        + """
display.show(View("train", 5, 10, epoch=1))
print("a line [bold]as it is[/nothing] :smile:")
print("in", "two", end=" ", flush=False)
print("pieces", file=sys.stdout)
print("to stderr " + 70 * "x", file=sys.stderr)
terminal.say("said")
display.show(View("train", 10, 10, epoch=1))
display.close()
print("after")
"""
    )
    bar = "epoch 1  " + "━" * 40 + "  10/10"
    lines = ["a line [bold]as it is[/nothing] :smile:", "in two pieces", "to stderr " + 70 * "x", "said", bar, "after"]
    assert shown.lines[:-1] == lines
    assert shown.cursor_is_shown


def test_a_pipe_gets_its_lines(in_terminal):
    shown = in_terminal(PROGRAM + 'print("result"); display.show(View("train", 1, 10)); display.close()', pipe_stdout=True)
    assert shown.stdout == "result\n"
    assert "result" not in shown.written


def test_the_cursor_stays_visible_after_sigkill(in_terminal):
    shown = in_terminal(PROGRAM + 'display.show(View("train", 1, 10)); os.kill(os.getpid(), 9)')
    assert shown.returncode == -9
    assert shown.cursor_is_shown


def test_a_value_name_with_wide_characters_does_not_wrap(in_terminal):
    shown = in_terminal(
        PROGRAM + 'display.show(View("train", 1, None, 1, values=(("損" * 39, 0.5),))); print("above"); display.close()'
    )
    assert shown.lines[0] == "above"
    assert sum(2 if character == "損" else 1 for character in shown.lines[1]) <= 79


def test_a_terminal_without_unicode_gets_ascii(in_terminal):
    shown = in_terminal(PROGRAM + 'display.show(View("train", 5, 10, 1)); display.close()', PYTHONIOENCODING="ascii")
    assert shown.lines[0] == "epoch 1  " + "#" * 20 + "." * 20 + "   5/10"


def test_colours_can_be_turned_off(in_terminal):
    shown = in_terminal(PROGRAM + 'display.show(View("train", 5, 10, 1)); display.close()', NO_COLOR="1")
    assert "\x1b[36m" not in shown.written
    assert shown.lines[0] == "epoch 1  " + "━" * 20 + "─" * 20 + "   5/10"


@pytest.mark.parametrize("term", ["dumb", "unknown", ""])
def test_a_terminal_that_cannot_move_its_cursor_gets_plain_lines(in_terminal, term):
    assert in_terminal(PROGRAM + "print(type(display).__name__)", TERM=term).lines[0] == "PlainDisplay"


def test_only_one_bar_at_a_time_is_drawn_on_a_terminal(in_terminal):
    shown = in_terminal(
        PROGRAM
        + """
inner = choose_display(0.25, 30)
inner.show(View("val", 1, 10))
print(type(inner).__name__)
display.close()
print(type(choose_display(0.25, 30)).__name__)
"""
    )
    assert shown.lines[:2] == ["val  1/10  (10%)", "PlainDisplay"]
    assert "TerminalDisplay" in shown.lines


def test_a_forked_process_prints_as_if_there_was_no_bar(in_terminal):
    shown = in_terminal(
        PROGRAM
        + """
display.show(View("train", 5, 10, epoch=1))
with display._console._lock:      # as if a thread was drawing while the process forks
    child = os.fork()
if child == 0:
    print("from the child")
    terminal.say("said by the child")
    print("real streams:", sys.stdout is sys.__stdout__, sys.stderr is sys.__stderr__)
    sys.stdout.flush()
    os._exit(0)
_, status = os.waitpid(child, 0)
display.close()
print("child ended with", status)
"""
    )
    assert "real streams: True True" in shown.written
    assert "said by the child" in shown.written
    assert "child ended with 0" in shown.lines


def test_the_streams_of_the_parent_stay_the_same_after_a_fork():
    progress_display._restore_streams_after_fork()
    before = sys.stdout, sys.stderr
    child = os.fork()
    if child == 0:
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    assert (sys.stdout, sys.stderr) == before
    assert not terminal.is_claimed()
