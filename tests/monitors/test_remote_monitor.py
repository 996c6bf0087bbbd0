from __future__ import annotations

import json
import logging
import math
import pickle
import re
import socket
import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs

import pytest

import hookpoint
from hookpoint import At, Callback, Every
from hookpoint.callbacks import ModelSaver
from hookpoint.core.log import monitor_queue as delivery
from hookpoint.core.log import monitors
from hookpoint.core.loop.loop import Loop
from hookpoint.monitors import RemoteMonitor


class Handler(BaseHTTPRequestHandler):
    """Keep the posted requests, and answer with the server's `code`."""

    def do_POST(self):
        body = self.rfile.read(int(self.headers["Content-Length"])).decode()
        self.server.got.append((self.path, dict(self.headers), body))
        self.send_response(self.server.code)
        self.send_header("Content-Length", "0")
        if self.server.location:
            self.send_header("Location", self.server.location)
        self.end_headers()

    def do_GET(self):
        self.server.got.append(("GET " + self.path, dict(self.headers), ""))
        self.send_response(200)
        self.end_headers()

    def log_message(self, *args):
        pass


@contextmanager
def serving():
    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        server.got, server.code, server.location = [], 200, None
        server.root = f"http://127.0.0.1:{server.server_port}"
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield server
        server.shutdown()
        thread.join()


@pytest.fixture
def server():
    with serving() as made:
        yield made


class Drain(Callback):
    """Wait until each epoch is posted before the next one begins."""

    def on_epoch_begin(self, run):
        run.monitors.drain()


@pytest.fixture
def post(train):
    """Train `epochs` epochs, each of which logs a loss and a rate."""

    def go(callbacks, *, epochs=2):
        begin = lambda run: run.log(rate=1 / run.epoch)  # noqa: E731
        step = lambda run, batch: run.log(loss=batch / run.epoch)  # noqa: E731
        return train(callbacks, epochs=epochs, epoch_begin=begin, step=step, log_every=2)

    return go


# A server that answers


def test_each_epoch_is_posted_as_json(post, server, caplog):
    post([RemoteMonitor(server.root)])
    assert [(path, json.loads(body)) for path, _, body in server.got] == [
        ("/publish/epoch/end/", {"epoch": 1, "rate": 1.0, "loss": 1.0}),
        ("/publish/epoch/end/", {"epoch": 2, "rate": 0.5, "loss": 0.5}),
    ]
    assert {headers["Content-Type"] for _, headers, _ in server.got} == {"application/json"}
    assert caplog.messages == []


def test_a_form_has_the_values_in_a_field(post, server):
    post([RemoteMonitor(server.root, "/x", "field", send_as_json=False)], epochs=1)
    ((path, headers, body),) = server.got
    assert path == "/x"
    assert headers["Content-Type"] == "application/x-www-form-urlencoded"
    assert {name: json.loads(value) for name, (value,) in parse_qs(body).items()} == {
        "field": {"epoch": 1, "rate": 1.0, "loss": 1.0}
    }


def test_headers_are_sent(post, server):
    post([RemoteMonitor(server.root, headers={"Authorization": "Bearer mine", "Content-Type": "application/x-mine"})], epochs=1)
    ((_, headers, _),) = server.got
    assert headers["Authorization"] == "Bearer mine"
    assert headers["Content-Type"] == "application/x-mine"


def test_non_finite_numbers_are_posted_as_strings(server):
    with Loop([RemoteMonitor(server.root)]) as run:
        for _ in run.epochs(1):
            run.log(a=math.nan, b=math.inf, c=-math.inf, epoch=7.0)
    refuse = {"parse_constant": lambda constant: pytest.fail(f"{constant} is not JSON")}
    row = json.loads(server.got[0][2], **refuse)
    assert row == {"epoch": 1, "a": "nan", "b": "inf", "c": "-inf", "values/epoch": 7.0}


@pytest.mark.parametrize(
    "name", ["; touch PWNED", "$(id)", "`id`", "a\r\nHost: evil", "{__class__}", "{run.store}", '"', "snow ☃", "&x=1"]
)
@pytest.mark.parametrize("send_as_json", [True, False])
def test_names_may_contain_any_character(server, name, send_as_json):
    with Loop([RemoteMonitor(server.root, send_as_json=send_as_json)]) as run:
        for _ in run.epochs(1):
            run.log({name: 0.5})
    ((path, headers, body),) = server.got
    assert path == "/publish/epoch/end/"
    assert headers["Host"] == server.root.removeprefix("http://")
    assert json.loads(body if send_as_json else parse_qs(body)["data"][0]) == {"epoch": 1, name: 0.5}


def test_a_validation_outside_a_run_is_not_posted(post, server):
    monitor = RemoteMonitor(server.root)
    with Loop([monitor], run_points=False) as run:
        for _ in run.batches(range(2), mode="val"):
            run.log(loss=1.0)
    post([monitor], epochs=1)
    assert [json.loads(body) for *_, body in server.got] == [{"epoch": 1, "rate": 1.0, "loss": 1.0}]


@pytest.mark.parametrize(
    ("save", "cut_at", "first"),
    [(Every(steps=2), 3, 1), (Every(steps=1), 5, 2), (Every(steps=1), 9, 3), (Every(epochs=1), 5, 2), (Every(epochs=1), 8, 3)],
    ids=str,
)
def test_a_resumed_epoch_includes_values_from_before_the_checkpoint(train, cut_off, new_disk, server, save, cut_at, first):
    class Validates(Callback):
        def on_trigger(self, run):
            for batch in run.batches([1.0, 2.0], mode="val"):
                run.log(loss=batch * run.step)

    def go(store, **given):
        begin = lambda run: run.log(epoch=1 / run.epoch)  # noqa: E731
        step = lambda run, batch: run.log(loss=batch / run.epoch)  # noqa: E731
        callbacks = [Validates().when(At(steps=[1, 8])), ModelSaver().when(save), RemoteMonitor(server.root)]
        train(callbacks, epochs=3, epoch_begin=begin, step=step, store=store, **given)
        rows = {row["epoch"]: row for row in (json.loads(body) for *_, body in server.got)}
        server.got.clear()
        return rows

    whole = go(new_disk())
    assert [sorted(row) for row in whole.values()] == [
        ["epoch", "loss", "val_loss", "values/epoch"],
        ["epoch", "loss", "values/epoch"],
        ["epoch", "loss", "val_loss", "values/epoch"],
    ]
    disk = new_disk()
    with pytest.raises(cut_off):
        go(disk, cut_at=cut_at)
    server.got.clear()
    resumed = go(disk)
    assert resumed == {epoch: whole[epoch] for epoch in resumed}
    assert list(resumed) == list(range(first, 4))


def test_a_pickled_monitor_posts(post, server):
    post([pickle.loads(pickle.dumps(RemoteMonitor(server.root)))], epochs=1)
    assert len(server.got) == 1


def test_no_proxy_is_used_for_localhost(post, server, monkeypatch):
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:1")
    post([RemoteMonitor(server.root)], epochs=1)
    assert len(server.got) == 1


# A server that fails


def messages(caplog):
    return [message for message in caplog.messages if "RemoteMonitor" in message]


def test_a_server_that_answers_500_is_given_up_after_three_failures(post, server, caplog):
    server.code = 500
    assert post([RemoteMonitor(server.root), Drain()], epochs=5).step == 15
    what = f"RemoteMonitor failed at on_records: ConnectionError: {server.root} responded 500 Internal Server Error"
    assert messages(caplog) == [
        f"{what}; the run continues",
        f"{what}; the run continues",
        f"{what} (3 times in a row); it is disabled for the rest of the run",
    ]
    assert len(server.got) == 3


def test_a_server_that_recovers_gets_later_epochs(post, server, caplog):
    class Heals(Callback):
        def on_epoch_begin(self, run):
            server.code = 500 if run.epoch < 3 else 200

    post([RemoteMonitor(server.root), Drain(), Heals()], epochs=5)
    assert [json.loads(body)["epoch"] for *_, body in server.got] == [1, 2, 3, 4, 5]
    assert len(messages(caplog)) == 2


def test_all_queued_epochs_are_tried_after_a_failure(post, server, caplog):
    server.code = 500
    post([RemoteMonitor(server.root)], epochs=4)
    assert [json.loads(body)["epoch"] for *_, body in server.got][-1] == 4


def test_a_refused_connection_does_not_end_the_run(post, caplog):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    assert post([RemoteMonitor(f"http://127.0.0.1:{port}")]).step == 6
    assert f"http://127.0.0.1:{port} did not accept an epoch: " in caplog.text
    assert "Connection refused" in caplog.text


def test_a_redirect_is_not_followed(post, server, caplog):
    with serving() as other:
        server.code, server.location = 302, f"{other.root}/steal"
        post([RemoteMonitor(server.root, headers={"Authorization": "Bearer mine"})], epochs=1)
        assert other.got == []
    assert f"{server.root} responded 302 Found" in caplog.text


@contextmanager
def accepting(answer=None):
    """A server that accepts connections and sends `answer`, or nothing; yields its address and an event."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        came, connections, is_over = threading.Event(), [], threading.Event()
        server.settimeout(0.05)

        def accept():
            while not is_over.is_set():
                try:
                    connection, _ = server.accept()
                except TimeoutError:
                    continue
                connections.append(connection)
                came.set()
                if answer is not None:
                    connection.recv(65536)
                    connection.sendall(answer)
                    connection.close()

        thread = threading.Thread(target=accept)
        thread.start()
        yield f"http://127.0.0.1:{server.getsockname()[1]}", came
        is_over.set()
        thread.join()
        for connection in connections:
            connection.close()


@pytest.mark.parametrize("answer", [b"", b"garbage\r\n\r\n", b"HTTP/1.1 \r\n\r\n", b"\0" * 100_000])
def test_an_invalid_response_does_not_end_the_run(post, caplog, answer):
    with accepting(answer) as (root, _):
        assert post([RemoteMonitor(root)]).step == 6
    assert f"{root} did not accept an epoch: " in caplog.text


def test_a_server_without_tls_does_not_end_the_run(post, caplog):
    with accepting(b"HTTP/1.1 400 Bad Request\r\n\r\n") as (root, _):
        root = root.replace("http:", "https:")
        assert post([RemoteMonitor(root)]).step == 6
    assert f"{root} did not accept an epoch: " in caplog.text
    assert "SSL" in caplog.text


def test_a_server_that_never_answers_times_out(post, caplog):
    with accepting() as (root, _):
        assert post([RemoteMonitor(root, timeout_seconds=0.1)], epochs=1).step == 3
    assert f"{root} did not accept an epoch: timed out" in caplog.text


def test_a_server_that_never_answers_does_not_block_the_run(post, monkeypatch, caplog):
    monkeypatch.setattr(monitors, "DRAIN_SECONDS", 0.01)
    monkeypatch.setattr(delivery, "LINGER_SECONDS", 0.0)
    with accepting() as (root, came):
        steps = []

        class Watch(Callback):
            def on_epoch_begin(self, run):
                if run.epoch == 2:
                    assert came.wait(60)  # from here on the first post hangs

            def on_train_iter_end(self, run):
                steps.append(run.monitors._queues[0]._in_hand > 0 and run.epoch > 1)

        post([RemoteMonitor(root, timeout_seconds=500), Watch()], epochs=600)
        assert sum(steps) == 3 * 599
        left, dropped = messages(caplog)
    assert re.fullmatch(r"RemoteMonitor was too slow: 100\d records did not reach it within 0.01 s", left)
    assert re.fullmatch(r"RemoteMonitor was too slow: the oldest \d+ records were dropped", dropped)
    for thread in threading.enumerate():
        if thread.name == "hookpoint RemoteMonitor":  # it ends now that the server is closed
            thread.join(60)


def test_messages_contain_no_secrets(post, server, caplog):
    server.code = 401
    with caplog.at_level(logging.DEBUG):
        post([RemoteMonitor(server.root, "/publish?token=secret", headers={"Authorization": "Bearer secret"})], epochs=1)
    assert "responded 401" in caplog.text
    assert "secret" not in caplog.text


# Arguments


def test_the_default_address_is_that_of_keras():
    assert RemoteMonitor().address == "http://localhost:9000/publish/epoch/end/"
    assert RemoteMonitor("https://x/", "y").address == RemoteMonitor("https://x", "/y").address == "https://x/y"


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"root": "localhost:9000"}, "must form the address of a server"),
        ({"root": "file:///etc/passwd"}, "must form the address of a server"),
        ({"root": "ftp://host"}, "must form the address of a server"),
        ({"root": "http://"}, "must form the address of a server"),
        ({"root": "http://localhost:x"}, "must form the address of a server"),
        ({"path": "/a b"}, "must form the address of a server"),
        ({"path": "/a\r\nHost: evil"}, "must form the address of a server"),
        ({"root": "https://me:secret@host"}, "must not contain a user name or a password"),
        (
            {"root": "http://example.org"},
            r"http://example.org is not encrypted\.\n  write     https://example.org",
        ),
        ({"headers": {"A": "b\r\nHost: evil"}}, "header 'A' must be a single line of text"),
        ({"root": None}, "root must be a string, got None"),
        ({"path": 3}, "path must be a string, got 3"),
        ({"field": None}, "field must be a string, got None"),
        ({"headers": "Authorization: secret"}, "headers must be a dict"),
        ({"timeout_seconds": "10"}, r"timeout_seconds must be a number > 0, got '10'"),
        ({"headers": {"A": 3}}, "header 'A' must be a single line of text"),
        ({"timeout_seconds": 0}, r"timeout_seconds must be a number > 0, got 0"),
        ({"timeout_seconds": math.inf}, r"timeout_seconds must be a number > 0, got inf"),
        ({"timeout_seconds": True}, r"timeout_seconds must be a number > 0, got True"),
    ],
)
def test_invalid_arguments_raise(given, says):
    with pytest.raises(ValueError, match=says) as caught:
        RemoteMonitor(**given)
    assert "secret" not in str(caught.value)


def test_allow_http_permits_unencrypted_addresses():
    assert RemoteMonitor("http://10.0.0.1:9000", allow_http=True).address.startswith("http://10.0.0.1")


def test_values_after_the_last_epoch_are_posted(server):
    with hookpoint.Loop(monitors=[RemoteMonitor(server.root)]) as run:
        for epoch in run.epochs(2):
            run.log(loss=1 / epoch)
        run.log(accuracy=0.75)
    assert [json.loads(body) for _, _, body in server.got] == [
        {"epoch": 1, "loss": 1.0},
        {"epoch": 2, "loss": 0.5},
        {"epoch": 2, "accuracy": 0.75},
    ]
