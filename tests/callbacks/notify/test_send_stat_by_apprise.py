"""SendStat with the real Apprise and real servers that answer, fail and hang."""

from __future__ import annotations

import socket
import threading

import pytest

from hookpoint.callbacks import SendStat
from hookpoint.callbacks.notify import _sender


def test_a_message_arrives_as_formatted(train_on_disk, server, caplog):
    name = "loss\n<b>{x}</b> \x1b[31m" + "x" * 1000
    train_on_disk(
        [SendStat(url=server.url, names=["score", name])],
        [{"score": 1 / 3, name: 2}],
        name="my; run",
    )
    assert [(one["title"], one["message"]) for one in server.got] == [
        ("my; run", "epoch 1, step 3\nscore: 0.33333\nloss?<b>{x}</b> ?[31m" + "x" * 235 + ": 2")
    ]
    assert [message for message in caplog.messages if "SendStat" in message] == []


def test_a_failing_server_is_named_once(train_on_disk, server, caplog):
    server.code = 500
    train_on_disk([SendStat(url=server.url)], [{}] * 3)
    assert len(server.got) == 3
    assert [message for message in caplog.messages if "SendStat" in message] == [
        "SendStat: Apprise did not deliver a message: FAILURE; the run continues. Later failures of this kind are not logged",
        "SendStat: messages lost: 3 failed",
    ]


def test_a_hanging_server_does_not_delay_the_run(train_on_disk, monkeypatch, caplog, until):
    monkeypatch.setattr(_sender, "WAIT_SECONDS", 0.01)
    with socket.create_server(("127.0.0.1", 0)) as hangs:
        assert train_on_disk([SendStat(url=f"json://127.0.0.1:{hangs.getsockname()[1]}/?rto=1")], [{}] * 20).step == 60
    assert [message for message in caplog.messages if "SendStat" in message] == [
        "SendStat: messages lost: 20 not sent before the run ended"
    ]
    until(
        lambda: "SendStat" not in "".join(thread.name for thread in threading.enumerate())
    )  # otherwise the thread would log during another test


def test_an_unknown_service_raises():
    with pytest.raises(ValueError, match="SendStat: Apprise has no service for 'nonsense:"):
        SendStat(url="nonsense://user:password@host")
