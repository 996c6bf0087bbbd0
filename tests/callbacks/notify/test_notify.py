"""Notify with the real Apprise and real servers that answer, fail and hang."""

from __future__ import annotations

import os
import pickle
import re
import shlex
import signal
import socket
import sys

import pytest

from hookpoint import Callback, Every, Hooks
from hookpoint.callbacks import MaxSteps, ModelSaver, Notify, StopAtThreshold
from hookpoint.callbacks.notify import _sender, notify
from hookpoint.core.errors import NoTrigger


@pytest.fixture(autouse=True)
def typed(monkeypatch):
    monkeypatch.setattr(sys, "orig_argv", ["/usr/bin/python3", "train.py", "--name", "it's", "--token", "abc"])


def titles(server):
    return [one["title"] for one in server.got]


ROWS = [{"score": 0.5}, {"score": 0.25}, {"score": 0.75}]


class Fails(Callback):
    def on_trigger(self, run):
        if run.epoch == 2:
            raise ValueError("no \x1b[31mluck with https://me:pw@host")


# Messages


def test_start_best_values_and_end_are_reported(train_on_disk, server, tmp_path, caplog):
    train_on_disk([Notify(server.url, best="score", mode="max", minutes_between=0)], ROWS, name="my; run", workdir=tmp_path)
    assert titles(server) == [
        "my; run: started",
        "my; run: score is 0.5, the best so far",
        "my; run: score is 0.75, the best so far (previously 0.5)",
        "my; run: finished",
    ]
    assert [one["type"] for one in server.got] == ["info", "success", "success", "success"]
    lines = server.got[-1]["message"].splitlines()
    assert lines[0] == "best score 0.75, at step 9"
    assert re.fullmatch(r"epoch 3/3, step 9, after \d+:\d\d", lines[2])
    assert lines[3:] == [f"workdir {tmp_path}", "", "score  0.75"]
    assert [message for message in caplog.messages if "Notify" in message] == []


def test_best_values_within_minutes_between_are_not_reported(train_on_disk, server):
    train_on_disk([Notify(server.url, on="best", best="score", mode="min")], [{"score": 1 / n} for n in range(1, 6)])
    assert titles(server) == ["run: score is 1, the best so far"]


def test_the_next_message_counts_the_best_values_in_between(train_on_disk, server, monkeypatch):
    times = iter([0.0, 10.0, 20.0, 61.0])
    monkeypatch.setattr(notify, "monotonic", lambda: next(times))
    callback = Notify(server.url, on="best", best="score", mode="min", minutes_between=1)
    train_on_disk([callback], [{"score": 1 / n} for n in range(1, 5)])
    assert titles(server) == [
        "run: score is 1, the best so far",
        "run: score is 0.25, the best so far (previously 0.33333)",
    ]
    assert server.got[1]["message"].startswith("3 new bests since the last message\n\nepoch 4/4")


def test_nan_is_not_a_best_value_but_zero_is(train_on_disk, server):
    rows = [{"score": float("nan")}, {"score": 0.5}, {"score": 0.0}]
    train_on_disk([Notify(server.url, on="best", best="score", mode="min", minutes_between=0)], rows)
    assert titles(server) == ["run: score is 0.5, the best so far", "run: score is 0, the best so far (previously 0.5)"]


def test_a_failure_reports_the_error_and_how_to_resume(train_on_disk, server):
    with pytest.raises(ValueError, match="luck"):
        train_on_disk([Notify(server.url), ModelSaver(), Fails()], ROWS)
    assert titles(server) == ["run: started", "run: failed: ValueError"]
    assert server.got[1]["type"] == "failure"
    lines = server.got[1]["message"].splitlines()
    assert lines[0] == "ValueError: no ?[31mluck with https://***@host"
    assert lines[1].startswith("in callback Fails at on_epoch_end")
    python = os.path.basename(sys.executable)
    command = shlex.join([python, "train.py", "--name", "it's", "--token", "***"])
    assert f"resume with: cd {shlex.quote(os.getcwd())} && {command}" in lines
    assert "abc" not in server.got[1]["message"]


def test_a_failure_before_the_first_checkpoint_says_how_to_start_over(train_on_disk, server):
    with pytest.raises(ValueError, match="luck"):
        train_on_disk([Notify(server.url), Fails()], ROWS)
    assert "\nstart over with: cd " in server.got[1]["message"]


def test_a_stop_reports_the_callback_and_the_reason(train_on_disk, server):
    train_on_disk([Notify(server.url), StopAtThreshold("score", 0.25, "max")], ROWS)
    assert titles(server) == ["run: started", "run: stopped"]
    assert server.got[1]["message"].startswith("StopAtThreshold(score): ")
    assert server.got[1]["type"] == "warning"


def test_a_run_that_reaches_max_steps_is_finished(train_on_disk, server):
    train_on_disk([Notify(server.url), MaxSteps(4)], ROWS)
    assert titles(server) == ["run: started", "run: finished"]


def test_a_stop_reason_is_sanitized(train_on_disk, server):
    class Stops(Callback):
        def on_train_iter_end(self, run):
            run.stop("\x1b[31m see https://me:pw@host")

    train_on_disk([Notify(server.url, on="stop"), Stops()], ROWS)
    assert server.got[0]["message"].startswith("?[31m see https://***@host\n")


@pytest.mark.parametrize("on", [("stop",), ("end",)])
def test_a_signal_is_reported_as_a_stop(train_on_disk, server, on):
    class Sends(Callback):
        def on_train_iter_end(self, run):
            if run.step == 4:
                os.kill(os.getpid(), signal.SIGTERM)

    with pytest.raises(SystemExit):
        train_on_disk([Notify(server.url, on=on), Sends()], ROWS)
    assert titles(server) == ["run: stopped"]
    assert server.got[0]["message"].startswith("SIGTERM was received\n")


def test_a_keyboard_interrupt_is_reported_as_a_stop(train_on_disk, server):
    class Interrupts(Callback):
        def on_train_iter_end(self, run):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train_on_disk([Notify(server.url, on="end"), Interrupts()], ROWS)
    assert titles(server) == ["run: stopped by KeyboardInterrupt"]


@pytest.mark.parametrize(
    ("on", "expected"),
    [
        ("start", ["run: started"]),
        (["end"], ["run: finished"]),
        (("failure", "stop"), []),
        (("best", "end"), ["run: finished"]),
    ],
)
def test_only_requested_events_are_reported(train_on_disk, server, on, expected):
    train_on_disk([Notify(server.url, on=on)], ROWS)
    assert titles(server) == expected


def test_a_resumed_run_says_so_and_remembers_its_best_value(train_on_disk, server):
    def once(rows):
        train_on_disk([Notify(server.url, best="score", mode="min", minutes_between=0), ModelSaver()], rows)

    once(ROWS[:2])
    server.got.clear()
    once([*ROWS, {"score": 0.125}])
    assert titles(server) == ["run: resumed", "run: score is 0.125, the best so far (previously 0.25)", "run: finished"]


def test_a_second_run_forgets_the_best_value(train_on_disk, server, disk):
    callback = pickle.loads(pickle.dumps(Notify(server.url, on="best", best="score", mode="min", minutes_between=0)))
    train_on_disk([callback], ROWS, store=None)
    train_on_disk([callback], [{"score": 9.0}], store=None)
    assert titles(server)[-1] == "run: score is 9, the best so far"


def test_requested_metrics_are_listed_in_a_table(train_on_disk, server):
    row = {"loss": 1 / 3, "a longer name": 2.0, "bad\n\x1b[31m": 1.0}
    train_on_disk([Notify(server.url, on="end", names=["a longer name", "loss", "missing"])], [row])
    assert server.got[0]["message"].endswith("\n\na longer name  2\nloss           0.33333")
    train_on_disk([Notify(server.url, on="end")], [row, row])
    assert server.got[1]["message"].endswith("bad??[31m      1")


def test_more_than_20_metrics_are_cut_off(train_on_disk, server):
    train_on_disk([Notify(server.url, on="end")], [{f"m{number}": 0.0 for number in range(25)}])
    assert server.got[0]["message"].endswith("m19  0\nand 5 more")


# Failures


def test_a_failing_server_is_named_once_and_the_run_continues(train_on_disk, server, caplog):
    server.code = 500
    assert train_on_disk([Notify(server.url)], ROWS).step == 9
    assert [message for message in caplog.messages if "Notify" in message] == [
        "Notify: Apprise did not deliver a message: FAILURE; the run continues. Later failures of this kind are not logged",
        "Notify: messages lost: 2 failed",
    ]


def test_a_hanging_server_does_not_delay_the_run(train_on_disk, monkeypatch, caplog):
    monkeypatch.setattr(_sender, "WAIT_SECONDS", 0.01)
    with socket.create_server(("127.0.0.1", 0)) as hangs:
        assert train_on_disk([Notify(f"json://127.0.0.1:{hangs.getsockname()[1]}/?rto=1")], ROWS).step == 9
    assert "Notify: messages lost: 2 not sent before the run ended" in caplog.messages


def test_a_schedule_without_best_raises():
    with pytest.raises(NoTrigger):
        Hooks([Notify("json://127.0.0.1:1/").when(Every(steps=1))])


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"on": "epoch"}, "Notify: on must be 'start', 'end', 'failure', 'stop' or 'best', got 'epoch'."),
        ({"on": ()}, "Notify: on must be 'start', 'end', 'failure', 'stop' or 'best', got ()."),
        ({"best": "score"}, "is ambiguous"),
        ({"best": ""}, "best"),
        ({"minutes_between": -1}, "Notify: minutes_between must be a finite number >= 0, got -1."),
        ({"timeout_seconds": 0}, "timeout_seconds"),
        ({"url": "json://example.org"}, "Notify: 'json://...' is not encrypted."),
        ({"url": "nonsense://me:pw@host"}, "Notify: Apprise has no service for 'nonsense:...'"),
        ({"url": ""}, "Notify: url must be a URL or a list of URLs."),
    ],
)
def test_invalid_arguments_raise(given, words):
    with pytest.raises(ValueError, match=re.escape(words)):
        Notify(**{"url": "json://localhost", **given})


def test_without_apprise_the_error_says_how_to_install_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "apprise", None)
    message = "Notify(url=...) needs Apprise, which is not installed.\n  run       pip install 'hookpoint[notify]'"
    with pytest.raises(ImportError, match=f"^{re.escape(message)}$"):
        Notify("ntfys://topic")
