"""Optional packages: import them on use, and warn once if they are missing."""

from __future__ import annotations

from functools import cache
from importlib import import_module
from typing import Any

from hookpoint.core.logger import logger


def optional(owner: str, package: str, *, extra: str, name: str | None = None) -> Any:
    """Return a package, or None if it is not installed. Warn once which extra provides it; `name` is its name on PyPI."""
    try:
        return import_module(package)
    except ImportError:
        warn_once(f"{owner} does nothing without {name or package}: pip install 'hookpoint[{extra}]'")
        return None


@cache
def warn_once(message: str) -> None:
    """Log a warning once per process."""
    logger.warning("%s", message)
