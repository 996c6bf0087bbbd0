"""Only a page with the token gets an answer."""

from __future__ import annotations

import json
import socket

import anyio
import pytest
from starlette.responses import PlainTextResponse

from hookpoint.board._request_guard import Access, RequestGuard

JSON = {"Content-Type": "application/json", "X-Hookpoint": "1"}
BODY = json.dumps({"do": "stop"}).encode()


def test_the_token_is_exchanged_for_a_cookie_of_this_port(client):
    status, headers, _ = client.send("GET", f"/?token={client.token}", signed_in=False)
    assert (status, headers["location"]) == (303, "/")
    cookie = headers["set-cookie"]
    assert cookie.startswith(f"hookpoint_board_{client.port}=")
    assert "HttpOnly" in cookie
    assert "SameSite=strict" in cookie
    assert client.token not in cookie
    name = cookie.partition(";")[0]
    assert client.send("GET", "/", signed_in=False, headers={"Cookie": f"other=1; {name}; last=2"})[0] == 200


def test_an_invalid_cookie_of_the_same_name_is_ignored(client):
    _, headers, _ = client.send("GET", f"/?token={client.token}", signed_in=False)
    own, other = headers["set-cookie"].partition(";")[0], f"hookpoint_board_{client.port}=x"
    for cookies in (f"{own}; {other}", f"{other}; {own}"):
        assert client.send("GET", "/", signed_in=False, headers={"Cookie": cookies})[0] == 200


def test_a_one_time_token_works_once():
    access = Access(8787, "the token")
    app = RequestGuard(PlainTextResponse("hello"), access)

    def status(once):
        messages = []
        path = {"type": "http", "method": "GET", "path": "/", "query_string": f"once={once}".encode()}

        async def send(message):
            messages.append(message)

        anyio.run(app, {**path, "headers": [(b"host", b"127.0.0.1:8787")]}, None, send)
        return messages[0]["status"]

    assert [status(once) for once in ("wrong", access.once.value, access.once.value)] == [403, 303, 403]


def test_a_link_from_another_page_is_rejected_with_advice(client):
    headers = {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate"}
    status, _, body = client.send("GET", f"/?token={client.token}", signed_in=False, headers=headers)
    assert (status, b"address bar" in body) == (403, True)


@pytest.mark.parametrize("path", ["/", "/board.js", "/api/runs", "/api/stream", "/api/run/x/series", "/nothing"])
@pytest.mark.parametrize("headers", [{}, {"Cookie": "hookpoint_board=x"}, {"Authorization": "Bearer wrong"}, {"Cookie": "ü=ü"}])
def test_requests_without_the_token_are_rejected(client, path, headers):
    assert client.send("GET", path, signed_in=False, headers=headers)[0] == 401


@pytest.mark.parametrize("token", ["wrong", "%C3%BC", "%FF", "%00"])
def test_a_wrong_token_is_rejected_without_a_cookie(client, token):
    status, headers, _ = client.send("GET", f"/?token={token}", signed_in=False)
    assert status == 403
    assert "set-cookie" not in headers


@pytest.mark.parametrize(
    "host",
    [
        "evil.example",
        "evil.example:{port}",
        "127.0.0.1",
        "127.0.0.1:1",
        "localhost.evil.example:{port}",
        "",
        "192.168.0.1:{port}",
    ],
)
def test_other_hosts_are_rejected_even_with_the_token(client, host):
    host = host.format(port=client.port)
    assert client.send("GET", f"/?token={client.token}", headers={"Host": host})[0] == 421
    assert client.send("POST", "/api/run/x/control", headers={"Host": host, **JSON}, body=BODY)[0] == 421


def test_loopback_host_names_are_accepted(client):
    for host in ("localhost", "[::1]", "LOCALHOST"):
        assert client.send("GET", "/api/runs", headers={"Host": f"{host}:{client.port}"})[0] == 200


def test_requests_without_a_host_or_with_two_are_rejected(client):
    assert client.send("GET", "/api/runs", headers={"Host": None})[0] in (400, 421)
    with socket.create_connection(("127.0.0.1", client.port), timeout=250) as connection:
        host = f"Host: 127.0.0.1:{client.port}\r\nHost: evil.example\r\n"
        connection.sendall(f"GET /api/runs HTTP/1.1\r\n{host}Authorization: Bearer {client.token}\r\n\r\n".encode())
        assert connection.recv(100).split()[1] == b"400"


@pytest.mark.parametrize(
    "headers",
    [
        {"Origin": "http://127.0.0.1:1"},
        {"Origin": "http://localhost:{port}"},  # a different origin than 127.0.0.1
        {"Origin": "https://127.0.0.1:{port}"},
        {"Origin": "null"},
        {"Origin": "http://evil.example"},
        {"Sec-Fetch-Site": "same-site"},
        {"Sec-Fetch-Site": "cross-site"},
    ],
)
def test_requests_from_other_pages_are_rejected(client, headers):
    headers = {name: value.format(port=client.port) for name, value in headers.items()}
    for method in ("GET", "POST", "OPTIONS", "PUT"):
        status, answer, _ = client.send(
            method, "/api/runs", headers={**headers, **JSON}, body=BODY if method != "GET" else None
        )
        assert status == 403
        assert not any(name.startswith("access-control") for name in answer)


@pytest.mark.parametrize("site", ["same-origin", "none"])
def test_requests_from_the_boards_page_are_answered(client, site):
    headers = {"Origin": f"http://127.0.0.1:{client.port}", "Sec-Fetch-Site": site}
    assert client.send("GET", "/api/runs", headers=headers)[0] == 200


@pytest.mark.parametrize(
    ("headers", "code"),
    [
        ({}, 403),
        ({"X-Hookpoint": "1"}, 403),
        ({"Content-Type": "application/json"}, 403),
        ({"Content-Type": "text/plain", "X-Hookpoint": "1"}, 403),
        ({**JSON, "Content-Length": None, "Transfer-Encoding": "chunked"}, 411),
        (JSON, 200),
    ],
)
def test_a_command_needs_hookpoints_header_and_json(client, headers, code):
    key = client.key("mine")
    body = BODY if "Transfer-Encoding" not in headers else b"%x\r\n%b\r\n0\r\n\r\n" % (len(BODY), BODY)
    assert client.send("POST", f"/api/run/{key}/control", headers=headers, body=body)[0] == code


def test_a_command_that_is_too_long_is_rejected(client):
    body = json.dumps({"do": "set", "args": {"x": "y" * 2**16}}).encode()
    assert client.send("POST", f"/api/run/{client.key('mine')}/control", headers=JSON, body=body)[0] == 413


@pytest.mark.parametrize("body", [b"", b"no", b"[]", b"{}", b'{"do": 1}', b'{"do": "set", "args": []}', b"[" * 5000])
def test_an_invalid_command_is_rejected(client, body):
    assert client.send("POST", f"/api/run/{client.key('mine')}/control", headers=JSON, body=body)[0] == 400


def test_a_read_only_board_rejects_every_command(board, train_run):
    train_run()
    client = board(read_only=True)
    assert client.get("/api/runs")["read_only"] is True
    for method in ("POST", "PUT", "DELETE", "PATCH"):
        status, _, text = client.send(method, f"/api/run/{client.key('mine')}/control", headers=JSON, body=BODY)
        assert (status, text) == (403, b"this board is read-only")


def test_every_answer_has_security_headers(client):
    for path, options in (("/", {}), ("/nothing", {}), ("/api/runs", {"signed_in": False}), ("/", {"headers": {"Host": "x"}})):
        _, headers, _ = client.send("GET", path, **options)
        assert headers["content-security-policy"].startswith("default-src 'none'; script-src 'self'")
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["cross-origin-resource-policy"] == "same-origin"
        assert headers["cache-control"] == "no-store"


@pytest.mark.parametrize(
    "path",
    [
        "/../../../../etc/passwd",
        "/page/../_application.py",
        "/%2e%2e/%2e%2e/etc/passwd",
        "/api/run/..%2f..%2fmine",
        "/api/run/../../mine/series",
        "/api/run/mine",
        "/api/run/%2Fetc/series",
        "/board.js/..",
        "/_application.py",
        "/api/run//control",
        "/api/diff?runs=../mine",
    ],
)
def test_paths_in_requests_are_never_opened(client, path):
    assert client.send("GET", path)[0] == 404


def test_a_websocket_from_another_page_is_rejected(client):
    headers = {
        "Connection": "Upgrade",
        "Upgrade": "websocket",
        "Sec-WebSocket-Version": "13",
        "Sec-WebSocket-Key": "eHh4eHh4eHh4eHh4eHh4eA==",
    }
    assert client.send("GET", "/api/stream", headers={**headers, "Origin": "http://127.0.0.1:1"})[0] == 403


def test_with_any_address_ip_hosts_are_accepted_and_names_rejected(board, tmp_path):
    client = board(tmp_path, any_address=True)
    for host, code in (("10.1.2.3", 200), ("[fe80::1]", 200), ("evil.example", 421), ("1.evil", 421)):
        assert client.send("GET", "/api/runs", headers={"Host": f"{host}:{client.port}"})[0] == code
