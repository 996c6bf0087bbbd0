"""Run control: send a command from the page to a running training, and return its answer."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

LIVE = os.path.join(".control", "live.json")


def has_control(path: Path) -> bool:
    """Return whether a run can be controlled, as far as its files tell."""
    return os.path.exists(path / LIVE)


def control_of(path: Path) -> dict[str, Any] | None:
    """Return what can be changed in a running training, or None if nothing can."""
    return None


def send(path: Path, do: str, args: Mapping[str, Any], expect: Mapping[str, Any] | None) -> dict[str, Any]:
    """Send a command, and return its answer: at least a status, and a reason unless it was applied."""
    return {"status": "refused", "reason": "nobody is training in this folder, or its control is off"}
