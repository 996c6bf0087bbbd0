from __future__ import annotations

import json
import math
import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from hookpoint import LambdaCallback
from hookpoint.core.loop.loop import Loop
from hookpoint.core.schedule.moment import Moment
from hookpoint.monitors import JSONWriter, read_scalars
from hookpoint.monitors.json_writer import append, end_of_kept_lines


@pytest.fixture
def write(train):
    """Train with the given callbacks; each step logs its batch as the loss."""

    def go(workdir, callbacks=None, *, batches=4, log_every=2, **given):
        options = {"step": lambda run, batch: run.log(loss=batch), "workdir": workdir, "log_every": log_every}
        return train(callbacks or [JSONWriter()], batches=batches, **options, **given)

    return go


def rows(path):
    return [json.loads(line) for line in Path(path).read_text().splitlines()]


def without_time(found):
    return [{key: value for key, value in row.items() if key != "time"} for row in found]


def test_each_record_is_a_line(tmp_path):
    with Loop([JSONWriter()], workdir=tmp_path, log_every=2) as run:
        for _ in run.epochs(2):
            for batch in run.batches(range(3)):
                run.log(loss=batch, accuracy=torch.tensor(0.5))
            for _ in run.batches(range(2), mode="val"):
                run.log(loss=7.0)
            run.log(note=1)
    assert without_time(rows(tmp_path / "scalars.jsonl")) == [
        {"step": 2, "iteration": 2, "epoch": 1, "at": "step", "loss": 0.5, "accuracy": 0.5},
        {"step": 3, "iteration": 3, "epoch": 1, "at": "epoch", "loss": 1.0, "accuracy": 0.5},
        {"step": 3, "iteration": 3, "epoch": 1, "at": "epoch", "val_loss": 7.0},
        {"step": 3, "iteration": 3, "epoch": 1, "at": "value", "note": 1.0},
        {"step": 4, "iteration": 4, "epoch": 2, "at": "step", "loss": 0.0, "accuracy": 0.5},
        {"step": 6, "iteration": 6, "epoch": 2, "at": "step", "loss": 1.5, "accuracy": 0.5},
        {"step": 6, "iteration": 6, "epoch": 2, "at": "epoch", "loss": 1.0, "accuracy": 0.5},
        {"step": 6, "iteration": 6, "epoch": 2, "at": "epoch", "val_loss": 7.0},
        {"step": 6, "iteration": 6, "epoch": 2, "at": "value", "note": 1.0},
    ]


def test_record_times_are_the_times_of_logging(write, tmp_path):
    write(tmp_path, epochs=2)
    times = [row["time"] for row in rows(tmp_path / "scalars.jsonl")]
    assert times == sorted(times)
    assert abs(times[-1] - os.stat(tmp_path / "scalars.jsonl").st_mtime) < 60


def test_a_line_begins_with_the_clocks_of_the_run(write, tmp_path):
    write(tmp_path)
    assert list(rows(tmp_path / "scalars.jsonl")[0]) == ["step", "iteration", "epoch", "time", "at", "loss"]


def test_values_survive_the_round_trip(tmp_path):
    values = {"nan": math.nan, "up": math.inf, "down": -math.inf, "tiny": 5e-324, "third": 1 / 3, "zero": 0.0}
    with Loop([JSONWriter()], workdir=tmp_path) as run:
        run.log(values)
    (row,) = read_scalars(tmp_path / "scalars.jsonl")
    assert math.isnan(row.pop("nan"))
    assert {name: row[name] for name in values if name in row} == {k: v for k, v in values.items() if k != "nan"}


def test_non_finite_numbers_are_written_as_strings(tmp_path):
    with Loop([JSONWriter()], workdir=tmp_path) as run:
        run.log(a=math.nan, b=math.inf, c=-math.inf)
    refuse = {"parse_constant": lambda constant: pytest.fail(f"{constant} is not JSON")}
    row = json.loads((tmp_path / "scalars.jsonl").read_text(), **refuse)
    assert [row[name] for name in "abc"] == ["nan", "inf", "-inf"]


def test_metrics_with_reserved_names_get_a_prefix(tmp_path):
    with Loop([JSONWriter()], workdir=tmp_path) as run:
        run.log(time=1.0, step=2.0, epoch=3.0, at=4.0, iteration=6.0, loss=5.0)
    (row,) = read_scalars(tmp_path / "scalars.jsonl")
    assert (row["step"], row["epoch"], row["at"], row["loss"]) == (0, 0, "value", 5.0)
    assert row["time"] > 1.0
    assert [row[f"values/{name}"] for name in ("time", "step", "epoch", "at", "iteration")] == [1.0, 2.0, 3.0, 4.0, 6.0]


def test_names_may_contain_any_character(tmp_path):
    names = ['"quoted"', "new\nline", "snow ☃", "{brace}", "\\"]
    with Loop([JSONWriter()], workdir=tmp_path) as run:
        run.log(dict.fromkeys(names, 1.0))
    (row,) = read_scalars(tmp_path / "scalars.jsonl")
    assert set(names) <= set(row)


def test_events_are_written_to_a_separate_file(tmp_path):
    with Loop([JSONWriter()], workdir=tmp_path) as run:
        run.put_event("note", text="hello", nan=math.nan, deep={"a": [1, (math.inf, None)]}, path=Path("x"), step="mine")
        for _ in run.epochs(2):
            for _ in run.batches(range(3)):
                run.stop("enough")
    assert without_time(rows(tmp_path / "events.jsonl")) == [
        {
            "step": 0,
            "iteration": 0,
            "epoch": 0,
            "event": "note",
            "text": "hello",
            "nan": "nan",
            "deep": {"a": [1, ["inf", None]]},
            "path": "x",
            "values/step": "mine",
        },
        {"step": 0, "iteration": 0, "epoch": 1, "event": "stop", "reason": "enough"},
    ]


def test_images_and_texts_are_not_written(tmp_path):
    with Loop([JSONWriter()], workdir=tmp_path) as run:
        run.put_text("a", "b")
        run.put_image("c", torch.zeros(2, 2))
    assert list(tmp_path.iterdir()) == []


def test_a_second_run_appends(write, tmp_path):
    write(tmp_path)
    write(tmp_path)
    found = without_time(rows(tmp_path / "scalars.jsonl"))
    assert found[:3] == found[3:]


def test_the_file_may_have_another_name(write, tmp_path):
    write(tmp_path, [JSONWriter("values.jsonl")])
    assert sorted(path.name for path in tmp_path.iterdir()) == ["values.jsonl"]


@pytest.mark.parametrize("filename", ["", ".", "..", "a/b.jsonl", "/etc/passwd", "a\\b", "a\0b", None, 3])
def test_a_file_name_that_is_a_path_raises(filename):
    with pytest.raises(ValueError, match="JSONWriter: filename must be a plain name in the workdir"):
        JSONWriter(filename)


@pytest.mark.parametrize("filename", ["events.jsonl", "run.json", "checkpoints"])
def test_the_name_of_another_file_of_the_run_raises(filename):
    with pytest.raises(ValueError, match=f"filename='{filename}' is the name of one of the run's own files"):
        JSONWriter(filename)


def test_two_writers_write_each_event_once(write, tmp_path):
    write(tmp_path, [JSONWriter(), LambdaCallback(on_epoch_end=lambda run: run.put_event("note")), JSONWriter("more.jsonl")])
    assert [row["event"] for row in rows(tmp_path / "events.jsonl")] == ["note"]
    assert rows(tmp_path / "scalars.jsonl") == rows(tmp_path / "more.jsonl")


def test_a_second_writer_of_the_same_file_is_reported_and_not_called(write, tmp_path, caplog):
    write(tmp_path, [JSONWriter(), JSONWriter()])
    write(tmp_path / "one")
    assert len(rows(tmp_path / "scalars.jsonl")) == len(rows(tmp_path / "one/scalars.jsonl"))
    assert "another JSONWriter of this run already writes scalars.jsonl" in caplog.text


def test_without_a_workdir_nothing_is_written(write, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write(None)
    assert list(tmp_path.iterdir()) == []


def test_a_validation_outside_a_run_is_not_written(write, tmp_path):
    writer = JSONWriter()
    write(tmp_path, [writer])
    before = (tmp_path / "scalars.jsonl").read_text()
    with Loop([writer], workdir=tmp_path, run_points=False) as run:
        for _ in run.batches(range(2), mode="val"):
            run.log(loss=1.0)
    assert (tmp_path / "scalars.jsonl").read_text() == before


def test_a_new_workdir_is_private(write, tmp_path):
    write(tmp_path / "runs" / "mine")
    assert stat.S_IMODE(os.stat(tmp_path / "runs" / "mine").st_mode) == 0o700


def test_an_existing_workdir_keeps_its_mode(write, tmp_path):
    folder = tmp_path / "mine"
    folder.mkdir(mode=0o755)
    folder.chmod(0o755)
    write(folder)
    assert stat.S_IMODE(os.stat(folder).st_mode) == 0o755


# Torn lines


@pytest.mark.parametrize("torn", [b'{"step": 9, "epo', b"{", b'{"step": 9}'])
def test_a_torn_last_line_is_cut_before_the_next_is_written(write, tmp_path, torn):
    write(tmp_path)
    path = tmp_path / "scalars.jsonl"
    whole = path.read_bytes()
    path.write_bytes(whole + torn)
    write(tmp_path)
    assert path.read_bytes().startswith(whole)
    assert len(rows(path)) == 6


def test_a_file_with_only_an_incomplete_line_is_started_over(write, tmp_path):
    path = tmp_path / "scalars.jsonl"
    path.write_bytes(b'{"step"')
    write(tmp_path)
    assert len(rows(path)) == 3


def test_a_killed_run_keeps_every_line_that_was_drained(tmp_path):
    program = """
import os, sys
from hookpoint.core.loop.loop import Loop
from hookpoint.monitors import JSONWriter
with Loop([JSONWriter()], workdir=sys.argv[1], log_every=1) as run:
    for batch in run.batches(range(100)):
        run.log(loss=batch)
        if batch == 50:
            run.monitors.drain()
            os.kill(os.getpid(), 9)
"""
    done = subprocess.run([sys.executable, "-c", program, str(tmp_path)], check=False)
    assert done.returncode == -9
    assert [row["loss"] for row in read_scalars(tmp_path / "scalars.jsonl")] == list(range(50))


def test_a_full_disk_does_not_end_the_run_and_its_torn_line_is_cut(tmp_path):
    program = """
import os, resource, sys
from hookpoint.core.loop.loop import Loop
from hookpoint.monitors import JSONWriter
soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
with Loop([JSONWriter()], workdir=sys.argv[1], log_every=1) as run:
    for batch in run.batches(range(10)):
        run.log(loss=batch)
        run.monitors.drain()
        if batch == 3:
            room = os.path.getsize(sys.argv[1] + "/scalars.jsonl") + 20     # less than the next line needs
            resource.setrlimit(resource.RLIMIT_FSIZE, (room, hard))
        if batch == 5:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
print(run.iteration)
"""
    done = subprocess.run([sys.executable, "-c", program, str(tmp_path)], capture_output=True, text=True, check=False)
    assert done.stdout == "10\n"
    assert "JSONWriter failed at on_records: OSError: [Errno 27] File too large; the run continues" in done.stderr
    assert [row["loss"] for row in read_scalars(tmp_path / "scalars.jsonl") if row["at"] == "step"] == [0, 1, 2, 5, 6, 7, 8, 9]


def test_an_unwritable_workdir_is_reported_and_the_run_continues(write, tmp_path, caplog):
    (tmp_path / "file").write_text("in the way")
    run = write(tmp_path / "file", batches=50, log_every=1)
    assert run.iteration == 50
    assert "JSONWriter failed at on_records: FileExistsError" in caplog.text


# Resuming


def resumed_at(step, state=None):
    """Return a writer for a run that resumes at `step`, with `state` if given."""

    class Resumes(JSONWriter):
        def on_run_begin(self, run):
            run._clocks.step = run._clocks.iteration = step
            run._clocks.epoch, run.resuming = min(step, 1), True
            super().on_run_begin(run)
            run._clocks.epoch = 0  # the epoch begins again
            if state is not None:
                self.load_state_dict(state)

    return Resumes()


def values(path):
    return [(row["at"], row["step"], row["loss"]) for row in rows(path)]


def test_without_saved_sizes_lines_after_the_checkpoints_step_are_cut(write, tmp_path):
    write(tmp_path, batches=10, log_every=1)
    path = tmp_path / "scalars.jsonl"
    path.write_text(path.read_text() + '{"torn')
    write(tmp_path, [resumed_at(4)], batches=2, log_every=1)
    assert values(path) == [
        ("step", 1, 0.0),
        ("step", 2, 1.0),
        ("step", 3, 2.0),
        ("step", 4, 3.0),
        ("step", 5, 0.0),
        ("step", 6, 1.0),
        ("epoch", 6, 0.5),
    ]


def test_events_are_never_cut(tmp_path):
    path = tmp_path / "events.jsonl"
    path.write_text('{"step": 3}\n{"step": 5}\n{"torn')
    with Loop([resumed_at(4, {"sizes": {"scalars.jsonl": 0, "events.jsonl": 0}})], workdir=tmp_path) as run:
        run.put_event("note")
    assert [row["step"] for row in rows(path)] == [3, 5, 4]


@pytest.mark.parametrize("kept", [3, 4, 5])
def test_a_file_is_cut_to_its_saved_size_even_within_one_step(write, tmp_path, kept):
    write(tmp_path, batches=4, log_every=1)  # the last step has its own row and the row of the epoch
    path = tmp_path / "scalars.jsonl"
    size = sum(map(len, path.read_bytes().splitlines(keepends=True)[:kept]))
    write(tmp_path, [resumed_at(4, {"sizes": {"scalars.jsonl": size}})], batches=1, log_every=1)
    old = [("step", step, step - 1.0) for step in range(1, 5)] + [("epoch", 4, 1.5)]
    assert values(path) == [*old[:kept], ("step", 5, 0.0), ("epoch", 5, 0.0)]


@pytest.mark.parametrize(
    "state", [{}, {"sizes": {"other.jsonl": 10}}, {"sizes": {"scalars.jsonl": 10**9}}, {"sizes": {"scalars.jsonl": 7}}]
)
def test_a_size_that_does_not_fit_the_file_is_ignored(write, tmp_path, state):
    write(tmp_path, batches=4, log_every=1)
    write(tmp_path, [resumed_at(2, state)], batches=1, log_every=1)
    assert [row[1] for row in values(tmp_path / "scalars.jsonl")] == [1, 2, 3, 3]


def test_a_checkpoint_from_before_the_first_line_empties_the_file(write, tmp_path):
    write(tmp_path, batches=4, log_every=1)
    write(tmp_path, [resumed_at(0, {"sizes": {"scalars.jsonl": 0}})], batches=1, log_every=1)
    assert [row[1] for row in values(tmp_path / "scalars.jsonl")] == [1, 1]


def test_state_dict_is_the_size_of_complete_lines_on_disk(tmp_path):
    writer, states = JSONWriter(), []
    with Loop([writer], workdir=tmp_path, log_every=1) as run:
        states.append(writer.state_dict())
        for batch in run.batches(range(3)):
            run.log(loss=batch)
        run.monitors.settle()
        states.append(writer.state_dict())
        whole = (tmp_path / "scalars.jsonl").stat().st_size
        with open(tmp_path / "scalars.jsonl", "a") as file:
            file.write('{"torn')
        states.append(writer.state_dict())
    assert states == [{"sizes": {"scalars.jsonl": 0}}, *[{"sizes": {"scalars.jsonl": whole}}] * 2]


def test_a_resumed_writer_keeps_its_state_until_its_first_line(write, tmp_path):
    write(tmp_path, batches=4, log_every=1)
    path = tmp_path / "scalars.jsonl"
    before = path.read_bytes()
    size = len(before.splitlines(keepends=True)[0])
    writer = resumed_at(3, {"sizes": {"scalars.jsonl": size}})
    with Loop([writer], workdir=tmp_path):
        assert writer.state_dict() == {"sizes": {"scalars.jsonl": size}}
        assert path.read_bytes() == before


def test_without_a_workdir_there_is_no_state(write):
    writer = JSONWriter()
    write(None, [writer])
    assert writer.state_dict() == {}


def test_a_failed_fsync_does_not_fail_the_checkpoint(write, tmp_path, monkeypatch, caplog):
    writer = JSONWriter()
    write(tmp_path, [writer])
    monkeypatch.setattr(os, "fsync", lambda descriptor: (_ for _ in ()).throw(OSError("the disk is on fire")))
    assert writer.state_dict() == {}
    assert caplog.messages == ["scalars.jsonl may not be on disk: the disk is on fire; a resumed run may lose lines"]


def test_state_dict_syncs_every_file(tmp_path, monkeypatch):
    synced = []
    monkeypatch.setattr(os, "fsync", lambda descriptor: synced.append(os.fstat(descriptor).st_ino))
    writer = JSONWriter()
    with Loop([writer], workdir=tmp_path) as run:
        run.log(a=1.0)
        run.put_event("note")
        run._logbook.flush()
        run.monitors.settle()
        writer.state_dict()
    files = (tmp_path / "scalars.jsonl", tmp_path / "events.jsonl", tmp_path)
    assert synced == [path.stat().st_ino for path in files]


def test_cutting_keeps_lines_of_other_programs(tmp_path):
    path = tmp_path / "scalars.jsonl"
    path.write_text('# hello\n{"step": 1}\n[]\n{"step": 3}\n{"step": 2}\n')
    with open(path, "rb") as file:
        assert end_of_kept_lines(file, Moment(0, None, 2), None) == len('# hello\n{"step": 1}\n[]\n')
        assert end_of_kept_lines(file, Moment(0, None, 9), None) == path.stat().st_size


@pytest.mark.parametrize(("text", "end"), [("", 0), ("a", 0), ("a\n", 2), ("a\nb", 2), ("a\nb\n", 4)])
def test_an_incomplete_line_is_not_kept(tmp_path, text, end):
    path = tmp_path / "file"
    path.write_text(text)
    with open(path, "rb") as file:
        assert end_of_kept_lines(file, Moment(0, None, 9), None) == end


def test_appending_nothing_creates_no_file(tmp_path):
    append(tmp_path / "none", [])
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("piece_bytes", [1, 7, 64, 2**16])
def test_cutting_finds_every_later_line(tmp_path, monkeypatch, piece_bytes):
    monkeypatch.setattr("hookpoint.storage.disk.complete_lines.PIECE_BYTES", piece_bytes)
    path = tmp_path / "scalars.jsonl"
    lines = [f'{{"step": {step}}}\n' for step in range(1, 30)]
    path.write_text("".join(lines) + '{"step": 30, "lo')
    with open(path, "rb") as file:
        for step in range(31):
            assert end_of_kept_lines(file, Moment(0, None, step), None) == len("".join(lines[:step]))
