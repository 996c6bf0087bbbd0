"""`hookpoint export` writes wide tables; the tests read them back."""

from __future__ import annotations

import csv
import io
import json
import os

import pytest

ROWS = [
    {"step": 2, "iteration": 2, "epoch": 1, "at": "step", "loss": 1.5},
    {"step": 4, "iteration": 4, "epoch": 1, "at": "step", "loss": 3.5},
    {"step": 4, "iteration": 4, "epoch": 1, "at": "epoch", "loss": 2.5, "val_loss": 3.0},
]


def untimed(rows):
    return [{key: value for key, value in row.items() if key != "time"} for row in rows]


def test_export_writes_csv(command, train_run, tmp_path):
    train_run(epochs=1)
    result = command("export", "mine", "-o", "out.csv")
    assert (result.stdout, result.stderr) == ("", "out.csv: 3 rows, 7 columns\n")
    with open(tmp_path / "out.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    assert list(rows[0]) == ["step", "iteration", "epoch", "at", "time", "loss", "val_loss"]
    assert untimed(rows) == [
        {key: str(row.get(key, "")) for key in ("step", "iteration", "epoch", "at", "loss", "val_loss")} for row in ROWS
    ]
    assert os.listdir(tmp_path).count("out.csv") == 1
    assert not [name for name in os.listdir(tmp_path) if "staging" in name]


def test_export_writes_json_and_json_lines(command, train_run, tmp_path):
    train_run(epochs=1)
    command("export", "mine", "-o", "out.json")
    command("export", "mine", "-o", "out.jsonl")
    assert untimed(json.loads((tmp_path / "out.json").read_text())) == ROWS
    assert untimed(map(json.loads, (tmp_path / "out.jsonl").read_text().splitlines())) == ROWS


def test_export_writes_to_standard_output(command, train_run):
    train_run(epochs=1)
    result = command("export", "mine", "-o", "-")
    assert next(csv.DictReader(io.StringIO(result.stdout)))["loss"] == "1.5"
    assert result.stderr == ""
    assert untimed(json.loads(command("export", "mine", "-o", "-", "--format", "json").stdout)) == ROWS


def test_non_finite_values_and_odd_names_are_exported(command, tmp_path):
    folder = tmp_path / "runs" / "odd"
    folder.mkdir(parents=True)
    row = {"step": 1, "epoch": 1, "time": 1.0, "at": "step", "a": "nan", 'b,"\n': "-inf", "c": "soup", "values/step": 2}
    (folder / "scalars.jsonl").write_text(json.dumps(row) + "\n")
    (read,) = csv.DictReader(io.StringIO(command("export", "odd", "-o", "-").stdout, newline=""))
    assert read == {"step": "1", "epoch": "1", "at": "step", "time": "1.0", "a": "nan", 'b,"\\n': "-inf", "values/step": "2.0"}
    (read,) = json.loads(command("export", "odd", "-o", "-", "--format", "json").stdout)
    assert (read["a"], read['b,"\n'], read["values/step"]) == ("nan", "-inf", 2.0)


def test_records_of_one_step_become_one_row_with_the_last_values(command, tmp_path):
    folder = tmp_path / "runs" / "twice"
    folder.mkdir(parents=True)
    rows = [("value", {"rate": 1.0}), ("epoch", {"loss": 2.0}), ("value", {"rate": 3.0, "more": 4.0})]
    lines = [json.dumps({"step": 5, "epoch": 1, "time": float(n), "at": at, **values}) for n, (at, values) in enumerate(rows)]
    (folder / "scalars.jsonl").write_text("\n".join(lines) + "\n")
    assert json.loads(command("export", "twice", "-o", "-", "--format", "json").stdout) == [
        {"step": 5, "epoch": 1, "at": "value", "time": 2.0, "rate": 3.0, "more": 4.0},
        {"step": 5, "epoch": 1, "at": "epoch", "time": 1.0, "loss": 2.0},
    ]


def test_an_empty_log_exports_an_empty_table(command, tmp_path):
    folder = tmp_path / "runs" / "empty"
    folder.mkdir(parents=True)
    (folder / "scalars.jsonl").write_text("")
    assert command("export", "empty", "-o", "-").stdout == "step,epoch,at,time\n"
    assert command("export", "empty", "-o", "-", "--format", "json").stdout == "[]\n"


def test_a_run_without_scalars_is_named(command, train_run):
    (train_run() / "scalars.jsonl").unlink()
    assert "runs/mine has no scalars.jsonl" in command("export", "mine", "-o", "x.csv", code=65).stderr


def test_bad_lines_are_named_and_nothing_is_written(command, train_run, tmp_path):
    path = train_run() / "scalars.jsonl"
    path.write_text(path.read_text() + "soup\n")
    output = command("export", "mine", "-o", "x.csv", code=65).stderr
    assert output == "hookpoint: runs/mine/scalars.jsonl: line 9 is not a JSON record with a step\n"
    assert not (tmp_path / "x.csv").exists()


def test_a_torn_last_line_is_left_out(command, train_run):
    path = train_run(epochs=1) / "scalars.jsonl"
    path.write_text(path.read_text() + '{"step": 5')
    assert untimed(json.loads(command("export", "mine", "-o", "-", "--format", "json").stdout)) == ROWS


def test_an_unknown_file_extension_is_rejected(command, train_run):
    train_run()
    assert "use .csv, .json or .jsonl, or pass --format" in command("export", "mine", "-o", "out.xls", code=2).stderr


@pytest.mark.parametrize("place", ["nowhere/out.csv", "taken.csv"])
def test_a_file_that_cannot_be_written_is_reported_in_one_line(command, train_run, tmp_path, place):
    train_run()
    (tmp_path / "taken.csv").mkdir()
    result = command("export", "mine", "-o", place, code=2 if place == "taken.csv" else 73)
    assert len(result.stderr.splitlines()) == 1


def test_files_of_the_run_are_not_overwritten(command, train_run, tmp_path):
    path = train_run() / "scalars.jsonl"
    before = path.read_text()
    (tmp_path / "link.jsonl").symlink_to(path)
    for name in ("runs/mine/scalars.jsonl", "link.jsonl"):
        assert "belongs to the run" in command("export", "mine", "-o", name, code=73).stderr
    assert path.read_text() == before


def test_an_existing_file_is_replaced_through_a_link(command, train_run, tmp_path):
    train_run()
    (tmp_path / "real.csv").write_text("old")
    (tmp_path / "out.csv").symlink_to("real.csv")
    command("export", "mine", "-o", "out.csv")
    assert (tmp_path / "out.csv").is_symlink()
    assert (tmp_path / "real.csv").read_text().startswith("step,")
