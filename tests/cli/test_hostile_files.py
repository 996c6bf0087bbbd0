"""Files may contain anything; no control sequence reaches the terminal."""

from __future__ import annotations

import csv
import io
import json
import os
import pty
import subprocess
import sys

import pytest

EVIL = "\x1b[2J\x07\x9b31m\u202e\r\x00\x7f=cmd|' /C calc'!A0"
COMMANDS = [
    ["export", "evil", "-o", "-"],
    ["export", "evil", "-o", "-", "--format", "json"],
    ["export", "evil", "-o", "-", "--format", "jsonl"],
    ["show", "evil"],
    ["show", "evil", "--json"],
    ["tail", "evil", "--no-follow"],
    ["tail", "evil", "--no-follow", "--json"],
    ["runs"],
    ["runs", "--json"],
    ["plot", "evil", "--terminal"],
    ["verify", "evil"],
    ["clean", "evil", "--dry-run", "--logs"],
]


def replaced(given):
    """Return a JSON value with every string and key replaced by a hostile one."""
    if isinstance(given, dict):
        return {name: replaced(value) for name, value in given.items()} | {EVIL: EVIL}
    if isinstance(given, list):
        return [*map(replaced, given), EVIL]
    return EVIL if isinstance(given, str) else given


@pytest.fixture
def hostile_run(train_run):
    folder = train_run("evil", epochs=1)
    facts = json.loads((folder / "run.json").read_text())
    kept = {name: facts[name] for name in ("format", "status", "started") if name in facts}
    (folder / "run.json").write_text(json.dumps({**replaced(facts), "inexact": [EVIL], "resumed": [EVIL], **kept}))
    clocks = {"step": 1, "epoch": 1, "time": 1.7e9}
    with open(folder / "scalars.jsonl", "a") as file:
        file.write(
            json.dumps({**clocks, "iteration": EVIL, "at": EVIL, EVIL: 1.0, "=1+1": 2.0, "@x": 3.0, "+x": 1, "-x": 1}) + "\n"
        )
    with open(folder / "events.jsonl", "a") as file:
        file.write(json.dumps({**clocks, "event": EVIL, EVIL: EVIL}) + "\n")
        file.write(json.dumps({**clocks, "event": "exception", "type": EVIL, "text": EVIL}) + "\n")
    return folder


@pytest.mark.parametrize("arguments", COMMANDS, ids=" ".join)
def test_no_control_character_is_printed(command, hostile_run, arguments):
    from click.testing import CliRunner

    from hookpoint.cli.main import main

    result = CliRunner().invoke(main, arguments)
    assert result.exit_code in (0, 1, 65), result.output
    printed = result.stdout + result.stderr
    assert printed
    assert {character for character in printed if not character.isprintable()} <= {"\n"}


def test_no_escape_sequence_reaches_a_real_terminal(hostile_run, tmp_path):
    outer, inner = pty.openpty()
    done = subprocess.Popen(
        [sys.executable, "-m", "hookpoint", "export", "evil", "-o", "-"], cwd=tmp_path, stdout=inner, stderr=inner
    )
    os.close(inner)
    printed = b""
    try:
        while piece := os.read(outer, 65_536):
            printed += piece
    except OSError:  # the other end is closed
        pass
    os.close(outer)
    assert done.wait() == 0
    assert b"loss" in printed
    assert b"\x1b" not in printed
    assert b"\\x1b[2J" in printed


def test_no_cell_of_a_csv_is_a_formula(command, hostile_run, tmp_path):
    command("export", "evil", "-o", "out.csv")
    with open(tmp_path / "out.csv", newline="") as file:
        head, *rows = csv.reader(file)
    texts = [*head, *(row[head.index(name)] for row in rows for name in ("at", "iteration"))]
    assert [text for text in texts if text.startswith(("=", "+", "-", "@", "\t", "\r"))] == []
    assert {"'=1+1", "'@x", "'+x", "'-x", "loss"} <= set(head)
    (read,) = [row for row in csv.DictReader(io.StringIO((tmp_path / "out.csv").read_text())) if row["'=1+1"]]
    assert read["'=1+1"] == "2.0"
