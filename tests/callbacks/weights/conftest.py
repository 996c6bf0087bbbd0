"""The fixtures of tests/parallel that launch multiple ranks."""

from __future__ import annotations

from pathlib import Path
from runpy import run_path

RANKS = run_path(str(Path(__file__).parents[2] / "parallel" / "conftest.py"))
fork_server, launch = RANKS["fork_server"], RANKS["launch"]
