"""Fixtures that run the command, in this process or in a new one."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
from click.testing import CliRunner

from hookpoint.cli.main import main


@pytest.fixture
def command(tmp_path, monkeypatch):
    """Run the command in an empty folder, in this process."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("NO_COLOR", raising=False)

    def run(*arguments, code=0, input=None):
        result = CliRunner().invoke(main, [str(one) for one in arguments], input=input)
        assert result.exception is None or isinstance(result.exception, SystemExit), result.exc_info
        assert result.exit_code == code, (result.exit_code, result.stdout, result.stderr)
        return result

    return run


@pytest.fixture
def process(tmp_path):
    """Run the command in a new process and return the completed process."""

    def run(*arguments, cwd=tmp_path, environment=None, **options):
        done = subprocess.run(
            [sys.executable, "-W", "error", "-m", "hookpoint", *map(str, arguments)],
            cwd=cwd,
            env={**os.environ, **(environment or {})},
            capture_output=True,
            timeout=250,
            check=False,
            **options,
        )
        return done

    return run
