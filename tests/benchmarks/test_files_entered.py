"""A training step enters few files."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest


@pytest.fixture
def files_entered(monkeypatch):
    monkeypatch.syspath_prepend(Path(__file__).parents[2] / "benchmarks")
    import files_entered

    yield files_entered
    sys.modules.pop("files_entered", None)


def test_a_quiet_step_enters_at_most_ten_files(files_entered):
    entered = files_entered.measured()
    quiet, saving = entered[files_entered.QUIET], entered[files_entered.SAVING]
    assert len(quiet) <= 10
    assert "core/loop/machine.py" in quiet
    assert "core/loop/_saving.py" in saving
    assert "core/loop/_saving.py" not in quiet
