"""RequestGuard: decide which requests the server answers. This happens before requests are routed."""

from __future__ import annotations

import hmac
import ipaddress
import secrets
from collections.abc import Iterable
from dataclasses import dataclass, field
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
FROM_A_LINK = "This page does not open from a link on another page: copy the address into the browser's address bar."


class SingleUseToken:
    """A token that works only once. It is passed on the browser's command line, which all users of the machine can see."""

    def __init__(self) -> None:
        self.value = secrets.token_urlsafe(24)
        self._is_used = False

    def use(self, given: str) -> bool:
        """Use up the token if `given` is correct. Return False if it is wrong, or if the token has already been used."""
        if self._is_used or not _is_equal(given, self.value):
            return False
        self._is_used = True
        return True


@dataclass(frozen=True, slots=True)
class Access:
    """The rules for access to the server: its port, its token, the host names that it accepts, and whether it refuses commands.

    With `any_address`, any IP address is also accepted as a host. This is safe, because DNS rebinding needs a host name.
    """

    port: int
    token: str
    hosts: Iterable[str] = ("127.0.0.1", "localhost", "[::1]")
    any_address: bool = False
    read_only: bool = False
    once: SingleUseToken = field(default_factory=SingleUseToken)


class RequestGuard:
    """Refuse requests from other pages, for other hosts, or without the token. Add security headers to every response.

    A request needs an exact Host header, which stops DNS rebinding. A foreign Origin or Sec-Fetch-Site is refused: cookies are
    shared by all ports, so a page from another server on this machine would send our cookie. `/?token=` exchanges the token
    for a cookie. `/?once=` does the same with the single-use token. Commands also need JSON and a custom header.
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

        rejection = self._rejection(scope)
        await (self._app if rejection is None else rejection)(scope, receive, with_headers)

    def _rejection(self, scope: Scope) -> Response | None:
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
            is_link = headers.get("sec-fetch-mode") == "navigate"
            return PlainTextResponse(FROM_A_LINK if is_link else "requests from other pages are refused", 403)
        query = parse_qs(scope["query_string"].decode("latin-1")) if scope["path"] == "/" else {}
        if "token" in query or "once" in query:
            return self._signed_in(query)
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

    def _signed_in(self, query: dict[str, list[str]]) -> Response:
        if "token" in query:
            is_known = _is_equal(query["token"][-1], self._access.token)
        else:
            is_known = self._access.once.use(query["once"][-1])
        if not is_known:
            return PlainTextResponse("wrong or already used token: open the address that hookpoint board has printed", 403)
        response = RedirectResponse("/", 303)
        response.set_cookie(self._cookie, self._session, httponly=True, samesite="strict", path="/")
        return response

    def _has_signed_in(self, headers: dict[str, str]) -> bool:
        cookies = [cookie.strip().partition("=") for cookie in headers.get("cookie", "").split(";")]
        # There may be several cookies with this name, because a server on another port can set one too.
        values = [value for name, _, value in cookies if name == self._cookie]
        bearer = headers.get("authorization", "")
        return any(_is_equal(value, self._session) for value in values) or _is_equal(bearer, f"Bearer {self._access.token}")

    def _refused_command(self, headers: dict[str, str]) -> Response | None:
        if self._access.read_only:
            return PlainTextResponse("this board is read-only", 403)
        if headers.get(OWN_HEADER) != "1" or headers.get("content-type", "").partition(";")[0] != "application/json":
            return PlainTextResponse(f"a command needs the headers {OWN_HEADER}: 1 and content-type: application/json", 403)
        length = headers.get("content-length", "")
        if not length.isdecimal():
            return PlainTextResponse("a command needs a Content-Length", 411)
        return PlainTextResponse("this command is too long", 413) if int(length) > MAX_BODY_BYTES else None


def _is_equal(given: str, expected: str) -> bool:
    return hmac.compare_digest(given.encode("utf-8", "surrogateescape"), expected.encode())
