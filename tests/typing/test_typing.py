"""The typed example runs. That it type-checks, and that its mistakes are seen, is the business of `make lint`."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

USES = Path(__file__).with_name("uses.py")


def test_the_typed_example_runs() -> None:
    done = subprocess.run([sys.executable, "-W", "error", str(USES)], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
