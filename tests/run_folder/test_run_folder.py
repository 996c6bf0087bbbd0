"""RunFolder reads the facts of a run, however the run ended."""

from __future__ import annotations

import json
import os
import shutil

import pytest

from hookpoint import Callback
from hookpoint import callbacks as cb
from hookpoint.run_folder.checkpoint_list import bytes_of
from hookpoint.run_folder.run_folder import RunFolder


class Fail(Callback):
    def on_epoch_end(self):
        raise RuntimeError("no more")


class Stop(Callback):
    def on_epoch_end(self, run):
        run.stop("enough")


def test_a_finished_run_has_all_facts(train_run):
    run = RunFolder(train_run(epochs=2))
    assert run.is_run
    assert (run.name, run.status, run.reason) == ("mine", "finished", "")
    assert (run.epoch, run.epochs, run.step) == (2, 2, 8)
    assert run.values == {"loss": 1.25, "val_loss": 1.5}
    assert run.last.points["val_loss"].at == "epoch"
    best = run.best
    assert (best.metric, best.value, best.step, best.mode, best.source) == ("val_loss", 1.5, 8, "min", "run")
    assert run.seconds >= 0
    assert run.started.isoformat() == run.facts["started"]


def test_stopped_and_failed_runs_have_a_reason(train_run):
    stopped = RunFolder(train_run("stopped", callbacks=[Stop()]))
    assert (stopped.status, stopped.reason) == ("stopped", "enough")
    with pytest.raises(RuntimeError):
        train_run("failed", callbacks=[Fail()])
    failed = RunFolder(stopped.path.parent / "failed")
    assert (failed.status, failed.reason) == ("failed", "RuntimeError: no more")


def test_a_run_is_running_until_it_is_killed(training, until):
    with training() as live:
        live.epoch()
        run = RunFolder(live.workdir)
        assert run.status == "running"
        assert run.holder.pid == live.process.pid
        until(lambda: RunFolder(live.workdir).step == 4)
        assert RunFolder(live.workdir).epoch == 2
        assert RunFolder(live.workdir).seconds >= 0
        live.process.kill()
        live.process.wait()
        assert RunFolder(live.workdir).status == "killed"
        assert RunFolder(live.workdir).seconds >= 0
        assert run.status == "running"  # an existing RunFolder keeps what it read


def test_a_run_that_ends_while_it_is_read_is_finished(train_run, monkeypatch):
    folder = train_run()
    contents = [{"format": 1, "status": "running"}, json.loads((folder / "run.json").read_text())]
    monkeypatch.setattr(
        "hookpoint.run_folder.run_folder.read_run_file", lambda path: contents.pop(0) if len(contents) > 1 else contents[0]
    )
    run = RunFolder(folder)
    assert run.status == "finished"
    assert run.step == 8


def test_the_status_is_unknown_without_run_json(train_run):
    folder = train_run()
    (folder / "run.json").unlink()
    run = RunFolder(folder)
    assert (run.is_run, run.status, run.name) == (True, "unknown", "mine")
    assert (run.epoch, run.step, run.epochs) == (2, 8, None)
    assert run.started is not None
    assert run.seconds >= 0


def test_the_step_comes_from_checkpoints_without_other_files(train_run):
    folder = train_run()
    for name in ("run.json", "scalars.jsonl", "events.jsonl"):
        (folder / name).unlink()
    run = RunFolder(folder)
    assert (run.is_run, run.status, run.step, run.epoch, run.best) == (True, "unknown", 8, None, None)


def test_without_scalars_the_last_values_come_from_run_json(train_run):
    run = RunFolder(train_run(monitors=[]))
    assert run.values == {"loss": 1.25, "val_loss": 1.5}
    assert run.last.exists is False


def test_without_run_json_the_best_value_comes_from_events(train_run):
    folder = train_run()
    (folder / "run.json").unlink()
    best = RunFolder(folder).best
    assert (best.metric, best.value, best.step, best.source) == ("val_loss", 1.5, 8, "events")


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        ([("epoch", {"loss": 3.0}), ("epoch", {"loss": 1.0}), ("step", {"loss": 0.5})], ("loss", 1.0, 2)),
        ([("step", {"loss": 3.0}), ("step", {"loss": 1.0}), ("step", {"loss": "nan"})], ("loss", 1.0, 2)),
        ([("epoch", {"loss": 3.0, "val_loss": 4.0}), ("epoch", {"loss": 1.0, "val_loss": 5.0})], ("val_loss", 4.0, 1)),
        ([("epoch", {"val_accuracy": 0.5}), ("epoch", {"val_accuracy": 0.75})], ("val_accuracy", 0.75, 2)),
        ([("epoch", {"rate": 0.5})], None),
        ([("epoch", {"loss": "nan"})], None),
    ],
    ids=["epochs before steps", "never nan", "validation first", "more is better", "says nothing", "nothing but nan"],
)
def test_without_a_stated_best_value_metric_names_decide(tmp_path, lines, expected):
    rows = [{"step": step, "epoch": 1, "time": 1.0, "at": at, **values} for step, (at, values) in enumerate(lines, 1)]
    (tmp_path / "scalars.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    best = RunFolder(tmp_path).best
    assert (best and (best.metric, best.value, best.step)) == expected
    assert best is None or best.source == "guess"


def test_a_torn_last_line_is_skipped(train_run):
    folder = train_run()
    with open(folder / "scalars.jsonl", "a") as file:
        file.write('{"step": 99, "epo')
    assert RunFolder(folder).last.step == 8


def test_only_the_end_of_a_long_file_is_read(tmp_path, monkeypatch):
    rows = [{"step": step, "epoch": 1, "time": float(step), "at": "step", "loss": 1.0} for step in range(20_000)]
    rows.insert(19_000, {"step": 19_000, "epoch": 1, "time": 19_000.0, "at": "epoch", "val_loss": 2.0})
    (tmp_path / "scalars.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    parsed = []
    monkeypatch.setattr("hookpoint.run_folder._scalars_file.record_of", lambda line: parsed.append(line) or json.loads(line))
    run = RunFolder(tmp_path)
    assert (run.step, run.values) == (19_999, {"val_loss": 2.0, "loss": 1.0})
    assert len(parsed) < 100


def test_hard_links_of_checkpoints_are_counted_once(train_run):
    run = RunFolder(train_run(epochs=3))
    listed = {one.path.name: one for one in run.checkpoints}
    assert list(listed) == ["step-00000004", "step-00000008", "step-00000012", "best-val_loss"]
    assert [one.step for one in run.checkpoints] == [4, 8, 12, 12]
    best = listed["best-val_loss"]
    assert best.is_best
    assert (best.own_bytes, best.size_bytes) == (0, listed["step-00000012"].size_bytes)
    assert sum(one.own_bytes for one in run.checkpoints) == bytes_of(run.path / "checkpoints", set()) - len("step-00000012")
    assert "best-val_loss" in listed["step-00000012"].tags


def test_a_damaged_manifest_is_reported(train_run):
    folder = train_run()
    (folder / "checkpoints" / "step-00000004" / "manifest.json").write_text("{}")
    first = RunFolder(folder).checkpoints[0]
    assert (first.manifest, first.step, first.tags) == (None, 4, ())
    assert "was changed" in first.problem


@pytest.mark.parametrize(
    "facts",
    [
        {"status": "running"},
        {"format": 1, "status": "ok"},
        {"format": "1", "status": "finished"},
        [],
        3,
        {"format": 1, "status": ["finished"]},
    ],
)
def test_a_run_json_of_another_program_is_not_a_run(tmp_path, facts):
    (tmp_path / "run.json").write_text(json.dumps(facts))
    assert not RunFolder(tmp_path).is_run


def test_facts_of_wrong_types_are_left_out(tmp_path):
    facts = {name: ["odd"] for name in ("name", "reason", "started", "epoch", "epochs", "step", "elapsed_seconds")}
    facts |= {"best": {"loss": 3, "x": {"value": "soup"}}, "resumed": "odd", "format": 1, "status": "finished"}
    (tmp_path / "run.json").write_text(json.dumps(facts))
    run = RunFolder(tmp_path)
    assert (run.name, run.reason, run.started, run.epoch, run.epochs, run.step) == (tmp_path.name, "", None, None, None, None)
    assert (run.best, run.seconds, run.values) == (None, 0.0, {})


def test_empty_and_missing_folders_are_not_runs(tmp_path):
    assert not RunFolder(tmp_path).is_run
    assert not RunFolder(tmp_path / "nothing").is_run


def test_pipes_in_place_of_files_do_not_block(tmp_path):
    for name in ("run.json", "scalars.jsonl", "events.jsonl", ".lock"):
        os.mkfifo(tmp_path / name)
    assert not RunFolder(tmp_path).is_run
    assert list(RunFolder(tmp_path).events()) == []


def test_a_resumed_run_keeps_its_first_start_and_total_time(train_run):
    folder = train_run(epochs=1)
    first = RunFolder(folder)
    train_run(epochs=3)
    again = RunFolder(folder)
    assert again.started == first.started
    assert (again.epoch, again.step, again.status) == (3, 12, "finished")
    assert again.seconds >= first.seconds


def test_a_copied_run_keeps_its_status(train_run, tmp_path):
    shutil.copytree(train_run(), tmp_path / "copy")
    assert RunFolder(tmp_path / "copy").status == "finished"


def test_a_run_of_this_process_is_running(train_run):
    class Look(Callback):
        def on_epoch_end(self, run):
            seen.append(RunFolder(run.workdir).status)

    seen = []
    train_run(callbacks=[Look(), cb.ModelSaver()])
    assert seen == ["running", "running"]


def test_a_best_value_from_many_saves_ago_is_found(tmp_path):
    """A run in progress keeps its best value in events.jsonl only."""
    clocks = {"step": 1, "iteration": 1, "epoch": 1, "time": 1.0}
    events = [{**clocks, "event": "best", "metric": "val_loss", "value": 0.25, "mode": "min"}]
    events += [{**clocks, "event": "save", "path": f"step-{number}"} for number in range(5_000)]
    (tmp_path / "events.jsonl").write_text("".join(json.dumps(event) + "\n" for event in events))
    (tmp_path / "scalars.jsonl").write_text(json.dumps({**clocks, "at": "step", "val_loss": 0.5}) + "\n")
    assert RunFolder(tmp_path).stated_best.value == 0.25


def write(folder, content):
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "scalars.jsonl").write_text('{"step": 3, "epoch": 1, "time": 5.0, "at": "step", "loss": 0.5}\n')
    (folder / "run.json").write_text(content if isinstance(content, str) else json.dumps({"format": 1, **content}))
    return RunFolder(folder)


@pytest.mark.parametrize("number", [10**400, -(10**400), "1e999", "NaN"])
def test_an_impossible_duration_is_read_as_zero(tmp_path, number):
    run = write(tmp_path / "mine", f'{{"format": 1, "status": "finished", "elapsed_seconds": {number}}}')
    assert (run.status, run.seconds) == ("finished", 0.0)


@pytest.mark.parametrize(
    ("content", "why"),
    [
        ("{", "it is not JSON"),
        ("[1]", "the key 'format' is missing or not an integer"),
        ({"status": "odd"}, "its status must be one of running, finished, stopped, failed"),
        (
            '{"format": 1, "status": "finished", "config": ' + "[" * 900 + "]" * 900 + "}",
            "it is nested more than 100 levels deep",
        ),
        ("[" * 200_000, "it is nested more than 100 levels deep"),
    ],
)
def test_an_invalid_run_file_gives_a_reason(tmp_path, content, why):
    run = write(tmp_path / "mine", content)
    assert (run.status, run.reason, run.step) == ("unknown", f"run.json is unreadable: {why}", 3)


def test_a_run_json_that_is_a_folder_is_reported(tmp_path):
    run = write(tmp_path / "mine", "")
    (run.path / "run.json").unlink()
    assert run.reason == ""
    (run.path / "run.json").mkdir()
    assert RunFolder(run.path).reason == "run.json is unreadable: it is not a file of at most 16 MiB"


def test_pauses_do_not_count_as_training_time(tmp_path, monkeypatch):
    started = "2026-11-18T12:00:00+00:00"
    begin = 1_795_003_200.0
    monkeypatch.setattr("hookpoint.run_folder.run_folder.time.time", lambda: begin + 100)
    monkeypatch.setattr("hookpoint.run_folder.run_folder.holder_of", lambda path: "a process")
    run = write(tmp_path / "mine", {"status": "running", "started": started, "elapsed_seconds": 0.0})

    def paused(*commands):
        events = [
            {"step": 3, "time": begin + at, "event": "control", "do": do, "status": status} for do, at, status in commands
        ]
        (run.path / "events.jsonl").write_text("".join(json.dumps(event) + "\n" for event in events))
        again = RunFolder(run.path)
        return again.seconds, again.is_paused

    assert paused() == (100, False)
    assert paused(("pause", -50, "applied"), ("resume", -40, "applied")) == (100, False)  # from an earlier start
    assert paused(("pause", 10, "applied"), ("resume", 30, "applied")) == (80, False)
    assert paused(("pause", 10, "applied"), ("pause", 20, "applied"), ("resume", 30, "refused")) == (10, True)
    assert paused(("pause", 10, "applied"), ("resume", 30, "applied"), ("pause", 90, "applied")) == (70, True)
