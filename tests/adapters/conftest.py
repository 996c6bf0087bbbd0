"""Ignore warnings of other trainers; warnings from hookpoint stay errors."""

from __future__ import annotations

from pathlib import Path

import pytest


def pytest_collection_modifyitems(items):
    for item in items:
        if item.path.is_relative_to(Path(__file__).parent):
            item.add_marker(pytest.mark.filterwarnings("error:::hookpoint.*"), append=False)
            item.add_marker(pytest.mark.filterwarnings("ignore"), append=False)
