"""The typed example runs. That it type-checks, and that its mistakes are seen, is the business of `make lint`."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest

USES = Path(__file__).with_name("uses.py")


def test_the_typed_example_runs(capsys: pytest.CaptureFixture[str]) -> None:
    runpy.run_path(str(USES), run_name="__main__")
    assert capsys.readouterr() == ("", "")
