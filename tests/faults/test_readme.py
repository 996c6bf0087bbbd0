"""The table of faults is complete, and the tests that it names exist."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
ROWS = [line for line in Path(__file__).with_name("README.md").read_text().splitlines() if re.match(r"\| \d+ \|", line)]
STATES = ("holds", "partial", "not testable here", "not implemented")
CITED = sorted({cited for row in ROWS for cited in re.findall(r"`(tests/[^`]*)`", row)})


def test_the_rows_are_numbered_and_have_a_state():
    assert [int(row.split("|")[1]) for row in ROWS] == list(range(1, 39))
    for row in ROWS:
        state = row.split("|")[4].strip()
        assert re.match(rf"({'|'.join(STATES)})(:|<|$)", state), row
        assert ("`tests/" in row) == state.startswith(("holds", "partial")), row


@pytest.mark.parametrize("cited", CITED)
def test_every_cited_test_exists(cited):
    path, _, name = cited.partition("::")
    assert re.search(rf"^def {re.escape(name)}\(", (ROOT / path).read_text(), re.MULTILINE)
