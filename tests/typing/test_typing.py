"""The typed example runs. `make lint` checks its types, and that its mistakes are detected."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest

USES = Path(__file__).with_name("uses.py")


def test_the_typed_example_runs(capsys: pytest.CaptureFixture[str]) -> None:
    runpy.run_path(str(USES), run_name="__main__")
    assert capsys.readouterr() == ("", "")
