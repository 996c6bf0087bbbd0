"""WandbMonitor uses the real client, offline; the tests read its files with wandb's own message classes."""

from __future__ import annotations

import json
import logging
import os
import re
import signal
import struct
import subprocess
import sys
import threading
from collections import namedtuple
from types import SimpleNamespace

import numpy
import pytest
import torch

from hookpoint import Loop
from hookpoint.core.loop import loop as core_loop
from hookpoint.monitors import WandbMonitor, wandb_monitor

BLOCK_BYTES = 32768
LAST, FULL = 4, 1

Written = namedtuple("Written", ["run_id", "project", "config", "rows", "summary", "exit_code"])


@pytest.fixture(autouse=True)
def no_account(tmp_path_factory, monkeypatch):
    """Hide the account of the user."""
    home = tmp_path_factory.mktemp("home")
    for name in [name for name in os.environ if name.startswith("WANDB_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setenv("NETRC", str(home / "netrc"))
    monkeypatch.setattr(wandb_monitor, "_warned", set())


def records(path):
    """Yield the messages of a .wandb file, a LevelDB log; wandb 0.31 has no Python reader for it."""
    from wandb.proto import wandb_internal_pb2

    data, position, parts = path.read_bytes(), 7, b""
    assert data[:4] == b":W&B"
    while position + 7 <= len(data):
        left = BLOCK_BYTES - position % BLOCK_BYTES
        if left < 7:
            position += left
            continue
        _, size, kind = struct.unpack("<IHB", data[position : position + 7])
        parts += data[position + 7 : position + 7 + size]
        position += 7 + size
        if kind in (FULL, LAST):
            message = wandb_internal_pb2.Record()
            message.ParseFromString(parts)
            parts = b""
            yield message


def values(items):
    found = {}
    for item in items:
        key, *inner = item.nested_key or [item.key]
        value = json.loads(item.value_json)
        if inner:
            found.setdefault(key, {})[inner[-1]] = value
        else:
            found[key] = value
    return {key: value for key, value in found.items() if not key.startswith("_")}


def written(folder):
    """Return the contents of the wandb runs in a workdir, oldest first."""
    found = []
    for path in sorted(folder.glob("wandb/offline-run-*/*.wandb"), key=lambda path: path.stat().st_mtime):
        config, rows, summary, exit_code, run = {}, {}, {}, None, None
        for message in records(path):
            kind = message.WhichOneof("record_type")
            if kind == "run":
                run = message.run
                config = {one.key: json.loads(one.value_json) for one in run.config.update if one.key != "_wandb"}
            elif kind == "history":
                assert message.history.step.num not in rows
                rows[message.history.step.num] = values(message.history.item)
            elif kind == "summary":
                summary.update(values(message.summary.update))
            elif kind == "exit":
                exit_code = message.exit.exit_code
        found.append(Written(run.run_id, run.project, config, rows, summary, exit_code))
    return found


@pytest.fixture
def go(train_tracked):
    """Train three epochs of four steps in a folder, or until `body` ends the run."""

    def start(folder, body=None, *, monitor=None, **given):
        return train_tracked(monitor or WandbMonitor("mine", mode="offline"), body, workdir=folder, **given)

    return start


ROWS = {
    2: {"loss": 1.5},
    4: {"loss": 3.5, "epoch/loss": 2.5},
    6: {"loss": 0.75},
    8: {"loss": 1.75, "epoch/loss": 1.25},
    10: {"loss": 0.5},
    12: {"loss": 3.5 / 3, "epoch/loss": 2.5 / 3},
}


def assert_rows(found, steps):
    assert list(found) == steps
    for step in steps:
        assert found[step] == pytest.approx(ROWS[step])


# Contents


def test_values_settings_and_exit_code_are_in_the_file(go, tmp_path, capfd, caplog):
    optimizer = SimpleNamespace(param_groups=[{"lr": 0.1, "params": []}])
    monitor = WandbMonitor("mine", mode="offline", params={"seed": 1, "api_key": "abc"})
    hooks = sys.exit, sys.excepthook, signal.getsignal(signal.SIGINT), sys.stdout, sys.stderr
    before, environment = set(threading.enumerate()), dict(os.environ)
    go(tmp_path, monitor=monitor, model=torch.nn.Linear(1, 1), optimizer=optimizer, config={"depth": 18})
    (found,) = written(tmp_path)
    assert found.project == "mine"
    assert_rows(found.rows, [2, 4, 6, 8, 10, 12])
    config = {"lr": 0.1, "world_size": 1, "max_epochs": 3, "depth": 18, "seed": 1, "api_key": "***"}
    assert found.config == config
    assert "step-00000012" in found.summary["hookpoint/save"]
    assert (found.summary["hookpoint/ending"], found.exit_code) == ("finished", 0)

    assert [record for record in caplog.records if record.levelno >= logging.WARNING] == []
    assert capfd.readouterr() == ("", "")
    assert (sys.exit, sys.excepthook, signal.getsignal(signal.SIGINT), sys.stdout, sys.stderr) == hooks
    assert dict(os.environ) == environment
    for thread in set(threading.enumerate()) - before:
        thread.join(10)
        assert not thread.is_alive(), thread
    assert children() == []


def children():
    """Return the commands of this process's wandb children."""
    done = subprocess.run(["ps", "--ppid", str(os.getpid()), "-o", "args="], capture_output=True, text=True, check=False)
    return [line for line in done.stdout.splitlines() if "wandb" in line]


def test_images_histograms_and_texts_are_stored(tmp_path):
    with Loop([WandbMonitor("mine", mode="offline")], workdir=tmp_path, extra_callbacks=[], monitors=[]) as run:
        for _ in run.epochs(1):
            run.put_image("face", numpy.ones((4, 5, 3)))
            run.put_image("two", numpy.zeros((2, 4, 5, 3)))
            run.put_image("../../../../up", numpy.zeros((4, 5)))
            run.put_histogram("weights", [1.0, 2.0, 2.0, float("nan")])
            run.put_histogram("nothing", [float("nan")])
            run.put_text("note", "<b>hello</b>")
            run.put_image("bad", numpy.ones(3))
            run.log(rate=float("inf"))
    ((_, _, _, rows, *_),) = written(tmp_path)
    row = rows[0]
    assert (row["face"]["_type"], row["face"]["width"], row["face"]["height"]) == ("image-file", 5, 4)
    assert (row["two"]["_type"], row["two"]["count"]) == ("images/separated", 2)
    assert (row["weights"]["_type"], sum(row["weights"]["values"])) == ("histogram", 3)
    assert row["rate"] in (float("inf"), "Infinity")
    assert {"nothing", "bad"} & set(row) == set()
    (files,) = tmp_path.glob("wandb/offline-run-*/files")
    assert (files / row["note"]["path"]).read_text() == "<pre>&lt;b&gt;hello&lt;/b&gt;</pre>"
    assert {path.parent for path in tmp_path.rglob("up_*.png")} == {files / "media/images/_/_/_/_"}


# The end of a run


def test_a_failed_and_resumed_run_is_one_wandb_run_with_each_row_once(go, tmp_path):
    def cut(run):
        if run.current_iteration == 7:
            raise ValueError("no https://me:pw@host")

    with pytest.raises(ValueError, match="no https"):
        go(tmp_path, cut)
    go(tmp_path)
    first, second = written(tmp_path)
    assert first.run_id == second.run_id == json.loads((tmp_path / "wandb.json").read_text())["run_id"]
    assert (first.exit_code, first.summary["hookpoint/ending"]) == (1, "ValueError: no https://***@host")
    assert second.exit_code == 0
    assert_rows(first.rows, [2, 4, 6])
    assert_rows(second.rows, [8, 10, 12])


def test_a_fresh_start_after_a_signal_is_a_new_wandb_run(go, tmp_path):
    with pytest.raises(SystemExit):
        go(tmp_path, lambda run: run.step == 3 and os.kill(os.getpid(), signal.SIGTERM))
    go(tmp_path, lambda run: run.stop("MaxSteps: enough"), resume="never")
    first, second = written(tmp_path)
    assert (first.exit_code, first.summary["hookpoint/ending"]) == (255, "SIGTERM")
    assert (second.exit_code, second.summary["hookpoint/ending"]) == (0, "MaxSteps: enough")
    assert first.run_id != second.run_id


KILLED = """
import os, pathlib, signal, sys, time
from hookpoint import Loop
from hookpoint.monitors import WandbMonitor, wandb_monitor

now = 0.0
wandb_monitor.monotonic = lambda: now
with Loop([WandbMonitor(mode="offline")], workdir=sys.argv[1], log_every=2, extra_callbacks=[], monitors=[]) as run:
    for epoch in run.epochs(3):
        for batch in run.batches(range(4)):
            run.log(loss=(batch + 1) / epoch)
        run.monitors.drain()
        if epoch == 2:
            os.kill(os.getpid(), signal.SIGKILL)
        (file,) = pathlib.Path(sys.argv[1]).glob("wandb/offline-run-*/*.wandb")
        while b"loss" not in file.read_bytes():
            time.sleep(0.01)
        now = 10.0  # long after: what is in the file is not sent again
"""


def test_a_run_killed_before_its_first_checkpoint_is_continued(go, tmp_path):
    done = subprocess.run([sys.executable, "-c", KILLED, str(tmp_path)], capture_output=True, text=True, check=False)
    assert done.returncode == -signal.SIGKILL, done.stderr
    go(tmp_path)
    first, second = written(tmp_path)
    assert first.run_id == second.run_id
    assert first.exit_code is None
    assert set(first.rows) | set(second.rows) == set(ROWS)
    assert 2 in first.rows
    assert 2 not in second.rows
    for rows in (first.rows, second.rows):
        assert_rows(rows, list(rows))


# Online or offline


def test_without_an_api_key_the_run_is_offline_and_warns_once(go, tmp_path, caplog):
    for folder in ("a", "b"):
        go(tmp_path / folder, monitor=WandbMonitor(), saves=False, epochs=1)
        assert written(tmp_path / folder)[0].project == "hookpoint"
    messages = [message for message in caplog.messages if "no API key" in message]
    assert messages == [f"WandbMonitor: no API key, writing to {tmp_path}/a/wandb; `wandb sync` can upload the run later"]


def test_an_unreachable_server_makes_the_run_offline(go, tmp_path, caplog):
    settings = {"base_url": "http://127.0.0.1:1", "api_key": "a" * 40, "init_timeout": 1.0}
    assert go(tmp_path, monitor=WandbMonitor("mine", settings=settings), saves=False).step == 12
    (found,) = written(tmp_path)
    assert_rows(found.rows, list(ROWS))
    assert any("wandb is not reachable; writing this run to" in message for message in caplog.messages)
    assert "a" * 40 not in caplog.text
    assert children() == []


def test_online_mode_without_an_api_key_raises_before_the_run(go, tmp_path, caplog):
    monitor = WandbMonitor("mine", mode="online", on_error="raise")
    expected = r"wandb has no API key\.\n  run       wandb login\n  write     mode=\"offline\" instead"
    with pytest.raises(ValueError, match=expected):
        go(tmp_path, monitor=monitor)


@pytest.mark.parametrize(
    ("variables", "netrc", "mode"),
    [
        ({}, "", "offline"),
        ({"WANDB_API_KEY": "x"}, "", "online"),
        ({}, "machine api.wandb.ai login user password x", "online"),
        ({}, "machine example.org login user password x", "offline"),
        ({}, "what is this", "offline"),
        ({"WANDB_BASE_URL": "https://example.org"}, "machine example.org login user password x", "online"),
        ({"WANDB_API_KEY": "x", "WANDB_MODE": "offline"}, "", "offline"),
        ({"WANDB_MODE": "online"}, "", "online"),
    ],
)
def test_the_mode_depends_on_wandbs_variables_and_the_api_key(variables, netrc, mode, monkeypatch):
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    with open(os.environ["NETRC"], "w") as file:
        file.write(netrc)
    os.chmod(os.environ["NETRC"], 0o600)
    assert WandbMonitor().current_mode() == mode


def test_nothing_is_written_if_wandb_is_disabled(go, tmp_path, monkeypatch):
    monkeypatch.setenv("WANDB_MODE", "disabled")
    go(tmp_path, monitor=WandbMonitor(), saves=False)
    assert not (tmp_path / "wandb").exists()


def test_other_wandb_runs_are_not_touched(go, tmp_path):
    import wandb

    quiet = wandb.Settings(console="off", silent=True, x_disable_stats=True)
    hooks = sys.exit, sys.excepthook
    mine = wandb.init(project="own", dir=str(tmp_path), mode="offline", settings=quiet)
    try:
        go(tmp_path / "ours", saves=False, epochs=1)
        assert wandb.run is mine
        mine.log({"x": 1}, step=1)
    finally:
        mine.finish()
        wandb.teardown()
        sys.exit, sys.excepthook = hooks
    assert written(tmp_path)[0].rows == {1: {"x": 1}}
    assert_rows(written(tmp_path / "ours")[0].rows, [2, 4])


# Failures


def test_without_a_workdir_a_warning_is_logged(go, caplog):
    assert go(None, saves=False).step == 12
    assert "WandbMonitor does nothing without a workdir, where wandb stores its data" in caplog.messages


def test_a_validation_outside_a_run_is_not_written(tmp_path):
    with core_loop.Loop([WandbMonitor(mode="offline")], workdir=tmp_path, run_points=False) as run:
        for _ in run.batches(range(2), mode="val"):
            run.log(loss=1.0)
    assert list(tmp_path.iterdir()) == []


def test_without_wandb_the_error_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "wandb", None)
    message = "WandbMonitor needs wandb, which is not installed.\n  run       pip install 'hookpoint[wandb]'"
    with pytest.raises(ImportError, match=f"^{re.escape(message)}$"):
        WandbMonitor()


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"project": ""}, "project must be a name, got ''."),
        ({"entity": 7}, "entity must be a name, got 7."),
        ({"mode": "shared"}, "unknown mode 'shared'.\n  choose    'offline', 'online'"),
        ({"params": "x"}, "params must be a dict, got 'x'."),
    ],
)
def test_invalid_arguments_raise(given, message):
    with pytest.raises((TypeError, ValueError), match=re.escape(message)):
        WandbMonitor(**given)


def test_an_unknown_wandb_setting_raises_before_the_run(go, tmp_path):
    with pytest.raises(ValueError, match="nonsense"):
        go(tmp_path, monitor=WandbMonitor(mode="offline", settings={"nonsense": 1}, on_error="raise"))
