"""read_scalars returns the rows of a file that JSONWriter wrote."""

from __future__ import annotations

import math

import pytest

from hookpoint.monitors import JSONWriter
from hookpoint.storage.json_rows import read_scalars


@pytest.fixture
def path(train, tmp_path):
    """Write a file with three rows; return its path."""
    train([JSONWriter()], batches=4, step=lambda run, batch: run.log(loss=batch), workdir=tmp_path, log_every=2)
    return tmp_path / "scalars.jsonl"


def test_rows_are_in_order(path):
    assert [(row["step"], row["at"], row["loss"]) for row in read_scalars(path)] == [
        (2, "step", 0.5),
        (4, "step", 2.5),
        (4, "epoch", 1.5),
    ]


def test_a_torn_last_line_is_ignored(path):
    whole = read_scalars(path)
    path.write_bytes(path.read_bytes() + b'{"step": 9, "epo')
    assert read_scalars(path) == whole


def test_an_invalid_line_in_the_middle_raises_with_its_number(tmp_path):
    path = tmp_path / "scalars.jsonl"
    path.write_text('{"step": 1}\nhello\n{"step": 2}\n')
    with pytest.raises(ValueError, match=r"scalars.jsonl, line 2 is not valid JSON"):
        read_scalars(path)


def test_strings_become_numbers_only_in_metrics(tmp_path):
    path = tmp_path / "scalars.jsonl"
    path.write_text('{"step": 1, "at": "inf", "loss": "-inf", "note": "hello", "val": "nan"}\n')
    (row,) = read_scalars(path)
    assert math.isnan(row.pop("val"))
    assert row == {"step": 1, "at": "inf", "loss": -math.inf, "note": "hello"}
