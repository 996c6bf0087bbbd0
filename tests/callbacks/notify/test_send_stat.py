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
    """Let commands work in a folder of their own, where what they should not do would be seen; and wait for them all."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(_sender, "WAIT_SECONDS", 60)


def writes(*arguments):
    """Return a command that writes its arguments as a line of JSON."""
    return [sys.executable, "-I", "-S", "-c", WRITE, "sent", *arguments]


def sent():
    return [json.loads(line) for line in Path("sent").read_text().splitlines()] if os.path.exists("sent") else []


# What is sent


def test_each_epoch_is_sent_with_what_the_command_names(train, tmp_path):
    send = SendStat(writes("{score}", "{score:.1f}", "{epoch}", "{step}", "{run}", "{workdir}", "<{checkpoint}>"), "score")
    train([send], [{"score": 0.25}, {"score": 0.5}], name="mine", workdir="here")
    here = str(tmp_path / "here")
    assert sent() == [["0.25", "0.2", "1", "3", "mine", here, "<>"], ["0.5", "0.5", "2", "6", "mine", here, "<>"]]


def test_names_may_be_one_or_several(train):
    train([SendStat(writes("{a-b} {c/d}"), ["a-b", "c/d"])], [{"a-b": 1, "c/d": 2.5}])
    assert sent() == [["1.0 2.5"]]


def test_a_string_is_split_and_silence_dropped(train):
    train([SendStat(f"{sys.executable} -c '{WRITE}' sent \"score is {{score}}\" > /dev/null 2>&1", "score")], [{"score": 1}])
    assert sent() == [["score is 1.0"]]


def test_without_names_each_trigger_sends(train):
    train([SendStat(writes("{epoch}"))], [{}, {}])
    assert sent() == [["1"], ["2"]]


def test_numbers_that_are_not_finite_are_sent_as_they_are(train):
    train([SendStat(writes("{a}", "{b}"), ["a", "b"])], [{"a": math.nan, "b": -math.inf}])
    assert sent() == [["nan", "-inf"]]


def test_without_a_workdir_it_is_empty(train):
    train([SendStat(writes("<{workdir}>"))], [{}])
    assert sent() == [["<>"]]


def test_the_checkpoint_is_the_newest_that_is_written_by_then(train, disk):
    train([SendStat(writes("<{checkpoint}>")), ModelSaver()], [{}, {}, {}], store=disk)
    assert sent() == [["<>"], ["<disk/3>"], ["<disk/6>"]]


def test_after_a_resume_the_checkpoint_is_the_one_that_was_loaded(train, disk):
    train([SendStat(writes("<{checkpoint}>")), ModelSaver()], [{}], store=disk)
    train([SendStat(writes("<{checkpoint}>")), ModelSaver()], [{}, {}], store=disk)
    assert sent() == [["<>"], ["<disk/newest>"]]


def test_a_checkpoint_in_a_file_has_a_path_from_the_root(tmp_path):
    (tmp_path / "here").mkdir()
    send = SendStat(["true"])
    send.on_save("here")
    assert send._checkpoint == str(tmp_path / "here")


# When


def test_an_epoch_without_a_new_value_sends_nothing(train):
    train([SendStat(writes("{epoch}", "{score}"), "score")], [{}, {"score": 1}, {}, {"score": 1}, {"other": 2}])
    assert sent() == [["2", "1.0"], ["4", "1.0"]]


def test_one_new_value_of_several_is_enough_once_all_have_come(train):
    train([SendStat(writes("{epoch}", "{a} {b}"), ["a", "b"])], [{"a": 1}, {"b": 2}, {"a": 3}, {}])
    assert sent() == [["2", "1.0 2.0"], ["3", "3.0 2.0"]]


def test_a_schedule_sends_what_a_running_pass_shows():
    with Loop([SendStat(writes("{step}", "{loss}"), "loss").when(Every(steps=2))]) as run:
        for _ in run.epochs(1):
            for batch in run.batches([1.0, 2.0, 3.0, 4.0, 5.0, 5.0]):
                run.log(loss=batch)
    assert sent() == [["2", "2.0"], ["4", "4.0"], ["6", "5.0"]]


def test_what_was_sent_is_not_sent_again_after_a_resume(train, disk):
    rows = [{"score": 1}, {}, {"score": 2}]
    train([SendStat(writes("{epoch}"), "score"), ModelSaver()], rows[:1], store=disk)
    train([SendStat(writes("{epoch}"), "score"), ModelSaver()], rows, store=disk)
    assert sent() == [["1"], ["3"]]


def test_a_metric_that_never_comes_is_said_once_and_ends_no_run(train, caplog):
    steps = []
    count = on("on_train_iter_end")(lambda run: steps.append(run.step))
    train([SendStat(writes("{score}"), "score"), count], [{"other": 1}, {"other": 2}, {"other": 3}])
    assert len(steps) == 9
    assert caplog.text.count("SendStat(score) reads 'score', which nothing has logged by the end of epoch 1") == 1
    assert caplog.text.count("reads 'score'") == 1
    assert sent() == []


def test_a_metric_that_is_nearly_one_is_a_warning(caplog):
    class Writes(Callback):
        writes = ("val-error",)

        def on_epoch_end(self):
            pass

    with Loop([Writes(), SendStat(writes("{val-eror}"), "val-eror")]):
        assert "did you mean 'val-error'?" in caplog.text


# Nothing becomes a command


@pytest.mark.parametrize("hostile", HOSTILE)
def test_a_runs_name_stays_a_name(train, hostile, tmp_path):
    train([SendStat(writes("a{run}"), ())], [{}], name=hostile)
    assert sent() == [[f"a{hostile}"]]
    assert [path.name for path in tmp_path.iterdir()] == ["sent"]


@pytest.mark.parametrize("hostile", HOSTILE)
def test_with_a_shell_it_stays_a_name_too(train, hostile, tmp_path):
    command = f"{sys.executable} -I -S -c '{WRITE}' sent a{{run}} \"a{{run}}\" 'a{{run}}' | cat"
    train([SendStat(command, shell=True)], [{}], name=hostile)
    assert sent() == [[f"a{hostile}"] * 3]
    assert [path.name for path in tmp_path.iterdir()] == ["sent"]


@pytest.mark.parametrize("hostile", [one for one in HOSTILE if "{" not in one])
@pytest.mark.parametrize("shell", [False, True])
def test_a_metrics_name_stays_a_name(train, hostile, shell, tmp_path):
    command = f"{sys.executable} -I -S -c '{WRITE}' sent {{{hostile}}}"
    train([SendStat(command, hostile, shell=shell)], [{hostile: 0.5}])
    assert sent() == [["0.5"]]
    assert [path.name for path in tmp_path.iterdir()] == ["sent"]


@pytest.mark.parametrize(
    "hostile", ["{__class__}", "{run.store}", "{run.__init__.__globals__}", "{score.real}", "{0}", "{run[0]}"]
)
@pytest.mark.parametrize("shell", [False, True])
def test_there_is_no_way_to_an_attribute(hostile, shell):
    with pytest.raises(ValueError, match=r"^SendStat: .* is not a field"):
        SendStat(f"echo {hostile}", "score", shell=shell)


@pytest.mark.parametrize("folder", ["; touch PWNED", "$(touch PWNED)", "-x", "a b"])
def test_a_workdirs_name_stays_a_name(train, folder, tmp_path):
    train([SendStat(writes("{workdir}"))], [{}], workdir=folder)
    assert sent() == [[str(tmp_path / folder)]]


@pytest.mark.parametrize("name", ["--version", "@/etc/passwd"])
def test_a_name_that_would_be_an_option_is_not_sent(train, name, caplog):
    train([SendStat(writes("{run}"))], [{}, {}], name=name)
    assert sent() == []
    assert caplog.messages[0].startswith(
        f"SendStat: {os.path.basename(sys.executable)} was not run: {{run}} starts with '{name[0]}'"
    )
    assert caplog.messages[1:] == ["SendStat: messages lost: 2 failed"]


# It never stalls or stops a run


@pytest.fixture
def impatient(monkeypatch):
    monkeypatch.setattr(_sender, "WAIT_SECONDS", 0.01)


class Watch(Callback):
    """Count the steps that are done while the first message is being sent."""

    def __init__(self, send, has_begun):
        self.send, self.has_begun, self.steps = send, has_begun, 0

    def on_epoch_begin(self, run):
        if run.epoch == 2:
            self.has_begun()

    def on_train_iter_end(self):
        queue = self.send._queue
        self.steps += queue._is_sending and queue.failed == 0


def test_a_command_that_sleeps_does_not_hold_up_the_run(train, tmp_path, impatient, caplog):
    send = SendStat("touch begun; exec sleep 1000", shell=True, timeout_seconds=500)

    def has_begun():
        while not (tmp_path / "begun").exists():
            pass

    watch = Watch(send, has_begun)
    assert train([send, watch], [{}] * 50).step == 150
    assert watch.steps == 147  # all but the first epoch's
    assert caplog.messages == ["SendStat: messages lost: 50 not sent before the run ended"]


def test_a_server_that_never_answers_does_not_hold_up_the_run(train, impatient, caplog):
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


def test_a_command_that_takes_too_long_is_ended_and_the_next_is_tried(train, caplog):
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


def test_after_an_exception_too():
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
def test_a_failure_is_logged_once_and_the_run_goes_on(train, command, says, caplog):
    with caplog.at_level(logging.INFO):
        assert train([SendStat(command)], [{}] * 5).step == 15
    assert caplog.messages == [
        f"SendStat: {says}; the run continues. Later failures of this kind are not logged",
        "SendStat: messages lost: 5 failed",
    ]


def test_a_second_run_says_it_again(train, caplog):
    send = SendStat("false")
    for _ in range(2):
        train([send], [{}])
    assert len(caplog.messages) == 4


def test_it_is_left_out_on_other_ranks(train, monkeypatch):
    monkeypatch.setenv("RANK", "1")
    train([SendStat(writes("{epoch}"))], [{}])
    assert sent() == []


def test_no_thread_is_left(train, caplog):
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
def test_mistakes_are_refused(given, says):
    with pytest.raises(ValueError, match=says):
        SendStat(**given)


def test_apprise_is_named_where_it_is_missing(monkeypatch):
    monkeypatch.setattr("hookpoint.callbacks.notify._apprise_transport.find_spec", lambda name: None)
    with pytest.raises(ImportError, match=r"pip install 'hookpoint\[notify\]'"):
        SendStat(url="ntfys://topic")


def test_its_name_says_what_it_sends():
    assert SendStat("true", ["a", "b"]).name == "SendStat(a, b)"
    assert SendStat("true", "a", name="mine").name == "mine"


def test_a_pickled_one_sends(train):
    train([pickle.loads(pickle.dumps(SendStat(writes("{epoch}"))))], [{}])
    assert sent() == [["1"]]
