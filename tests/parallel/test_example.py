"""The example of several processes trains in two of them; tests/examples/test_parallel.py has it by torchrun, and longer."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

pytest.importorskip("sklearn")

EXAMPLE = Path(__file__).parents[2] / "examples" / "parallel.py"
LINE = r"of 360 digits it has never seen, the best of 2 epochs of 2 processes reads (\d+\.\d)% rightly"


@pytest.mark.parametrize("strategy", ["data", "pipeline"])
def test_two_processes_read_digits(launch, tmp_path, strategy):
    said = launch(EXAMPLE, "--epochs", 2, "--strategy", strategy, "--workdir", tmp_path / "run").printed
    (right,) = re.findall(LINE, said)  # the chief alone says it
    assert float(right) > 80
    assert (tmp_path / "run" / "checkpoints" / "best-val-error-top1").exists()
