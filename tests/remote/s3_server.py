"""An S3 server on loopback that can kill its client in the middle of an upload."""

from __future__ import annotations

import io
import os
import signal
import threading
from typing import Any, Literal

from moto.moto_server.werkzeug_app import DomainDispatcherApplication, create_backend_app
from werkzeug.serving import WSGIRequestHandler, make_server

Moment = Literal["before", "middle", "after"]
PATIENCE_SECONDS = 100
CHANGES = ("PUT", "POST", "DELETE")


class Quiet(WSGIRequestHandler):
    def log(self, *args: Any) -> None:
        pass


class S3Server:
    """Serve moto's S3, and count the requests that change something.

    `kill_at(number, moment)` kills the client with SIGKILL at a request: before the server reads its body, after half of the
    body, or after the object is stored but before the client gets an answer.
    """

    def __init__(self) -> None:
        self.changes = self.manifests = 0
        self.client: int | None = None
        self.killed = threading.Event()
        self._kill: tuple[int, Moment] | None = None
        self._lock = threading.Lock()
        self._changed = threading.Condition(self._lock)
        self._app = DomainDispatcherApplication(create_backend_app)
        self._server = make_server("127.0.0.1", 0, self._serve, threaded=True, request_handler=Quiet)
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_port}"

    def __enter__(self) -> S3Server:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    def wait_for_manifests(self, number: int) -> None:
        """Wait until `number` checkpoints are complete, or the client is killed."""
        with self._lock:
            assert self._changed.wait_for(lambda: self.manifests >= number or self.killed.is_set(), PATIENCE_SECONDS)

    def kill_at(self, number: int, moment: Moment) -> None:
        self.killed.clear()
        self.changes, self._kill = 0, (number, moment)

    def _serve(self, environ: dict[str, Any], start_response: Any) -> Any:
        with self._lock:
            is_change = environ["REQUEST_METHOD"] in CHANGES
            self.changes += is_change
            kill = self._kill if is_change and self._kill is not None and self._kill[0] == self.changes else None
            if kill is not None:
                self._kill = None
        if kill is None:
            answer = list(self._app(environ, start_response))
            with self._lock:
                self.manifests += environ["REQUEST_METHOD"] == "PUT" and environ["PATH_INFO"].endswith("/manifest.json")
                self._changed.notify_all()
            return answer
        if kill[1] == "middle":
            environ["wsgi.input"].read(int(environ.get("CONTENT_LENGTH") or 0) // 2)
        if kill[1] == "after":
            environ["wsgi.input"] = io.BytesIO(environ["wsgi.input"].read(int(environ.get("CONTENT_LENGTH") or 0)))
            list(self._app(environ, lambda *answer: None))
        assert self.client is not None
        os.kill(self.client, signal.SIGKILL)
        with self._lock:
            self.killed.set()
            self._changed.notify_all()
        start_response("503 Service Unavailable", [])
        return []
