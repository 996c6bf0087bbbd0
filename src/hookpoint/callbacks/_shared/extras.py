"""Packages that come with our extras: imported where they are used, and missed with one line."""

from __future__ import annotations

import logging
from importlib import import_module
from typing import Any

logger = logging.getLogger("hookpoint")

_said: set[str] = set()


def optional(owner: str, package: str, *, extra: str, name: str | None = None) -> Any:
    """Return a package, or None where it is not installed; say once what to install. `name` is what it is known by."""
    try:
        return import_module(package)
    except ImportError:
        say_once(f"{owner} does nothing without {name or package}: pip install 'hookpoint[{extra}]'")
        return None


def say_once(line: str) -> None:
    """Log a line, unless this process has said it before."""
    if line not in _said:
        _said.add(line)
        logger.warning("%s", line)
