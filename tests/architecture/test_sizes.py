"""A file that is too long to be read in one go has two subjects."""

from __future__ import annotations

from pathlib import Path

import hookpoint

MOST_LINES = 400


def test_no_source_file_is_too_long():
    lengths = {path.name: len(path.read_text().splitlines()) for path in Path(hookpoint.__file__).parent.rglob("*.py")}
    assert len(lengths) > 30
    assert {name: length for name, length in lengths.items() if length > MOST_LINES} == {}
