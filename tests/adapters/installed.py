"""The installed trainers, each with a module in hosts/."""

from __future__ import annotations

import importlib
from importlib.util import find_spec
from pathlib import Path

import pytest

NAMES = [path.stem for path in sorted(Path(__file__).with_name("hosts").glob("*.py"))]


def installed_hosts() -> dict[str, object]:
    """Return the modules of the trainers that are installed; skip the calling module if there is none."""
    modules = {name: importlib.import_module(f"tests.adapters.hosts.{name}") for name in NAMES}
    found = {name: module for name, module in modules.items() if find_spec(module.PACKAGE) is not None}
    if not found:
        pytest.skip("no other trainer is installed: make test-adapters", allow_module_level=True)
    return found
