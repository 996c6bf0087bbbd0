"""RequestGuard: decide which requests the server answers, before anything is routed."""

from __future__ import annotations

import hmac
import ipaddress
from collections.abc import Iterable
from dataclasses import dataclass
from urllib.parse import parse_qs

from starlette.responses import PlainTextResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

CSP = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
HEADERS = {
    "content-security-policy": CSP,
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "no-referrer",
    "cross-origin-resource-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
    "cache-control": "no-store",
}
OWN_HEADER = "x-hookpoint"  # a page from another origin cannot send this header
MAX_BODY_BYTES = 2**16
READING = ("GET", "HEAD")


@dataclass(frozen=True, slots=True)
class Access:
    """Who may access the server: its port, its token, the host names that it accepts, and whether it refuses commands.

    With `any_address`, any IP address is also accepted as a host. This is safe, because DNS rebinding needs a host name.
    """

    port: int
    token: str
    hosts: Iterable[str] = ("127.0.0.1", "localhost", "[::1]")
    any_address: bool = False
    read_only: bool = False


class RequestGuard:
    """Refuse requests from other pages, for other hosts, or without the token. Add security headers to every response.

    The Host header must match exactly, which prevents DNS rebinding. Requests with a foreign Origin or Sec-Fetch-Site are
    refused: browsers share cookies between ports, so a page from another server on this machine would send the board's cookie.
    `/?token=` exchanges the token for a cookie. Commands also need a JSON body and a custom header.
    """

    def __init__(self, app: ASGIApp, access: Access) -> None:
        self._app = app
        self._access = access
        self._hosts = {f"{host}:{access.port}" for host in access.hosts}
        self._cookie = f"hookpoint_board_{access.port}"  # contains the port, because browsers share cookies between ports
        # Derived from the token, so that open pages stay signed in if the server restarts with the same token file.
        self._session = hmac.new(access.token.encode(), self._cookie.encode(), "sha256").hexdigest()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "websocket":
            await receive()
            await send({"type": "websocket.close", "code": 1008})
            return
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                own = [(name.encode(), value.encode()) for name, value in HEADERS.items()]
                message["headers"] = [*message.get("headers", ()), *own]
            await send(message)

        refusal = self._refusal(scope)
        await (self._app if refusal is None else refusal)(scope, receive, with_headers)

    def _refusal(self, scope: Scope) -> Response | None:
        headers: dict[str, str] = {}
        for name, value in scope["headers"]:
            if name in (b"host", b"origin") and name.decode() in headers:
                return PlainTextResponse("a header was sent twice", 400)
            headers[name.decode("latin-1").lower()] = value.decode("latin-1")
        host = headers.get("host", "").lower()
        if not self._is_own(host):
            return PlainTextResponse("this server does not serve that host", 421)
        if headers.get("origin", f"http://{host}") != f"http://{host}":
            return PlainTextResponse("requests from other pages are refused", 403)
        if headers.get("sec-fetch-site", "none") not in ("same-origin", "none"):
            return PlainTextResponse("requests from other pages are refused", 403)
        token = parse_qs(scope["query_string"].decode("latin-1")).get("token") if scope["path"] == "/" else None
        if token is not None:
            return self._signed_in(token[-1])
        if not self._has_signed_in(headers):
            return PlainTextResponse("open the address that hookpoint board has printed", 401)
        return None if scope["method"] in READING else self._refused_command(headers)

    def _is_own(self, host: str) -> bool:
        if host in self._hosts:
            return True
        name, _, port = host.rpartition(":")
        if not self._access.any_address or port != str(self._access.port):
            return False
        try:
            ipaddress.ip_address(name.removeprefix("[").removesuffix("]"))
        except ValueError:
            return False
        return True

    def _signed_in(self, token: str) -> Response:
        if not _is_equal(token, self._access.token):
            return PlainTextResponse("wrong token: open the address that hookpoint board has printed", 403)
        response = RedirectResponse("/", 303)
        response.set_cookie(self._cookie, self._session, httponly=True, samesite="strict", path="/")
        return response

    def _has_signed_in(self, headers: dict[str, str]) -> bool:
        cookies = dict(cookie.strip().partition("=")[::2] for cookie in headers.get("cookie", "").split(";"))
        bearer = headers.get("authorization", "")
        return _is_equal(cookies.get(self._cookie, ""), self._session) or _is_equal(bearer, f"Bearer {self._access.token}")

    def _refused_command(self, headers: dict[str, str]) -> Response | None:
        if self._access.read_only:
            return PlainTextResponse("this board is read-only", 403)
        if headers.get(OWN_HEADER) != "1" or headers.get("content-type", "").partition(";")[0] != "application/json":
            return PlainTextResponse(f"a command needs the header {OWN_HEADER}: 1 and a body of JSON", 403)
        length = headers.get("content-length", "")
        if not length.isdecimal():
            return PlainTextResponse("a command needs a Content-Length", 411)
        return PlainTextResponse("this command is too long", 413) if int(length) > MAX_BODY_BYTES else None


def _is_equal(given: str, expected: str) -> bool:
    return hmac.compare_digest(given.encode("utf-8", "surrogateescape"), expected.encode())
