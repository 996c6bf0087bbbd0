"""run.json describes a run, however the run ends."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import textwrap
from argparse import Namespace
from dataclasses import dataclass

import pytest

from hookpoint import Callback, Loop, StopRun, on
from hookpoint import callbacks as cb
from hookpoint.core.errors import BadLoop
from hookpoint.storage.run_file import read_run_file
from hookpoint.storage.workdir.lock import holder_of


def train(workdir, callbacks=(), epochs=2, leave_after=None, **options):
    with Loop(callbacks, workdir=workdir, name="mine", extra_callbacks=[], monitors=[], **options) as run:
        for epoch in run.epochs(epochs):
            for batch in run.batches([1.0, 3.0]):
                run.log(loss=batch / epoch)
            if epoch == leave_after:
                break
    return run


def test_run_json_has_all_facts_of_a_finished_run(tmp_path):
    train(tmp_path, [cb.MinSaver("loss")])
    contents = read_run_file(tmp_path)
    assert contents["name"] == "mine"
    assert (contents["status"], contents["reason"]) == ("finished", "")
    assert (contents["epochs"], contents["epoch"], contents["epochs_done"], contents["step"], contents["samples"]) == (
        2,
        2,
        2,
        4,
        4,
    )
    assert contents["metrics"]["loss"] == 1.0
    assert contents["best"] == {"loss": {"mode": "min", "value": 1.0, "epoch": 2, "iteration": 4, "step": 4}}
    assert contents["callbacks"] == ["MinSaver(loss)"]
    assert contents["started"] <= contents["ended"]
    assert contents["pid"] == os.getpid()
    assert contents["identity"]["python"] == ".".join(map(str, sys.version_info[:3]))
    assert holder_of(tmp_path) is None


def test_a_run_in_progress_is_running_and_held_by_its_process(tmp_path):
    class Look(Callback):
        def on_iter_end(self, run):
            seen.append((read_run_file(tmp_path)["status"], read_run_file(tmp_path)["epochs"], holder_of(tmp_path).pid))

    seen = []
    train(tmp_path, [Look()], epochs=1)
    assert seen == [("running", 1, os.getpid())] * 2


@pytest.mark.parametrize("way", ["stop", "StopRun", "left"])
def test_a_stopped_run_states_its_reason(tmp_path, way):
    class Stop(Callback):
        def on_epoch_end(self, run):
            if way == "stop":
                run.stop("enough")
            elif way == "StopRun":
                raise StopRun("enough")

    train(tmp_path, [Stop()], leave_after=1)
    contents = read_run_file(tmp_path)
    assert contents["status"] == "stopped"
    assert contents["reason"] == ("the loop ended after 1 of 2 epochs" if way == "left" else "enough")


@pytest.mark.parametrize("point", ["on_setup", "on_run_begin", "on_iter_end", "on_epoch_end", "on_run_end"])
def test_a_failed_run_states_its_error(tmp_path, point):
    def fail(self):
        raise RuntimeError("no more")

    with pytest.raises(RuntimeError, match="no more"):
        train(tmp_path, [type("Fail", (Callback,), {point: fail})()])
    contents = read_run_file(tmp_path)
    assert (contents["status"], contents["reason"]) == ("failed", "RuntimeError: no more")


def test_a_metric_that_is_never_logged_fails_a_run_of_several_epochs(tmp_path):
    with pytest.raises(KeyError):
        train(tmp_path, [cb.MinSaver("score")])
    assert read_run_file(tmp_path)["status"] == "failed"
    train(tmp_path, [cb.MinSaver("score")], epochs=1)
    assert read_run_file(tmp_path)["status"] == "finished"


def test_a_resumed_run_keeps_its_start_and_lists_the_resume(tmp_path):
    train(tmp_path, [cb.ModelSaver()], epochs=1)
    first = read_run_file(tmp_path)
    train(tmp_path, [cb.ModelSaver()], epochs=3)
    contents = read_run_file(tmp_path)
    assert contents["started"] == first["started"]
    assert len(contents["resumed"]) == 1
    assert (contents["status"], contents["epochs_done"]) == ("finished", 3)


def test_a_fresh_run_moves_the_earlier_run_to_previous(tmp_path):
    train(tmp_path, epochs=1)
    train(tmp_path, epochs=2)
    assert read_run_file(tmp_path)["resumed"] == []
    assert read_run_file(tmp_path / "previous" / "001")["epochs"] == 1


@dataclass
class Settings:
    depth: int = 3
    api_key: str = "abc"


@pytest.mark.parametrize(
    "config",
    [{"depth": 3, "api_key": "abc"}, Settings(), Namespace(depth=3, api_key="abc")],
    ids=["dict", "dataclass", "namespace"],
)
def test_secrets_in_config_are_masked_in_the_file_only(tmp_path, config):
    run = train(tmp_path, epochs=1, config=config)
    assert read_run_file(tmp_path)["config"] == {"depth": 3, "api_key": "***"}
    assert run.config == {"depth": 3, "api_key": "abc"}


def test_secrets_in_an_error_are_masked_in_files(tmp_path):
    @on("on_epoch_end")
    def fetch(run):
        raise ConnectionError("no answer from https://me:abc@host/data?token=def")

    with pytest.raises(ConnectionError, match="abc"):
        train(tmp_path, [fetch, cb.JSONWriter()])
    message = "no answer from https://***@host/data?token=***"
    assert read_run_file(tmp_path)["reason"] == f"ConnectionError: {message}"
    events = map(json.loads, (tmp_path / "events.jsonl").read_text().splitlines())
    assert [event["text"] for event in events if event["event"] == "exception"] == [message]


@pytest.mark.parametrize("config", [3, "depth=3", Settings])
def test_a_config_of_an_unsupported_type_raises(config):
    with pytest.raises(BadLoop, match="config must be a dict"):
        Loop(config=config)


def test_config_values_that_json_does_not_know_are_converted(tmp_path):
    train(tmp_path, epochs=1, config={"inf": float("inf"), "type": int, "set": {1}, "nested": {1: (2.5, None)}})
    assert read_run_file(tmp_path)["config"] == {
        "inf": "inf",
        "type": "<class 'int'>",
        "set": [1],
        "nested": {"1": [2.5, None]},
    }


def test_without_a_workdir_no_file_is_written_and_nothing_is_logged(tmp_path, monkeypatch, caplog):
    monkeypatch.chdir(tmp_path)
    train(None, config={"depth": 3})
    assert not list(tmp_path.iterdir())
    assert not caplog.records


def test_a_run_continues_if_its_file_cannot_be_written(tmp_path, caplog):
    class Block(Callback):
        def on_setup(self):
            (tmp_path / "run.json").unlink()
            (tmp_path / "run.json").mkdir()

    train(tmp_path, [Block()])
    assert "the record of mine could not be written" in caplog.text


SCRIPT = """
    import os, sys, time
    from hookpoint import Loop

    with Loop(workdir=sys.argv[1], extra_callbacks=[], monitors=[]) as run:
        for epoch in run.epochs(1):
            for batch in run.batches(range(10_000)):
                if batch == 0:
                    print("training", flush=True)
                time.sleep(0.01)
"""


@pytest.mark.parametrize(
    ("number", "status", "reason"),
    [
        (signal.SIGTERM, "stopped", "SIGTERM was received"),
        (signal.SIGINT, "stopped", "SIGINT was received"),
        (signal.SIGKILL, "running", ""),
    ],
)
def test_run_json_records_how_a_signal_ended_the_run(tmp_path, number, status, reason):
    command = [sys.executable, "-c", textwrap.dedent(SCRIPT), str(tmp_path), "--token", "abc"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        process.stdout.readline()
        assert holder_of(tmp_path).pid == process.pid
        process.send_signal(number)
        process.communicate(timeout=250)
    contents = json.loads((tmp_path / "run.json").read_text())
    assert (contents["status"], contents["reason"]) == (status, reason)
    assert contents["command"].endswith("--token '***'")
    assert holder_of(tmp_path) is None
