"""RemoteMonitor: POST the values of each epoch to a server."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from http.client import HTTPException
from typing import ClassVar, Unpack
from urllib.error import HTTPError, URLError
from urllib.parse import urlencode, urlsplit
from urllib.request import HTTPRedirectHandler, OpenerDirector, ProxyHandler, Request, build_opener

from hookpoint.core.callback.callback import Callback, Options
from hookpoint.core.errors import BadArgument
from hookpoint.core.log.records import Record
from hookpoint.core.loop.services import machine_of
from hookpoint.core.run.run import Run
from hookpoint.core.text.plain_values import plain
from hookpoint.monitors._chart_values import call_each
from hookpoint.monitors._row_values import EpochValues

LOCALHOST = ("localhost", "127.0.0.1", "::1")


class RemoteMonitor(Callback):
    """POST the values of each epoch to a server, as JSON: `{"epoch": 1, "loss": 0.5, "val_loss": 0.7}`.

    root, path: The address. Hosts other than this machine must use https, unless you trust the network and pass
        `allow_http=True`.
    send_as_json: If False, send a form whose `field` contains the JSON text. The default is True. In Keras, the default is
        False.
    headers: Headers to add to every request, such as a token.
    timeout_seconds: How long to wait for a response.

    Epochs count from 1. In Keras, they count from 0. Values that are logged after the last epoch are sent at the end of the
    run, with the number of that epoch.

    NaN and infinity are sent as the strings "nan", "inf" and "-inf". A metric called "epoch" becomes "values/epoch". Any
    response other than 2xx is a failure, including redirects.

    A slow server never blocks a step: if more than 1000 records are waiting, the oldest are dropped. After three failures in a
    row, nothing more is sent. If a run resumes in the middle of an epoch, the values that this epoch logged before the
    checkpoint was saved are sent too.

    >>> RemoteMonitor("https://example.org", headers={"Authorization": "Bearer ..."}).address
    'https://example.org/publish/epoch/end/'
    """

    ranks = "chief"
    on_error = "warn"
    outside = True
    step_cost: ClassVar[str] = "nothing"

    def __init__(
        self,
        root: str = "http://localhost:9000",
        path: str = "/publish/epoch/end/",
        field: str = "data",
        headers: Mapping[str, str] | None = None,
        send_as_json: bool = True,
        timeout_seconds: float = 10,
        *,
        allow_http: bool = False,
        **options: Unpack[Options],
    ) -> None:
        super().__init__(**options)
        for argument, value in {"root": root, "path": path, "field": field}.items():
            if not isinstance(value, str):
                raise BadArgument(f"RemoteMonitor: {argument} must be a string, got {value!r}.")
        if headers is not None and not isinstance(headers, Mapping):
            raise BadArgument("RemoteMonitor: headers must be a dict.", write='headers={"Authorization": "Bearer ..."}')
        self.address = f"{root.rstrip('/')}/{path.lstrip('/')}"
        self._origin = _checked(self.address, allow_http=allow_http)
        self.field = field
        self.headers = dict(headers or {})
        for name, value in self.headers.items():
            if not isinstance(name, str) or not isinstance(value, str) or not f"{name}{value}".isprintable():
                raise BadArgument(f"RemoteMonitor: header {name!r} must be a single line of text.")
        self.send_as_json = send_as_json
        is_number = isinstance(timeout_seconds, int | float) and not isinstance(timeout_seconds, bool)
        if not is_number or not 0 < timeout_seconds < math.inf:
            raise BadArgument(f"RemoteMonitor: timeout_seconds must be a number > 0, got {timeout_seconds!r}.")
        self.timeout_seconds = timeout_seconds
        self._values = EpochValues()
        self._in_run = False

    def on_run_begin(self, run: Run) -> None:
        self._values = EpochValues(machine_of(run).clocks.epochs_done)
        self._in_run = True

    def on_load(self, run: Run) -> None:
        if machine_of(run).clocks.epochs_done < run.epoch:
            # The values come from the run's metrics, not from this monitor's state. A checkpoint does not wait for a monitor
            # that uses the network, so its state would lack the records that are still queued.
            self._values.gathered = self._values.named(run.metrics.finals_of(run.epoch))

    def on_records(self, records: list[Record]) -> None:
        if self._in_run:
            rows = [self._values.take(record) for record in records]
            call_each(self._post, [row for row in rows if row is not None])

    def on_run_end(self, run: Run) -> None:
        row = self._values.last(run) if self._in_run else None
        self._in_run = False
        if row is not None:
            self._post(row)

    def _post(self, row: Mapping[str, float]) -> None:
        text = json.dumps(plain(row), allow_nan=False)
        body = text if self.send_as_json else urlencode({self.field: text})
        kind = "application/json" if self.send_as_json else "application/x-www-form-urlencoded"
        request = Request(self.address, body.encode(), {"Content-Type": kind, **self.headers}, method="POST")
        try:
            _opener(request).open(request, timeout=self.timeout_seconds).close()
        except HTTPError as error:
            error.close()
            raise ConnectionError(f"{self._origin} responded {error.code} {error.reason}") from None
        except (OSError, HTTPException) as error:
            reason = error.reason if isinstance(error, URLError) else error
            raise ConnectionError(f"{self._origin} did not accept an epoch: {reason}") from None


class NoRedirect(HTTPRedirectHandler):
    """Reject redirects, because they would send the headers to another address."""

    def redirect_request(self, *args: object, **kwargs: object) -> None:
        return None


def _opener(request: Request) -> OpenerDirector:
    is_local = urlsplit(request.full_url).hostname in LOCALHOST
    return build_opener(NoRedirect, *([ProxyHandler({})] if is_local else []))


def _checked(address: str, *, allow_http: bool) -> str:
    """Return the scheme and host of an address, or raise BadArgument."""
    url = urlsplit(address)
    is_valid = address.isascii() and address.isprintable() and " " not in address
    try:
        is_valid = is_valid and url.scheme in ("http", "https") and bool(url.hostname) and url.port != 0
    except ValueError:  # the port is not a number
        is_valid = False
    if not is_valid:
        raise BadArgument("RemoteMonitor: root and path must form the address of a server.", write='"https://example.org"')
    if url.username is not None or url.password is not None:
        raise BadArgument("RemoteMonitor: root must not contain a user name or a password.", write="headers= instead")
    if url.scheme == "http" and url.hostname not in LOCALHOST and not allow_http:
        raise BadArgument(
            f"RemoteMonitor: http://{url.netloc} is not encrypted.",
            write=f"https://{url.netloc}",
            set="allow_http=True instead, if you trust the network",
        )
    return f"{url.scheme}://{url.netloc}"
