"""Optional packages: import a package when it is needed, and warn once if it is missing."""

from __future__ import annotations

from functools import cache
from importlib import import_module
from typing import Any

from hookpoint.core.logger import logger


def optional(owner: str, package: str, *, extra: str, name: str | None = None) -> Any:
    """Import and return a package. If it is missing, return None and warn once, naming the extra that provides it.

    `name` is the package's name on PyPI.
    """
    try:
        return import_module(package)
    except ImportError:
        warn_once(f"{owner} does nothing without {name or package}: pip install 'hookpoint[{extra}]'")
        return None


@cache
def warn_once(message: str) -> None:
    """Log a warning once per process."""
    logger.warning("%s", message)
