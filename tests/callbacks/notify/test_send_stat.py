from __future__ import annotations

import json
import logging
import math
import os
import pickle
import socket
import sys
import threading
from pathlib import Path

import pytest

from hookpoint import Callback, Every, on
from hookpoint.callbacks import ModelSaver, SendStat
from hookpoint.callbacks.notify import _sender
from hookpoint.core.loop.loop import Loop

WRITE = 'import json, sys; open(sys.argv[1], "a").write(json.dumps(sys.argv[2:]) + chr(10))'
HOSTILE = [
    "; touch PWNED",
    "$(touch PWNED)",
    "`touch PWNED`",
    "| touch PWNED",
    "&& touch PWNED",
    "\ntouch PWNED\n",
    "' ; touch PWNED ; '",
    '" ; touch PWNED ; "',
    "> PWNED",
    "{__class__}",
    "{run.store}",
    "{score}",
    "%(x)s",
    "--version",
    "@/etc/passwd",
]


@pytest.fixture(autouse=True)
def in_folder(tmp_path, monkeypatch):
    """Run commands in a temporary folder, where unwanted files would show, and wait for all of them."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(_sender, "WAIT_SECONDS", 60)


def writes(*arguments):
    """Return a command that writes its arguments as a line of JSON."""
    return [sys.executable, "-I", "-S", "-c", WRITE, "sent", *arguments]


def sent():
    return [json.loads(line) for line in Path("sent").read_text().splitlines()] if os.path.exists("sent") else []


# Messages


def test_the_fields_of_the_command_are_filled_at_each_epoch(train, tmp_path):
    send = SendStat(writes("{score}", "{score:.1f}", "{epoch}", "{step}", "{run}", "{workdir}", "<{checkpoint}>"), "score")
    train([send], [{"score": 0.25}, {"score": 0.5}], name="mine", workdir="here")
    here = str(tmp_path / "here")
    assert sent() == [["0.25", "0.2", "1", "3", "mine", here, "<>"], ["0.5", "0.5", "2", "6", "mine", here, "<>"]]


def test_names_can_be_a_string_or_a_list(train):
    train([SendStat(writes("{a-b} {c/d}"), ["a-b", "c/d"])], [{"a-b": 1, "c/d": 2.5}])
    assert sent() == [["1.0 2.5"]]


def test_a_string_is_split_and_its_redirection_dropped(train):
    train([SendStat(f"{sys.executable} -c '{WRITE}' sent \"score is {{score}}\" > /dev/null 2>&1", "score")], [{"score": 1}])
    assert sent() == [["score is 1.0"]]


def test_without_names_each_trigger_sends(train):
    train([SendStat(writes("{epoch}"))], [{}, {}])
    assert sent() == [["1"], ["2"]]


def test_nonfinite_numbers_are_sent_unchanged(train):
    train([SendStat(writes("{a}", "{b}"), ["a", "b"])], [{"a": math.nan, "b": -math.inf}])
    assert sent() == [["nan", "-inf"]]


def test_without_a_workdir_its_field_is_empty(train):
    train([SendStat(writes("<{workdir}>"))], [{}])
    assert sent() == [["<>"]]


def test_the_checkpoint_field_is_the_newest_written_checkpoint(train, disk):
    train([SendStat(writes("<{checkpoint}>")), ModelSaver()], [{}, {}, {}], store=disk)
    assert sent() == [["<>"], ["<disk/3>"], ["<disk/6>"]]


def test_after_a_resume_the_checkpoint_field_is_the_loaded_checkpoint(train, disk):
    train([SendStat(writes("<{checkpoint}>")), ModelSaver()], [{}], store=disk)
    train([SendStat(writes("<{checkpoint}>")), ModelSaver()], [{}, {}], store=disk)
    assert sent() == [["<>"], ["<disk/newest>"]]


def test_a_relative_checkpoint_path_becomes_absolute(tmp_path):
    (tmp_path / "here").mkdir()
    send = SendStat(["true"])
    send.on_save("here")
    assert send._checkpoint == str(tmp_path / "here")


# Triggers


def test_an_epoch_without_a_new_value_sends_nothing(train):
    train([SendStat(writes("{epoch}", "{score}"), "score")], [{}, {"score": 1}, {}, {"score": 1}, {"other": 2}])
    assert sent() == [["2", "1.0"], ["4", "1.0"]]


def test_a_single_new_value_is_enough_once_all_metrics_have_a_value(train):
    train([SendStat(writes("{epoch}", "{a} {b}"), ["a", "b"])], [{"a": 1}, {"b": 2}, {"a": 3}, {}])
    assert sent() == [["2", "1.0 2.0"], ["3", "3.0 2.0"]]


def test_a_schedule_sends_values_of_the_running_pass():
    with Loop([SendStat(writes("{step}", "{loss}"), "loss").when(Every(steps=2))]) as run:
        for _ in run.epochs(1):
            for batch in run.batches([1.0, 2.0, 3.0, 4.0, 5.0, 5.0]):
                run.log(loss=batch)
    assert sent() == [["2", "2.0"], ["4", "4.0"], ["6", "5.0"]]


def test_values_are_not_sent_again_after_a_resume(train, disk):
    rows = [{"score": 1}, {}, {"score": 2}]
    train([SendStat(writes("{epoch}"), "score"), ModelSaver()], rows[:1], store=disk)
    train([SendStat(writes("{epoch}"), "score"), ModelSaver()], rows, store=disk)
    assert sent() == [["1"], ["3"]]


def test_a_metric_that_is_never_logged_warns_once_and_the_run_continues(train, caplog):
    steps = []
    count = on("on_train_iter_end")(lambda run: steps.append(run.step))
    train([SendStat(writes("{score}"), "score"), count], [{"other": 1}, {"other": 2}, {"other": 3}])
    assert len(steps) == 9
    assert caplog.text.count("SendStat(score) reads 'score', which nothing has logged by the end of epoch 1") == 1
    assert caplog.text.count("reads 'score'") == 1
    assert sent() == []


def test_a_misspelled_metric_warns_with_a_suggestion(caplog):
    class Writes(Callback):
        writes = ("val-error",)

        def on_epoch_end(self):
            pass

    with Loop([Writes(), SendStat(writes("{val-eror}"), "val-eror")]):
        assert "did you mean 'val-error'?" in caplog.text


# Values never become commands


@pytest.mark.parametrize("hostile", HOSTILE)
def test_a_run_name_stays_a_single_argument(train, hostile, tmp_path):
    train([SendStat(writes("a{run}"), ())], [{}], name=hostile)
    assert sent() == [[f"a{hostile}"]]
    assert [path.name for path in tmp_path.iterdir()] == ["sent"]


@pytest.mark.parametrize("hostile", HOSTILE)
def test_a_run_name_stays_a_single_argument_in_a_shell(train, hostile, tmp_path):
    command = f"{sys.executable} -I -S -c '{WRITE}' sent a{{run}} \"a{{run}}\" 'a{{run}}' | cat"
    train([SendStat(command, shell=True)], [{}], name=hostile)
    assert sent() == [[f"a{hostile}"] * 3]
    assert [path.name for path in tmp_path.iterdir()] == ["sent"]


@pytest.mark.parametrize("hostile", [one for one in HOSTILE if "{" not in one])
@pytest.mark.parametrize("shell", [False, True])
def test_a_metric_name_cannot_inject_a_command(train, hostile, shell, tmp_path):
    command = f"{sys.executable} -I -S -c '{WRITE}' sent {{{hostile}}}"
    train([SendStat(command, hostile, shell=shell)], [{hostile: 0.5}])
    assert sent() == [["0.5"]]
    assert [path.name for path in tmp_path.iterdir()] == ["sent"]


@pytest.mark.parametrize(
    "hostile", ["{__class__}", "{run.store}", "{run.__init__.__globals__}", "{score.real}", "{0}", "{run[0]}"]
)
@pytest.mark.parametrize("shell", [False, True])
def test_fields_cannot_access_attributes(hostile, shell):
    with pytest.raises(ValueError, match=r"^SendStat: .* is not a field"):
        SendStat(f"echo {hostile}", "score", shell=shell)


@pytest.mark.parametrize("folder", ["; touch PWNED", "$(touch PWNED)", "-x", "a b"])
def test_a_workdir_name_stays_a_single_argument(train, folder, tmp_path):
    train([SendStat(writes("{workdir}"))], [{}], workdir=folder)
    assert sent() == [[str(tmp_path / folder)]]


@pytest.mark.parametrize("name", ["--version", "@/etc/passwd"])
def test_a_run_name_that_could_be_read_as_an_option_is_not_sent(train, name, caplog):
    train([SendStat(writes("{run}"))], [{}, {}], name=name)
    assert sent() == []
    assert caplog.messages[0].startswith(
        f"SendStat: {os.path.basename(sys.executable)} was not run: {{run}} starts with '{name[0]}'"
    )
    assert caplog.messages[1:] == ["SendStat: messages lost: 2 failed"]


# A run is never delayed or stopped


@pytest.fixture
def impatient(monkeypatch):
    monkeypatch.setattr(_sender, "WAIT_SECONDS", 0.01)


class Watch(Callback):
    """Count the steps that finish while the first message is being sent."""

    def __init__(self, send, has_begun):
        self.send, self.has_begun, self.steps = send, has_begun, 0

    def on_epoch_begin(self, run):
        if run.epoch == 2:
            self.has_begun()

    def on_train_iter_end(self):
        queue = self.send._queue
        self.steps += queue._is_sending and queue.failed == 0


def test_a_sleeping_command_does_not_delay_the_run(train, tmp_path, impatient, caplog):
    send = SendStat("touch begun; exec sleep 1000", shell=True, timeout_seconds=500)

    def has_begun():
        while not (tmp_path / "begun").exists():
            pass

    watch = Watch(send, has_begun)
    assert train([send, watch], [{}] * 50).step == 150
    assert watch.steps == 147  # every step after the first epoch
    assert caplog.messages == ["SendStat: messages lost: 50 not sent before the run ended"]


def test_a_server_that_never_answers_does_not_delay_the_run(train, impatient, caplog):
    with socket.create_server(("127.0.0.1", 0)) as server:
        came, connections = threading.Event(), []

        def accept():
            connections.append(server.accept()[0])
            came.set()

        accepting = threading.Thread(target=accept)
        accepting.start()
        post = "import sys, urllib.request; urllib.request.urlopen(sys.argv[1], data=b'x')"
        send = SendStat([sys.executable, "-c", post, f"http://127.0.0.1:{server.getsockname()[1]}"], timeout_seconds=500)
        watch = Watch(send, lambda: came.wait(60))
        assert train([send, watch], [{}] * 50).step == 150
        assert watch.steps == 147
        accepting.join(60)
        connections[0].close()
    assert caplog.messages == ["SendStat: messages lost: 50 not sent before the run ended"]


def test_a_command_that_takes_too_long_is_killed_and_the_next_command_runs(train, caplog):
    send = SendStat("test {epoch} = 2 && touch came || exec sleep 1000", shell=True, timeout_seconds=1.5)
    train([send], [{}, {}])
    assert os.path.exists("came")
    assert caplog.messages == [
        "SendStat: the command was killed after 1.5 s; the run continues. Later failures of this kind are not logged",
        "SendStat: messages lost: 1 failed",
    ]


def test_the_last_message_is_waited_for(train):
    train([SendStat("sleep 0.3; touch came", shell=True)], [{}])
    assert os.path.exists("came")


def test_the_last_message_is_waited_for_after_an_exception():
    with pytest.raises(ZeroDivisionError), Loop([SendStat("sleep 0.3; touch came", shell=True)]) as run:
        for _ in run.epochs(1):
            pass
        1 / 0  # noqa: B018
    assert os.path.exists("came")


@pytest.mark.parametrize(
    ("command", "says"),
    [
        ("false", "false exited with code 1"),
        ("no-such-program", "no-such-program could not be started: No such file or directory"),
    ],
)
def test_a_failure_is_logged_once_and_the_run_continues(train, command, says, caplog):
    with caplog.at_level(logging.INFO):
        assert train([SendStat(command)], [{}] * 5).step == 15
    assert caplog.messages == [
        f"SendStat: {says}; the run continues. Later failures of this kind are not logged",
        "SendStat: messages lost: 5 failed",
    ]


def test_a_second_run_logs_failures_again(train, caplog):
    send = SendStat("false")
    for _ in range(2):
        train([send], [{}])
    assert len(caplog.messages) == 4


def test_other_ranks_send_nothing(train, monkeypatch):
    monkeypatch.setenv("RANK", "1")
    train([SendStat(writes("{epoch}"))], [{}])
    assert sent() == []


def test_no_thread_is_left_after_the_run(train, caplog):
    before = threading.active_count()
    train([SendStat("true")], [{}] * 3)
    for thread in threading.enumerate():
        if thread.name == "hookpoint SendStat":
            thread.join(60)
    assert threading.active_count() <= before


# Arguments


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({}, r"^SendStat takes either a command or url=\."),
        ({"command": "true", "url": "ntfys://topic"}, r"^SendStat takes either a command or url=\."),
        ({"url": "ntfys://topic", "shell": True}, "shell=True needs a command, not url="),
        ({"command": "true", "timeout_seconds": 0}, r"SendStat: timeout_seconds must be a number > 0, got 0"),
        ({"command": "true", "timeout_seconds": math.inf}, r"SendStat: timeout_seconds must be a number > 0, got inf"),
        ({"command": "true", "names": ["loss", ""]}, r"names must be a list of non-empty strings, got \['loss', ''\]"),
        ({"command": "true", "names": [3]}, r"SendStat: names must be a list of non-empty strings, got \[3\]"),
        ({"command": "true", "names": "epoch"}, "'epoch' is a reserved field, not a metric"),
        ({"command": "echo {loss}"}, r"^SendStat: \{loss\} is not a field"),
        ({"command": "echo a | cat"}, r"^SendStat: '\|' is shell syntax.*\n  give      shell=True"),
        ({"command": ""}, "^SendStat: the command is empty"),
    ],
)
def test_invalid_arguments_raise(given, says):
    with pytest.raises(ValueError, match=says):
        SendStat(**given)


def test_without_apprise_the_error_says_how_to_install_it(monkeypatch):
    monkeypatch.setattr("hookpoint.callbacks.notify._apprise_transport.find_spec", lambda name: None)
    with pytest.raises(ImportError, match=r"pip install 'hookpoint\[notify\]'"):
        SendStat(url="ntfys://topic")


def test_the_default_name_contains_the_metrics():
    assert SendStat("true", ["a", "b"]).name == "SendStat(a, b)"
    assert SendStat("true", "a", name="mine").name == "mine"


def test_a_pickled_callback_sends(train):
    train([pickle.loads(pickle.dumps(SendStat(writes("{epoch}"))))], [{}])
    assert sent() == [["1"]]
