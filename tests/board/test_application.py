"""The server's answers describe the runs on disk."""

from __future__ import annotations

import csv
import json
import os
import shutil

import pytest

from hookpoint.board import _live_curves, _run_table, _stream_watcher


def row(step, at="step", **values):
    return json.dumps({"step": step, "iteration": step, "epoch": 1, "time": 1.79e9 + step, "at": at, **values}) + "\n"


def append(folder, *lines):
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "scalars.jsonl").open("a") as file:
        file.write("".join(lines))
    return folder


@pytest.fixture
def quick(monkeypatch):
    """Check for changes without pauses."""
    monkeypatch.setattr(_stream_watcher, "TICK_SECONDS", 0.01)
    monkeypatch.setattr(_stream_watcher, "REST_SECONDS", 0.0)
    monkeypatch.setattr(_run_table, "SEARCH_SECONDS", 0.0)
    monkeypatch.setattr(_run_table, "RUNNING_SECONDS", 0.0)


def test_a_finished_run_is_listed_with_details_and_curves(board, train_run):
    train_run()
    client = board()
    (mine,) = client.runs().values()
    assert (mine["name"], mine["status"], mine["step"], mine["epoch"]) == ("mine", "finished", 8, 2)
    assert (mine["best"]["metric"], mine["best"]["value"]) == ("val_loss", 1.5)
    assert (mine["last"], mine["since"]) == (["val_loss", 1.5], None)
    assert mine["seconds"] > 0
    details = client.get(f"/api/run/{mine['key']}")
    assert details["run"]["config"]["depth"] == 3
    assert details["run"]["config"]["api_key"] != "abc"
    assert [one["name"] for one in details["checkpoints"]]
    assert (details["settings"]["depth"], details["controls"]) == (3, None)
    assert details["controls_reason"] == "This run is not in progress: finished."
    curves = client.exact_series("mine")
    assert (curves["exact"], curves["complete"], curves["preview"]) == (True, 1.0, False)
    loss = next(curve for curve in curves["curves"] if (curve["name"], curve["at"]) == ("val_loss", "epoch"))
    assert (loss["x"], loss["lo"], loss["hi"], loss["mean"]) == ([4, 8], [3.0, 1.5], [3.0, 1.5], [3.0, 1.5])


def test_the_page_and_its_files_are_served(board, train_run):
    train_run()
    client = board()
    for path, kind in (
        ("/", "text/html"),
        ("/board.js", "text/javascript"),
        ("/board.css", "text/css"),
        ("/favicon.svg", "image/svg+xml"),
    ):
        status, headers, _ = client.send("GET", path)
        assert (status, headers["content-type"].partition(";")[0]) == (200, kind)


def test_callbacks_are_listed_in_order_with_schedule_and_cost(board, train_run):
    train_run()
    client = board()
    rows = client.get(f"/api/run/{client.key('mine')}")["callbacks"]
    assert [row["name"] for row in rows] == client.get(f"/api/run/{client.key('mine')}")["run"]["callbacks"]
    saver = next(row for row in rows if row["name"] == "ModelSaver")
    when = {point["point"]: point["when"] for point in saver["points"]}
    assert when["on_epoch_end"] == "complete epochs"
    assert saver["seconds"] > 0


def test_events_are_listed_in_order_with_a_text(board, train_run):
    train_run()
    client = board()
    events = client.get(f"/api/run/{client.key('mine')}/events")["events"]
    assert {"save", "best"} <= {event["event"] for event in events}
    assert all(event["text"] and event["step"] for event in events)
    assert [event["time"] for event in events] == sorted(event["time"] for event in events)


def test_settings_of_all_runs_are_flat_and_long_texts_are_cut(board, tmp_path):
    for name, depth in (("one", 1), ("two", 2)):
        append(tmp_path / "runs" / name, row(1, loss=1.0))
        facts = {"format": 1, "status": "finished", "config": {"model": {"depth": depth}, "note": "x" * 1_000}}
        (tmp_path / "runs" / name / "run.json").write_text(json.dumps(facts))
    client = board()
    settings = client.get("/api/settings")["settings"]
    assert {label: settings[one["key"]]["model.depth"] for label, one in client.runs().items()} == {"one": 1, "two": 2}
    assert all(len(one["note"]) == 201 for one in settings.values())


def test_curves_include_the_last_step_of_each_epoch(board, tmp_path):
    lines = [row(step, loss=1.0, epoch=1 + step // 10) for step in range(35)]
    append(tmp_path / "runs" / "mine", *lines)
    assert board().exact_series("mine")["epochs"] == [[9, 1], [19, 2], [29, 3], [34, 4]]


def test_one_csv_has_a_metric_of_several_runs(board, tmp_path):
    append(tmp_path / "runs" / "a,b", row(1, loss=1.0), row(2, loss=2.0))
    append(tmp_path / "runs" / "c", row(1, loss=3.0), row(2, rate=4.0))
    client = board()
    keys = ",".join(client.key(label) for label in ("a,b", "c"))
    status, headers, content = client.send("GET", f"/api/curve.csv?runs={keys}&name=loss&at=step")
    assert (status, headers["content-disposition"]) == (200, 'attachment; filename="loss.csv"')
    rows = list(csv.reader(content.decode().splitlines()))
    assert rows[0] == ["run", "step", "epoch", "time", "value"]
    assert [(one[0], one[1], float(one[4])) for one in rows[1:]] == [("a,b", "1", 1.0), ("a,b", "2", 2.0), ("c", "1", 3.0)]
    client.get("/api/curve.csv?runs=nothing&name=loss", 404)


def test_spikes_are_kept_and_a_zoom_is_exact(board, tmp_path):
    append(tmp_path / "runs" / "mine", *(row(step, loss=9.0 if step == 3_777 else 0.5) for step in range(6_000)))
    client = board()
    (loss,) = client.exact_series("mine", px=50)["curves"]
    assert len(loss["x"]) <= 50
    assert max(loss["hi"]) == 9.0
    assert loss["count"] == 6_000
    (near,) = client.series("mine", **{"from": 3_770, "to": 3_785, "px": 100})["curves"]
    assert near["x"] == list(range(3_770, 3_786))
    assert near["hi"].index(9.0) == 7


def test_non_finite_values_are_counted(board, tmp_path):
    append(tmp_path / "runs" / "mine", row(1, loss="nan"), row(2, loss=1.0), row(3, loss="inf"))
    (loss,) = board().series("mine")["curves"]
    assert (loss["mean"], loss["bad"]) == ([None, 1.0, None], [1, 0, 1])


def test_the_number_of_curves_is_limited_unless_names_are_given(board, tmp_path):
    append(tmp_path / "runs" / "mine", row(1, **{f"m{number}": 1.0 for number in range(100)}, loss=2.0))
    client = board()
    found = client.series("mine")
    assert len(found["all"]) == 101
    assert len(found["curves"]) == _live_curves.MAX_CURVES
    assert "loss" in {curve["name"] for curve in found["curves"]}
    assert [curve["name"] for curve in client.series("mine", name="m77")["curves"]] == ["m77"]


@pytest.mark.parametrize("query", ["from=x", "px=many", "to=1e"])
def test_invalid_numbers_in_a_query_are_rejected(board, tmp_path, query):
    append(tmp_path / "runs" / "mine", row(1, loss=1.0))
    client = board()
    client.get(f"/api/run/{client.key('mine')}/series?{query}", code=400)


def test_csv_has_every_value(board, tmp_path):
    append(
        tmp_path / "runs" / "mine",
        *(row(step, **{"a,b": step / 2}) for step in range(3_000)),
        "no json\n",
        row(9, "epoch", **{"a,b": 1}),
        row(9, "value", c=2),
    )
    client = board()
    assert client.send("GET", f"/api/run/{client.key('mine')}/curve.csv?name=c&at=value")[2].splitlines()[1:] == [
        b"9,1,1790000009.0,2.0"
    ]
    status, headers, content = client.send("GET", f"/api/run/{client.key('mine')}/curve.csv?name=a%2Cb&at=step")
    lines = content.decode().splitlines()
    assert (status, headers["content-disposition"]) == (200, 'attachment; filename="a_b.csv"')
    assert lines[0] == "step,epoch,time,value"
    assert len(lines) == 3_001
    assert lines[3] == "2,1,1790000002.0,1.0"
    for nothing in ("name=step", "name=a%2Cb&at=value", "at=step"):
        status, _, content = client.send("GET", f"/api/run/{client.key('mine')}/curve.csv?{nothing}")
        assert (status, b"at can be step, epoch or value" in content) == (404, True)


def test_diff_returns_only_settings_that_differ(board, train_run):
    train_run("one", config={"lr": 0.1, "net": {"width": 8}})
    train_run("two", config={"lr": 0.1, "net": {"width": 9}})
    client = board()
    keys = [client.key("one"), client.key("two")]
    assert client.get(f"/api/diff?runs={','.join(keys)}") == {"runs": keys, "settings": {"net.width": [8, 9]}}
    client.get("/api/diff?runs=nothing", code=404)


def test_hostile_names_are_returned_as_text(board, train_run, tmp_path):
    name = '<img src=x onerror="alert(1)">\u202e"]};--'
    train_run(name=name.replace("/", ""), values={name: 1.0})
    client = board()
    (mine,) = client.runs().values()
    assert mine["name"] == name
    assert name in client.series(mine["label"])["all"]


def test_folder_names_that_are_not_utf8_and_huge_numbers_are_returned(board, tmp_path):
    folder = append(tmp_path / "runs" / os.fsdecode(b"run-\xff"), row(1, loss=1.0))
    (folder / "run.json").write_text(json.dumps({"format": 1, "status": "finished", "config": {"seed": 2**80}}))
    client = board()
    ((label, found),) = client.runs().items()
    assert os.fsencode(label) == b"run-\xff"
    assert client.get(f"/api/run/{found['key']}")["run"]["config"]["seed"] == 2**80


def test_runs_in_several_folders_appear_and_disappear(board, tmp_path, quick):
    append(tmp_path / "a" / "one", row(1, loss=1.0))
    append(tmp_path / "b", row(1, loss=1.0))
    client = board(tmp_path / "a", tmp_path / "b")
    assert set(client.runs()) == {"a/one", "b"}
    append(tmp_path / "a" / "deep" / "two", row(1, loss=1.0))
    shutil.rmtree(tmp_path / "b")
    assert set(client.runs()) == {"a/one", "a/deep/two"}


def test_only_changed_runs_are_read_again(tmp_path, train_run, monkeypatch):
    for name in ("one", "two"):
        train_run(name)
    table = _run_table.RunTable([tmp_path / "runs"])
    table.refresh()
    read = []
    monkeypatch.setattr(
        _run_table, "row_of", lambda path, key, label, real=_run_table.row_of: read.append(path.name) or real(path, key, label)
    )
    table.refresh()
    assert read == []
    train_run("two", epochs=3)
    append(tmp_path / "runs" / "three", row(99, loss=1.0))
    table.refresh()
    assert sorted(read) == ["three", "two"]
    append(tmp_path / "runs" / "three", row(100, loss=1.0))
    table.refresh()
    assert sorted(read) == ["three", "three", "two"]


def test_the_stream_reports_curves_events_and_the_end_of_a_run(board, training, quick):
    with training() as run:
        run.epoch()
        client = board()
        assert client.runs()["live"]["status"] == "running"
        with client.stream("live") as message:
            before = message("curves")["version"]
            run.epoch()
            assert message("curves")["version"] > before
            assert message("event")["text"]
            run.end()
            while message("runs")["rows"][0]["status"] == "running":
                pass
        assert client.exact_series("live", name="loss")["curves"]


def test_a_killed_run_is_noticed_without_a_changed_file(board, training, quick, until):
    with training() as run:
        run.epoch()
        client = board()
        assert client.runs()["live"]["status"] == "running"
        run.process.kill()
        run.process.wait()
        assert client.runs()["live"]["status"] == "killed"


def test_curves_of_a_truncated_and_resumed_file_are_correct(board, tmp_path):
    folder = append(tmp_path / "runs" / "mine", *(row(step, loss=float(step)) for step in range(100)))
    client = board()
    assert client.exact_series("mine")["curves"][0]["hi"][-1] == 99.0
    text = (folder / "scalars.jsonl").read_bytes()
    os.truncate(folder / "scalars.jsonl", text.index(b'{"step": 50,'))
    append(folder, *(row(step, loss=-1.0) for step in range(50, 120)))
    (loss,) = client.exact_series("mine")["curves"]
    assert (loss["count"], max(loss["hi"]), loss["lo"][-1]) == (120, 49.0, -1.0)


def test_a_long_file_is_previewed_until_its_curves_are_exact(board, tmp_path, monkeypatch, quick):
    monkeypatch.setattr(_live_curves, "MAX_UNREAD_BYTES", 10_000)
    append(tmp_path / "runs" / "mine", *(row(step, loss=9.0 if step == 500 else 0.5) for step in range(1, 1_001)))
    client = board()
    first = client.series("mine")
    assert (first["preview"], first["exact"]) == (True, False)
    assert first["complete"] < 1
    with client.stream("mine") as message:
        while client.series("mine")["preview"]:
            message("curves")
    (loss,) = client.exact_series("mine")["curves"]
    assert (loss["exact"], loss["count"], max(loss["hi"])) == (True, 1_000, 9.0)
    assert [path.suffix for path in (tmp_path / "cache").iterdir()] == [".index"]
    again = board().exact_series("mine")
    assert (again["preview"], again["exact"]) == (False, True)


def test_nothing_is_written_to_run_folders(board, train_run):
    folder = train_run()
    before = {path: path.stat().st_mtime_ns for path in [folder, *folder.rglob("*")]}
    client = board()
    client.get(f"/api/run/{client.key('mine')}")
    client.series("mine")
    assert {path: path.stat().st_mtime_ns for path in [folder, *folder.rglob("*")]} == before


def test_images_and_histograms_are_served_on_request(board, tmp_path):
    from tensorboard.compat.proto.event_pb2 import Event
    from tensorboard.compat.proto.summary_pb2 import HistogramProto, Summary
    from tensorboard.summary.writer.event_file_writer import EventFileWriter

    folder = append(tmp_path / "runs" / "mine", row(1, loss=1.0))
    image = Summary.Value(tag="a/b", image=Summary.Image(encoded_image_string=b"\x89PNG\r\n\x1a\nrest"))
    script = Summary.Value(tag="evil", image=Summary.Image(encoded_image_string=b"<script>"))
    histogram = Summary.Value(tag="w", histo=HistogramProto(min=0, max=1, num=2, bucket_limit=[1.0], bucket=[2.0]))
    writer = EventFileWriter(str(folder / "tensorboard"))
    for value in (image, script, histogram):
        writer.add_event(Event(step=3, wall_time=3.0, summary=Summary(value=[value])))
    writer.close()
    client = board()
    base = f"/api/run/{client.key('mine')}"
    assert [one["name"] for one in client.get(f"{base}/media")["media"]] == ["a/b", "evil", "w"]
    status, headers, content = client.send("GET", f"{base}/image?name=a%2Fb&step=3")
    assert (status, headers["content-type"], content[:4]) == (200, "image/png", b"\x89PNG")
    assert client.get(f"{base}/histogram?name=w")["counts"] == [2.0]
    for path in ("image?name=evil", "image?name=a%2Fb&step=4", "image?name=../../run.json", "histogram?name=x"):
        client.get(f"{base}/{path}", code=404)


def test_a_new_stream_starts_with_the_current_versions(board, tmp_path, quick):
    append(tmp_path / "runs" / "mine", row(1, loss=1.0))
    client = board()
    table = client.get("/api/runs")["version"]
    with client.stream("mine") as message:
        assert message("state")["table"] == table
        version = message("curves")["version"]
        assert client.exact_series("mine")["version"] == version
    append(tmp_path / "runs" / "other", row(1, loss=1.0))
    client.runs()
    with client.stream("mine") as message:
        assert message("state")["table"] > table


def test_a_run_that_cannot_be_read_does_not_affect_other_runs(board, tmp_path, monkeypatch, quick):
    good, bad = (append(tmp_path / "runs" / name, row(1, loss=1.0)) for name in ("good", "bad"))
    (good / "run.json").write_text(json.dumps({"format": 1, "status": "finished", "step": 1}))
    for config, elapsed in (("[" * 900 + "]" * 900, 1), ("{}", 10**400)):
        text = f'{{"format": 1, "status": "finished", "config": {config}, "elapsed_seconds": {elapsed}}}'
        (bad / "run.json").write_text(text)
        client = board()
        assert client.runs()["good"]["status"] == "finished"
        client.get(f"/api/run/{client.key('bad')}")
        assert set(client.get("/api/settings")["settings"]) == {client.key("good"), client.key("bad")}

    def fails(run, key, label, real=_run_table.row_of):
        if run.path.name == "bad":
            raise RuntimeError("of another kind")
        return real(run, key, label)

    monkeypatch.setattr(_run_table, "row_of", fails)
    monkeypatch.setattr("hookpoint.board._application.details_of", lambda run, events: 1 / 0)
    client = board()
    assert client.runs()["good"]["status"] == "finished"
    found = client.runs()["bad"]
    assert (found["status"], found["reason"]) == ("unknown", "unreadable: RuntimeError: of another kind")
    assert client.get(f"/api/run/{found['key']}", code=500) == b"ZeroDivisionError: division by zero"


def test_a_stream_continues_if_a_run_cannot_be_read(board, tmp_path, monkeypatch, quick):
    for name in ("bad", "good"):
        append(tmp_path / "runs" / name, row(1, loss=1.0))

    def fails(watcher, key, real=_stream_watcher.StreamWatcher._look_at_events):
        if watcher._table.path(key).name == "bad":
            raise RuntimeError("of another kind")
        real(watcher, key)

    monkeypatch.setattr(_stream_watcher.StreamWatcher, "_look_at_events", fails)
    client = board()
    with client.stream("bad", "good") as message:
        message("state")
        event = {"step": 1, "epoch": 1, "time": 2.0, "event": "stop", "reason": "lunch"}
        while not (tmp_path / "runs" / "good" / "events.jsonl").exists():
            while message("curves")["run"] != client.key("good"):
                pass
            (tmp_path / "runs" / "good" / "events.jsonl").write_text(json.dumps(event) + "\n")
        assert message("event")["reason"] == "lunch"
