"""read_series reads the series in scalars.jsonl, whatever the file contains."""

from __future__ import annotations

import math
import os
from array import array

import pytest

from hookpoint import Loop
from hookpoint import callbacks as cb
from hookpoint.monitors import read_scalars
from hookpoint.run_folder._scalars_file import BadLines, read_series


def write(path, *lines, end="\n"):
    path.write_text("\n".join(lines) + end)
    return path


def line(step, text="", epoch=1, at="step"):
    return f'{{"step": {step}, "epoch": {epoch}, "time": {step}.5, "at": "{at}"{", " if text else ""}{text}}}'


def test_the_series_of_a_run_are_read(train_run):
    path = train_run(epochs=2) / "scalars.jsonl"
    found = read_series(path)
    assert list(found) == [("loss", "step"), ("loss", "epoch"), ("val_loss", "epoch")]
    series = found["val_loss", "epoch"]
    assert (series.name, series.at) == ("val_loss", "epoch")
    assert (series.steps, series.epochs, series.values) == (array("q", [4, 8]), array("q", [1, 2]), array("d", [3.0, 1.5]))
    rows = [row for row in read_scalars(path) if "val_loss" in row]
    assert series.times.tolist() == [row["time"] for row in rows]


def test_only_the_given_names_are_read(train_run):
    assert list(read_series(train_run() / "scalars.jsonl", names=["val_loss"])) == [("val_loss", "epoch")]


def test_non_finite_values_survive_the_round_trip(tmp_path):
    with Loop([cb.JSONWriter()], workdir=tmp_path, extra_callbacks=[], monitors=[]) as run:
        run.log(a=math.nan, b=math.inf, c=-math.inf, time=3.0, at=4.0)
    found = {name: series.values[0] for (name, _), series in read_series(tmp_path / "scalars.jsonl").items()}
    assert math.isnan(found.pop("a"))
    assert found == {"b": math.inf, "c": -math.inf, "values/time": 3.0, "values/at": 4.0}


def test_a_torn_last_line_is_left_out(tmp_path):
    path = write(tmp_path / "scalars.jsonl", line(1, '"loss": 2'), line(2, '"loss": 3'), end="")
    assert read_series(path)["loss", "step"].values.tolist() == [2.0]


@pytest.mark.parametrize(
    "bad",
    [
        "no json",
        "",
        "3",
        "null",
        "[]",
        '{"loss": 1}',
        '{"step": "1"}',
        '{"step": 1.5}',
        '{"step": true}',
        '{"step": 1, "at": 3}',
        '{"step": 99999999999999999999}',
        '{"step": 1} {"step": 2}',
        "[" * 100_000,
        '{"step": ' + "9" * 5_000 + "}",
        "\x00",
        '{"step": 1, "time": "x"}',
        '{"step": 1, "epoch": null}',
    ],
    ids=lambda bad: bad[:20],
)
def test_a_line_that_is_not_a_record_is_named(tmp_path, bad):
    path = write(tmp_path / "scalars.jsonl", line(1), bad, line(2), bad)
    with pytest.raises(BadLines) as caught:
        read_series(path)
    assert caught.value.numbers == (2, 4)
    assert str(caught.value) == f"{path}: lines 2, 4 are not JSON records with a step"


def test_a_line_that_is_not_utf8_is_named(tmp_path):
    (tmp_path / "scalars.jsonl").write_bytes(b"\xff\xfe\n" + line(1).encode() + b"\n")
    with pytest.raises(BadLines, match="line 1 is not a JSON record with a step"):
        read_series(tmp_path / "scalars.jsonl")


def test_many_bad_lines_are_counted(tmp_path):
    with pytest.raises(BadLines, match="lines 1, 2, 3, 4, 5 and 15 more are not JSON records"):
        read_series(write(tmp_path / "scalars.jsonl", *["x"] * 20))


def test_values_that_are_not_numbers_are_left_out(tmp_path):
    path = write(tmp_path / "scalars.jsonl", line(1, '"a": null, "b": "soup", "c": [1], "d": true, "e": 1' + "0" * 400))
    assert {name: series.values.tolist() for (name, _), series in read_series(path).items()} == {"d": [1.0], "e": [math.inf]}


def test_whitespace_around_a_record_is_ignored(tmp_path):
    assert ("loss", "step") in read_series(write(tmp_path / "scalars.jsonl", "  " + line(1, '"loss": 2') + " \r"))


def test_lines_may_cross_the_pieces_of_a_read(tmp_path, monkeypatch):
    monkeypatch.setattr("hookpoint.run_folder._plain_file.PIECE_BYTES", 7)
    path = write(tmp_path / "scalars.jsonl", *(line(step, '"größe": 1') for step in range(50)))
    assert read_series(path)["größe", "step"].steps.tolist() == list(range(50))


def test_a_very_long_line_raises(tmp_path, monkeypatch):
    monkeypatch.setattr("hookpoint.run_folder._plain_file.MAX_LINE_BYTES", 100)
    monkeypatch.setattr("hookpoint.run_folder._plain_file.PIECE_BYTES", 50)
    with pytest.raises(OSError, match="a line that is too long"):
        read_series(write(tmp_path / "scalars.jsonl", "x" * 200))


def test_a_pipe_raises_and_does_not_block(tmp_path):
    os.mkfifo(tmp_path / "scalars.jsonl")
    with pytest.raises(OSError, match="is not a regular file"):
        read_series(tmp_path / "scalars.jsonl")


def test_a_missing_file_raises_and_an_empty_file_has_no_series(tmp_path):
    with pytest.raises(FileNotFoundError):
        read_series(tmp_path / "scalars.jsonl")
    assert read_series(write(tmp_path / "empty.jsonl", end="")) == {}
