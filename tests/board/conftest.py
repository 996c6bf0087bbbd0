"""A real server on loopback, and a client that sends exactly the requests of a test."""

from __future__ import annotations

import json
import socket
import threading
from collections import defaultdict, deque
from contextlib import contextmanager
from http.client import HTTPConnection
from urllib.parse import quote

import pytest
import uvicorn

from hookpoint.board._application import Board
from hookpoint.board._request_guard import Access

TOKEN = "the-token-of-the-tests"


class Client:
    """Send requests with the token and the given headers."""

    token = TOKEN

    def __init__(self, port):
        self.port = port

    def send(self, method, path, *, body=None, headers=None, signed_in=True):
        """Return the status, the headers and the body."""
        connection = HTTPConnection("127.0.0.1", self.port, timeout=250)
        own = {"Host": f"127.0.0.1:{self.port}", **({"Authorization": f"Bearer {TOKEN}"} if signed_in else {})}
        connection.putrequest(method, path, skip_host=True, skip_accept_encoding=True)
        sent = {**own, **(headers or {})}
        if body is not None:
            sent.setdefault("Content-Length", str(len(body)))
        for name, value in sent.items():
            if value is not None:
                connection.putheader(name, value)
        connection.endheaders(body)
        answer = connection.getresponse()
        content = answer.read()
        connection.close()
        return answer.status, dict(answer.getheaders()), content

    def get(self, path, code=200):
        status, _, content = self.send("GET", path)
        assert status == code, (status, content)
        return json.loads(content) if code == 200 else content

    def runs(self):
        return {row["label"]: row for row in self.get("/api/runs")["runs"]}

    def key(self, label):
        return self.runs()[label]["key"]

    def series(self, label, **query):
        text = "&".join(f"{name}={quote(str(value))}" for name, value in query.items())
        return self.get(f"/api/run/{self.key(label)}/series?{text}")

    def exact_series(self, label, **query):
        """Return the curves once the whole file is read."""
        while not (found := self.series(label, **query))["exact"]:
            pass
        return found

    def command(self, label, body, **headers):
        headers = {"Content-Type": "application/json", "X-Hookpoint": "1", **headers}
        return self.send("POST", f"/api/run/{self.key(label)}/control", body=json.dumps(body).encode(), headers=headers)

    @contextmanager
    def stream(self, *labels):
        """Yield a function that waits for the next message, as its name and data."""
        keys = ",".join(self.key(label) for label in labels)
        connection = HTTPConnection("127.0.0.1", self.port, timeout=250)
        connection.request("GET", f"/api/stream?runs={keys}", headers={"Authorization": f"Bearer {TOKEN}"})
        answer = connection.getresponse()
        assert answer.readline() == b"retry: 1000\n"

        skipped = defaultdict(deque)  # messages with different names may arrive in any order

        def message(wanted):
            if skipped[wanted]:
                return skipped[wanted].popleft()
            name = None
            while True:
                line = answer.readline().decode().rstrip("\n")
                if line.startswith("event: "):
                    name = line.removeprefix("event: ")
                elif line.startswith("data: "):
                    data = json.loads(line.removeprefix("data: "))
                    if name == wanted:
                        return data
                    skipped[name].append(data)

        try:
            yield message
        finally:
            answer.close()
            connection.close()


@contextmanager
def serving():
    servers = []

    def start(*folders, cache, **access):
        listening = socket.socket()
        listening.bind(("127.0.0.1", 0))
        port = listening.getsockname()[1]
        made = Board(list(folders), Access(port, TOKEN, **access), cache=cache)
        server = uvicorn.Server(uvicorn.Config(made.app, log_level="error", ws="none", timeout_graceful_shutdown=1))
        ready = threading.Event()
        startup = server.startup

        async def started(sockets=None):
            await startup(sockets)
            ready.set()

        server.startup = started
        thread = threading.Thread(target=server.run, args=([listening],))
        thread.start()
        servers.append((server, made, thread, listening))
        assert ready.wait(60)
        return Client(port)

    try:
        yield start
    finally:
        for server, made, thread, listening in servers:
            made.stop()
            server.should_exit = True
            thread.join(60)
            listening.close()


@pytest.fixture
def board(tmp_path):
    """Return `board(*folders, **access)`: a client of a server over them, by default over tmp_path/runs."""
    with serving() as start:
        yield lambda *folders, **access: start(*folders or [tmp_path / "runs"], cache=tmp_path / "cache", **access)


@pytest.fixture(scope="module")
def client(tmp_path_factory):
    """A client of a server with one run, for the tests of a module."""
    folder = tmp_path_factory.mktemp("guarded")
    (folder / "mine").mkdir()
    (folder / "mine" / "scalars.jsonl").write_text('{"step": 1, "epoch": 1, "time": 1.0, "at": "step", "loss": 0.5}\n')
    with serving() as start:
        yield start(folder, cache=folder / "cache")
