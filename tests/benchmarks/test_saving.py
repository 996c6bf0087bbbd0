from __future__ import annotations

import subprocess
import sys
from pathlib import Path

BENCHMARK = Path(__file__).parents[2] / "benchmarks" / "saving.py"


def test_a_quick_run_compares_all_ways_with_a_copy(tmp_path):
    command = [sys.executable, str(BENCHMARK), "--quick", "--no-write"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, check=False)
    assert done.returncode == 0, done.stderr
    for name in ("hookpoint, in the background", "hookpoint, at once", "torch.save", "safetensors", "DCP async_save"):
        assert f"  {name} / copy" in done.stdout
    assert list(tmp_path.iterdir()) == []
