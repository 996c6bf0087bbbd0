"""The benchmark of long files runs and prints its figures. The measured values are not tested: machines differ."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
PROMISED = {
    "show: CPU time": "1 s",
    "runs: CPU time": "1 s",
    "plot: peak memory": "100 MB",
    "plot --terminal: peak memory": "100 MB",
    "resume with a torn line: peak memory": "100 MB",
}


def test_each_measurement_runs_and_has_its_figures(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    import long_files

    monkeypatch.setattr(long_files, "COMMANDS", {"show": long_files.COMMANDS["show"]})
    found = long_files.measure(tmp_path, 10)
    assert list(found) == ["show", long_files.RESUME]
    assert len((tmp_path / "runs" / "mine" / "scalars.jsonl").read_text().splitlines()) == 10 + 2
    figures = {figure.name: figure for figure in long_files.figures_of(dict.fromkeys(long_files.LIMITS, found["show"]))}
    for name, limit in PROMISED.items():
        assert figures[name].cells()[3] == limit


@pytest.mark.slow
def test_every_limit_is_printed_with_its_verdict_and_nothing_is_written() -> None:
    before = sorted((BENCHMARKS / "results").glob("*"))
    command = [sys.executable, str(BENCHMARKS / "long_files.py"), "--quick", "--no-write"]
    said = subprocess.run(command, capture_output=True, text=True, check=True, timeout=250).stdout
    for name, limit in PROMISED.items():
        assert re.search(rf"^  {name} +\d+\.\d+ (s|MB) +\d+\.\d+ to \d+\.\d+ +{limit} +(ok|over)$", said, re.MULTILINE), said
    assert sorted((BENCHMARKS / "results").glob("*")) == before
