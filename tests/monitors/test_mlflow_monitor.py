"""MLflowMonitor writes to a real database, which the tests read with MLflow's client."""

from __future__ import annotations

import json
import logging
import math
import os
import re
import signal
import subprocess
import sys
import threading
from types import SimpleNamespace

import numpy
import pytest
import torch

from hookpoint import Loop
from hookpoint.core.loop import loop as core_loop
from hookpoint.monitors import MLflowMonitor
from hookpoint.monitors.mlflow_monitor import load, metric_name


@pytest.fixture(scope="module")
def uri(tmp_path_factory):
    """One database for all tests: creating one takes a second."""
    return f"sqlite:///{tmp_path_factory.mktemp('mlflow')}/mlflow.db"


@pytest.fixture
def client(uri):
    load(uri)
    from mlflow import MlflowClient

    return MlflowClient(uri)


@pytest.fixture
def go(uri, tmp_path, train_tracked):
    """Train three epochs of four steps in tmp_path, or until `body` ends the run."""

    def start(body=None, *, monitor=None, **given):
        return train_tracked(monitor or MLflowMonitor(uri), body, **{"workdir": tmp_path, **given})

    return start


def run_id(folder):
    return json.loads((folder / "mlflow.json").read_text())["run_id"]


def history(client, found, name):
    return [(metric.step, metric.value) for metric in client.get_metric_history(found.info.run_id, name)]


LOSS = [(2, 1.5), (4, 3.5), (6, 0.75), (8, 1.75), (10, 0.5), (12, 3.5 / 3)]
EPOCH_LOSS = [(4, 2.5), (8, 1.25), (12, 2.5 / 3)]


def assert_whole(client, found):
    for name, expected in (("loss", LOSS), ("epoch/loss", EPOCH_LOSS)):
        steps, values = zip(*history(client, found, name), strict=True)
        assert steps == tuple(step for step, _ in expected)
        assert values == pytest.approx([value for _, value in expected])


# Contents


def test_values_settings_and_status_are_in_the_database(go, client, tmp_path, uri, capfd, caplog):
    optimizer = SimpleNamespace(param_groups=[{"lr": 0.1, "betas": (0.9, 0.99), "params": []}])
    monitor = MLflowMonitor(uri, experiment="mine", params={"seed": 1, "api_key": "abc", "db": "postgres://me:pw@host/x"})
    go(monitor=monitor, name="a run", model=torch.nn.Linear(1, 1), optimizer=optimizer, config={"depth": 18})
    found = client.get_run(run_id(tmp_path))
    assert found.info.run_name == "a run"
    assert found.info.status == "FINISHED"
    assert client.get_experiment(found.info.experiment_id).name == "mine"
    assert_whole(client, found)
    assert found.data.params == {
        "lr": "0.1",
        "betas": "(0.9, 0.99)",
        "world_size": "1",
        "max_epochs": "3",
        "depth": "18",
        "seed": "1",
        "api_key": "***",
        "db": "postgres://***@host/x",
    }
    assert found.data.tags["hookpoint.workdir"] == str(tmp_path)
    assert found.data.tags["hookpoint.ending"] == "finished"
    assert "step-00000012" in found.data.tags["hookpoint.save"]
    assert [record for record in caplog.records if record.levelno >= logging.WARNING] == []
    assert capfd.readouterr() == ("", "")


def test_metrics_have_the_times_of_the_records(go, client, tmp_path):
    go(epochs=1)
    metrics = client.get_metric_history(run_id(tmp_path), "loss")
    found = client.get_run(run_id(tmp_path))
    assert all(abs(metric.timestamp - found.info.end_time) < 60_000 for metric in metrics)


def test_validation_values_single_values_and_non_finite_values_are_stored(uri, client, tmp_path):
    with Loop([MLflowMonitor(uri)], workdir=tmp_path, extra_callbacks=[], monitors=[]) as run:
        for _ in run.epochs(1):
            for _ in run.batches([1, 2]):
                run.log(loss=1.0)
            for _ in run.batches([1], mode="val"):
                run.log(loss=math.nan)
            run.log({"rate": math.inf, "odd@name?": 1.0, "../../up": 2.0, "/root": 3.0, "x" * 300: 4.0})
    metrics = client.get_run(run_id(tmp_path)).data.metrics
    assert math.isnan(metrics.pop("val_loss"))
    assert metrics == {
        "epoch/loss": 1.0,
        "rate": sys.float_info.max,
        "odd_name_": 1.0,
        "_./_./up": 2.0,
        "_/root": 3.0,
        "x" * 250: 4.0,
    }


def test_metrics_that_collide_in_mlflow_are_reported_once(go, caplog):
    go(lambda run: run.log({"error@1": 0.25, "error#1": 0.5}), epochs=1)
    assert [message for message in caplog.messages if "one metric" in message] == [
        "MLflow stores 'error#1', 'error@1' as one metric, error_1; rename all but one",
        "MLflow stores 'epoch/error#1', 'epoch/error@1' as one metric, epoch/error_1; rename all but one",
    ]


@pytest.mark.parametrize("name", ["", ".", "..", "/", "a/", "//", "a//b", "./x", "snow ☃", "x" * 300, "a\nb", "$(id)"])
def test_every_name_is_converted_to_a_valid_mlflow_name(name):
    from mlflow.utils.validation import _validate_metric_name

    _validate_metric_name(metric_name(name))


def test_images_and_texts_are_artifacts(uri, client, tmp_path):
    with Loop([MLflowMonitor(uri)], workdir=tmp_path, extra_callbacks=[], monitors=[]) as run:
        for _ in run.epochs(1):
            run.put_text("../no/te", "hello\nthere")
            run.put_image("face", numpy.ones((4, 5, 3)))
            run.put_image("two", numpy.zeros((2, 4, 5, 3)))
            run.put_histogram("weights", [1.0, 2.0])
    found = run_id(tmp_path)
    (folder,) = client.list_artifacts(found, "text")
    (note,) = client.list_artifacts(found, folder.path)
    with open(client.download_artifacts(found, note.path, str(tmp_path))) as file:
        assert file.read() == "hello\nthere"
    pictures = [one.path for one in client.list_artifacts(found, "images") if one.path.endswith(".png")]
    assert sorted(path.partition("+")[0] for path in pictures) == ["images/face", "images/two", "images/two-1"]
    from PIL import Image

    face = next(path for path in pictures if "face" in path)
    with Image.open(client.download_artifacts(found, face, str(tmp_path))) as image:
        assert (image.size, image.getpixel((0, 0))) == ((5, 4), (255, 255, 255))


def test_an_invalid_image_does_not_block_other_records(uri, client, tmp_path, caplog):
    with Loop([MLflowMonitor(uri)], workdir=tmp_path, extra_callbacks=[], monitors=[]) as run:
        for _ in run.epochs(1):
            run.put_image("bad", numpy.ones(3))
            run.put_text("note", "hello")
            run.log(rate=1.0)
    assert client.get_run(run_id(tmp_path)).data.metrics == {"rate": 1.0}
    assert client.list_artifacts(run_id(tmp_path), "text")
    assert any("image 'bad' has shape (3,)" in message for message in caplog.messages)


def test_without_an_address_a_database_in_the_workdir_is_used(go, tmp_path, monkeypatch):
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    monkeypatch.chdir(tmp_path)
    go(monitor=MLflowMonitor(), workdir="mine", epochs=1, saves=False)
    from mlflow import MlflowClient

    client = MlflowClient(f"sqlite:///{tmp_path}/mine/mlflow.db")
    assert client.get_run(run_id(tmp_path / "mine")).data.metrics == {"loss": 3.5, "epoch/loss": 2.5}
    assert [path.name for path in tmp_path.iterdir()] == ["mine"]
    assert {"mlflow.db", "mlflow.json"} <= {path.name for path in (tmp_path / "mine").iterdir()}


def test_mlflows_environment_variables_are_used(go, uri, client, tmp_path, monkeypatch):
    monkeypatch.setenv("MLFLOW_TRACKING_URI", uri)
    monkeypatch.setenv("MLFLOW_EXPERIMENT_NAME", "theirs")
    go(monitor=MLflowMonitor(), epochs=1)
    assert client.get_experiment(client.get_run(run_id(tmp_path)).info.experiment_id).name == "theirs"


# The end of a run


def test_a_failed_run_is_marked_failed(go, client, tmp_path):
    def fail(run):
        raise ValueError("no https://me:pw@host")

    with pytest.raises(ValueError, match="no https"):
        go(fail)
    found = client.get_run(run_id(tmp_path))
    assert found.info.status == "FAILED"
    assert found.data.tags["hookpoint.ending"] == "ValueError: no https://***@host"


def test_a_run_ended_by_a_signal_is_marked_killed(go, client, tmp_path):
    with pytest.raises(SystemExit):
        go(lambda run: run.step == 3 and os.kill(os.getpid(), signal.SIGTERM))
    found = client.get_run(run_id(tmp_path))
    assert (found.info.status, found.data.tags["hookpoint.ending"]) == ("KILLED", "SIGTERM")


def test_a_stopped_run_is_marked_finished_with_the_reason(go, client, tmp_path):
    go(lambda run: run.stop("MaxSteps: enough"))
    found = client.get_run(run_id(tmp_path))
    assert (found.info.status, found.data.tags["hookpoint.ending"]) == ("FINISHED", "MaxSteps: enough")
    assert found.data.tags["hookpoint.stop"].endswith("reason=MaxSteps: enough")


# Resume


def drain(run):
    if run.current_iteration == 3:
        run.monitors.drain()  # so that the checkpoint contains the run id


@pytest.mark.parametrize("lost", [None, "file", "state"])
def test_a_resumed_run_continues_the_same_mlflow_run(cut_off, go, uri, client, tmp_path, lost):
    with pytest.raises(cut_off):
        go(drain, cut_at=7, monitor=MLflowMonitor(uri, name="other" if lost == "state" else None))
    before = run_id(tmp_path)
    if lost == "file":
        (tmp_path / "mlflow.json").unlink()
    go(monitor=MLflowMonitor(uri, params={"late": 1}))
    assert run_id(tmp_path) == before
    found = client.get_run(before)
    assert (found.info.status, found.data.tags["hookpoint.ending"]) == ("FINISHED", "finished")
    assert found.data.params["late"] == "1"
    assert_whole(client, found)


def test_an_extended_run_continues_the_same_mlflow_run(go, client, tmp_path):
    go(epochs=2)
    before = run_id(tmp_path)
    go(epochs=3)
    assert run_id(tmp_path) == before
    assert_whole(client, client.get_run(before))


def test_a_fresh_run_in_the_same_folder_creates_a_new_mlflow_run(go, tmp_path):
    go(epochs=1)
    before = run_id(tmp_path)
    go(epochs=1, resume="never")
    assert run_id(tmp_path) != before


def test_a_fresh_run_after_a_killed_saved_run_creates_a_new_mlflow_run(go, tmp_path):
    go(epochs=1)
    state = json.loads((tmp_path / "mlflow.json").read_text())
    (tmp_path / "mlflow.json").write_text(json.dumps({**state, "is_over": False}))  # as after a kill
    go(epochs=1, resume="never")
    assert run_id(tmp_path) != state["run_id"]


def test_a_deleted_mlflow_run_is_replaced(go, client, tmp_path, caplog):
    go(epochs=1)
    before = run_id(tmp_path)
    client.delete_run(before)
    go(epochs=2)
    assert run_id(tmp_path) != before
    assert f"MLflow no longer has run {before}; creating a new one" in caplog.messages


KILLED = """
import os, signal, sys
from hookpoint import Loop
from hookpoint.monitors import MLflowMonitor

with Loop([MLflowMonitor(sys.argv[1])], workdir=sys.argv[2], log_every=2, extra_callbacks=[], monitors=[]) as run:
    for epoch in run.epochs(3):
        for batch in run.batches(range(4)):
            run.log(loss=(batch + 1) / epoch)
        if epoch == 2:
            run.monitors.drain()
            os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_run_killed_before_its_first_checkpoint_is_continued(go, uri, client, tmp_path):
    done = subprocess.run([sys.executable, "-c", KILLED, uri, str(tmp_path)], capture_output=True, text=True, check=False)
    assert done.returncode == -signal.SIGKILL, done.stderr
    before = run_id(tmp_path)
    assert client.get_run(before).info.status == "RUNNING"
    go()
    assert run_id(tmp_path) == before
    found = client.get_run(before)
    assert found.info.status == "FINISHED"
    assert_whole(client, found)


# Failures


def test_an_unreachable_server_is_reported_and_not_retried(go, tmp_path, monkeypatch, caplog):
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    monkeypatch.delenv("MLFLOW_HTTP_REQUEST_TIMEOUT", raising=False)
    monitor = MLflowMonitor("http://me:pw@127.0.0.1:1")
    assert go(lambda run: run.step and run.monitors.drain(), monitor=monitor).step == 12
    assert any("nothing more is sent in this run" in message for message in caplog.messages)
    assert "me:pw" not in caplog.text
    assert "During handling" not in caplog.text
    assert "MLFLOW_HTTP_REQUEST_TIMEOUT" not in os.environ
    assert os.environ["MLFLOW_HTTP_REQUEST_MAX_RETRIES"] == "0"


def test_no_threads_or_environment_variables_are_left_behind(go, tmp_path):
    before, environment = set(threading.enumerate()), dict(os.environ)
    go(epochs=1)
    for thread in set(threading.enumerate()) - before:
        thread.join(10)
        assert not thread.is_alive(), thread
    assert dict(os.environ) == environment


def test_without_a_workdir_and_an_address_a_warning_is_logged(go, monkeypatch, caplog):
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    assert go(monitor=MLflowMonitor(), workdir=None, saves=False).step == 12
    assert caplog.messages.count("MLflowMonitor does nothing without a workdir or a tracking_uri") == 1


def test_a_validation_outside_a_run_is_not_sent(uri, tmp_path):
    with core_loop.Loop([MLflowMonitor(uri)], workdir=tmp_path, run_points=False) as run:
        for _ in run.batches(range(2), mode="val"):
            run.log(loss=1.0)
    assert list(tmp_path.iterdir()) == []


def test_without_mlflow_the_error_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "mlflow", None)
    message = "MLflowMonitor needs MLflow, which is not installed.\n  run       pip install 'hookpoint[mlflow]'"
    with pytest.raises(ImportError, match=f"^{re.escape(message)}$"):
        MLflowMonitor()


def test_without_sqlalchemy_the_error_says_what_to_install(uri, monkeypatch):
    monkeypatch.setitem(sys.modules, "sqlalchemy", None)
    with pytest.raises(ImportError, match=r"database needs sqlalchemy: pip install 'hookpoint\[mlflow\]'"):
        load(uri)


@pytest.mark.parametrize("uri", ["file:///tmp/x", "mlruns", "./mlruns"])
def test_file_uris_raise(uri):
    with pytest.raises(ValueError, match=r"MLflow no longer stores runs in files\.\n  write     tracking_uri=\"sqlite:"):
        MLflowMonitor(uri)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"tracking_uri": ""}, "tracking_uri must be an address, got ''."),
        ({"tracking_uri": 7}, "tracking_uri must be an address, got 7."),
        ({"experiment": " "}, "experiment must be a name, got ' '."),
        ({"params": [1]}, "params must be a dict, got [1]."),
    ],
)
def test_invalid_arguments_raise(given, message):
    with pytest.raises((TypeError, ValueError), match=re.escape(message)):
        MLflowMonitor(**given)
