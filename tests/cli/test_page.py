"""Console blocks in the docs show what the commands print."""

from __future__ import annotations

import contextlib
import doctest
import io
import re
import shlex
import sys
from pathlib import Path

import pytest

from hookpoint.cli.main import COMMANDS

PAGE = Path(__file__).parents[2] / "docs" / "command-line.md"
SHOWN = {
    "command-line.md": {"runs", "show", "tail", "export", "verify", "clean", "explain", "points"},
    "index.md": {"runs", "tail"},
}
FENCE = re.compile(r"^```(python|console)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize("page", SHOWN)
def test_every_console_block_matches_the_output(page, command, monkeypatch):
    monkeypatch.setattr(sys, "path", list(sys.path))
    namespace: dict[str, object] = {}
    seen = set()
    for kind, text in FENCE.findall(PAGE.with_name(page).read_text()):
        if kind == "python":
            with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
                exec(text, namespace)
            continue
        line, _, shown = text.partition("\n")
        if not line.startswith("$ hookpoint "):  # stderr of a Python block
            continue
        arguments = shlex.split(line.removeprefix("$ hookpoint "))
        printed = command(*arguments).output
        assert doctest.OutputChecker().check_output(shown, printed, doctest.ELLIPSIS), f"{line}\n{printed}"
        seen.add(arguments[0])
    assert seen >= SHOWN[page]
    sys.modules.pop("my_training", None)


def test_every_command_is_on_the_page():
    headings = re.findall(r"^## (\w+)$", PAGE.read_text(), re.MULTILINE)
    assert set(COMMANDS) <= set(headings)


def test_every_exit_code_is_on_the_page(command):
    codes = re.findall(r"^ +(\d+) ", command("--help").stdout.split("Exit codes:")[1], re.MULTILINE)
    assert codes
    assert all(f"\n| {code} | " in PAGE.read_text() for code in codes)
