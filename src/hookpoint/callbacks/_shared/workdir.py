"""Callbacks that write files to the workdir."""

from __future__ import annotations

from hookpoint.core.errors import BadLoop
from hookpoint.core.run.run import Run


def require_workdir(owner: str, run: Run) -> None:
    """Raise unless the run has a workdir."""
    if run.workdir is None:
        raise BadLoop(f"{owner} needs a workdir.", give='workdir="runs/name"')


def rank_suffix(run: Run) -> str:
    """Return "-rank1" and so on, which distinguishes the files of the ranks; empty for rank 0."""
    return f"-rank{run.rank}" if run.rank else ""
