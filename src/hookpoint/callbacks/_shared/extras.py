"""Optional packages: import them on use, and warn once if they are missing."""

from __future__ import annotations

import logging
from importlib import import_module
from typing import Any

logger = logging.getLogger("hookpoint")

_said: set[str] = set()


def optional(owner: str, package: str, *, extra: str, name: str | None = None) -> Any:
    """Return a package, or None if it is not installed. Warn once which extra provides it; `name` is its usual name."""
    try:
        return import_module(package)
    except ImportError:
        say_once(f"{owner} does nothing without {name or package}: pip install 'hookpoint[{extra}]'")
        return None


def say_once(line: str) -> None:
    """Log a warning once per process."""
    if line not in _said:
        _said.add(line)
        logger.warning("%s", line)
