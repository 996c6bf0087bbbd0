"""RemoteMonitor: post each epoch's values to a server."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from http.client import HTTPException
from typing import TYPE_CHECKING
from urllib.error import HTTPError, URLError
from urllib.parse import SplitResult, urlencode, urlsplit
from urllib.request import HTTPRedirectHandler, OpenerDirector, ProxyHandler, Request, build_opener

from hookpoint.core.callback.callback import Callback
from hookpoint.core.errors import BadArgument
from hookpoint.monitors._epoch_values import EPOCH, EpochValues

if TYPE_CHECKING:
    from typing import Unpack

    from hookpoint.core.callback.callback import Options
    from hookpoint.core.log.records import Record

HERE = ("localhost", "127.0.0.1", "::1")


class RemoteMonitor(Callback):
    """Post the values of each epoch to a server, as JSON: `{"epoch": 1, "loss": 0.5, "val_loss": 0.7}`.

    The address is `root` and `path`. Without `send_as_json` it is a form with this text as its `field`, which is what Keras
    does unless told otherwise; epochs count from 0 there. `headers` may hold a token. NaN and infinity, which JSON does not
    know, are the strings "nan", "inf" and "-inf"; a metric called "epoch" is `values/epoch`. An answer other than 2xx is a
    failure, also one that leads elsewhere. Addresses of other machines have to be https, unless `allow_http` says that the
    network in between can be trusted.

    A server that does not answer is given up on after `timeout_seconds`, and where too many records wait meanwhile, the oldest
    are dropped. One that fails three times in a row is left alone for the rest of the run, with a message each time.

    Listens to on_run_begin, on_records and on_run_end, off the training thread. Keeps nothing in the checkpoint: what an epoch
    has logged between passes before one is not posted after a resume. Runs on the chief, and never ends a run or holds one up.
    A step pays nothing.

    >>> RemoteMonitor("https://example.org", headers={"Authorization": "Bearer ..."}).address
    'https://example.org/publish/epoch/end/'
    """

    ranks = "chief"
    on_error = "warn"
    outside = True

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
        self.address = f"{root.rstrip('/')}/{path.lstrip('/')}"
        self._origin = _checked(self.address, allow_http=allow_http)
        self.field = field
        self.headers = dict(headers or {})
        for name, value in self.headers.items():
            if not isinstance(name, str) or not isinstance(value, str) or not f"{name}{value}".isprintable():
                raise BadArgument(f"RemoteMonitor: the header {name!r} is no line of text.")
        self.send_as_json = send_as_json
        if isinstance(timeout_seconds, bool) or not 0 < timeout_seconds < math.inf:
            raise BadArgument(f"RemoteMonitor(timeout_seconds={timeout_seconds!r}) means nothing.", give="a number above 0")
        self.timeout_seconds = timeout_seconds
        self._values = EpochValues()
        self._in_run = False

    def on_run_begin(self) -> None:
        self._values = EpochValues()
        self._in_run = True

    def on_records(self, records: list[Record]) -> None:
        failures = []
        for record in records if self._in_run else ():
            row = self._values.take(record)
            if row is not None:
                epoch, values = row
                try:
                    self._post({EPOCH: epoch, **{name: _plain(value) for name, value in values.items()}})
                except Exception as error:  # the next epoch is posted all the same
                    failures.append(error)
        if failures:
            raise failures[0]

    def on_run_end(self) -> None:
        self._in_run = False

    def _post(self, row: Mapping[str, float | str]) -> None:
        words = json.dumps(row, allow_nan=False)
        body = words if self.send_as_json else urlencode({self.field: words})
        kind = "application/json" if self.send_as_json else "application/x-www-form-urlencoded"
        request = Request(self.address, body.encode(), {"Content-Type": kind, **self.headers}, method="POST")
        try:
            _opener(request).open(request, timeout=self.timeout_seconds).close()
        except HTTPError as error:
            error.close()
            raise ConnectionError(f"{self._origin} answered {error.code} {error.reason}") from None
        except (OSError, HTTPException) as error:
            reason = error.reason if isinstance(error, URLError) else error
            raise ConnectionError(f"{self._origin} did not take an epoch: {reason}") from None


class NoRedirect(HTTPRedirectHandler):
    """Follow no answer elsewhere: headers would be sent there as well."""

    def redirect_request(self, *args: object, **kwargs: object) -> None:
        return None


def _opener(request: Request) -> OpenerDirector:
    is_here = urlsplit(request.full_url).hostname in HERE
    return build_opener(NoRedirect, *([ProxyHandler({})] if is_here else []))


def _checked(address: str, *, allow_http: bool) -> str:
    """Return the part of an address that names the server; refuse what is none."""
    parts = urlsplit(address)
    is_one = address.isascii() and address.isprintable() and " " not in address
    if not is_one or parts.scheme not in ("http", "https") or not parts.hostname or _port(parts) == 0:
        raise BadArgument("RemoteMonitor(root=...) is no address of a server.", write='"https://example.org"')
    if parts.username is not None or parts.password is not None:
        raise BadArgument("RemoteMonitor(root=...) holds a name or a password.", give="headers= instead")
    if parts.scheme == "http" and parts.hostname not in HERE and not allow_http:
        raise BadArgument(
            f"RemoteMonitor: what is sent to http://{parts.netloc} can be read on its way.",
            write=f"https://{parts.netloc}",
            give="or allow_http=True for a network that can be trusted",
        )
    return f"{parts.scheme}://{parts.netloc}"


def _port(parts: SplitResult) -> int | None:
    try:
        return parts.port
    except ValueError:  # it is no number
        return 0


def _plain(value: float) -> float | str:
    return value if math.isfinite(value) else str(value)
