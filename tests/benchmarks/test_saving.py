from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

BENCHMARK = Path(__file__).parents[2] / "benchmarks" / "saving.py"
NAMES = ("hookpoint, default saver", "hookpoint, async_save=False", "torch.save", "safetensors", "DCP async_save")


@pytest.mark.filterwarnings("ignore:torch.distributed is disabled")
def test_each_way_to_save_has_a_figure(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(BENCHMARK.parent))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("os.sync", lambda: None)
    import saving

    operations = saving.Operations()
    group = saving.measure(1000, 1, operations)
    assert [(figure.name, figure.limit) for figure in saving.figures_of(group)] == [
        (f"{name} / copy", limit) for name, limit in zip(NAMES, (1.2, 12, None, None, None), strict=True)
    ]
    spans = operations.spans()
    assert spans["write"][0] < spans["fsync"][0] < spans["read"][1] < spans["rmdir"][1]
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_a_quick_run_compares_all_ways_to_save_with_a_copy(tmp_path):
    command = [sys.executable, str(BENCHMARK), "--quick", "--no-write"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, check=False)
    assert done.returncode == 0, done.stderr
    for name in NAMES:
        assert f"  {name} / copy" in done.stdout
    assert list(tmp_path.iterdir()) == []
