"""The memory benchmark runs and prints its figures. The measured values are not tested: machines differ."""

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
PROMISED = {
    "resident memory grows by": "2 MB",
    "peak of tensors: Runner, quiet / bare": "1.01 x",
    "peak of tensors: Runner, default / bare": "1.01 x",
    "peak of the process: Runner, quiet / bare": "1.01 x",
}


def test_each_measurement_runs_and_has_its_figures(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    import memory

    seen: Any = memory.grown(200, 2)
    assert [iteration for iteration, _, _ in seen] == [100, 200]
    assert all(memory.process_peak(kind, 16) > 0 for kind in memory.KINDS)
    tensors = dict.fromkeys(memory.KINDS, memory.tensor_peak("quiet", 16))
    processes = memory.Group("peaks")
    processes.timings = {kind: memory.Timing([1.0]) for kind in memory.KINDS}
    figures = {figure.name: figure for figure in memory.figures_of(seen, tensors, processes)}
    for name, limit in PROMISED.items():
        assert figures[name].cells()[3] == limit


@pytest.mark.slow
def test_every_limit_is_printed_with_its_verdict_and_nothing_is_written() -> None:
    before = sorted((BENCHMARKS / "results").glob("*"))
    command = [sys.executable, str(BENCHMARKS / "memory.py"), "--quick", "--no-write"]
    said = subprocess.run(command, capture_output=True, text=True, check=True, timeout=250).stdout
    for name, limit in PROMISED.items():
        line = rf"^  {name} +-?\d+\.\d+ (x|MB) +-?\d+\.\d+ to -?\d+\.\d+ +{limit} +(ok|over)$"
        assert re.search(line, said, re.MULTILINE), said
    assert re.search(r"^  400 +\d+\.\d+ +\d+$", said, re.MULTILINE), said
    assert sorted((BENCHMARKS / "results").glob("*")) == before
