from __future__ import annotations

import json
import sys

import pytest

from hookpoint.callbacks import ModelSaver, SendMonitorData
from hookpoint.callbacks.notify import _sender

WRITE = "import json, sys; open(sys.argv[1], 'a').write(json.dumps(sys.argv[2:]) + chr(10))"


@pytest.fixture
def send(tmp_path, monkeypatch):
    monkeypatch.setattr(_sender, "WAIT_SECONDS", 60)
    return lambda: SendMonitorData(
        [sys.executable, "-I", "-S", "-c", WRITE, str(tmp_path / "sent"), "{epoch}: {a} {b}"], ["a", "b"]
    )


@pytest.fixture
def sent(tmp_path):
    return lambda: [json.loads(line)[0] for line in (tmp_path / "sent").read_text().splitlines()]


def test_data_is_sent_when_all_metrics_have_new_values(train_on_disk, send, sent):
    train_on_disk([send()], [{"a": 1}, {"b": 2}, {"a": 3}, {}, {"b": 2}, {"a": 5, "b": 6}])
    assert sent() == ["2: 1.0 2.0", "5: 3.0 2.0", "6: 5.0 6.0"]


def test_values_from_before_a_resume_count(train_on_disk, send, sent):
    rows = [{"a": 1, "b": 1}, {"a": 2}, {"b": 3}]
    train_on_disk([send(), ModelSaver()], rows[:2])
    train_on_disk([send(), ModelSaver()], rows)
    assert sent() == ["1: 1.0 1.0", "3: 2.0 3.0"]


def test_arguments_are_those_of_sendstat():
    with pytest.raises(ValueError, match=r"^SendMonitorData: '\|' is shell syntax"):
        SendMonitorData("echo | cat")
    assert SendMonitorData("echo | cat", "loss", shell=True, timeout_seconds=3).name == "SendMonitorData(loss)"
