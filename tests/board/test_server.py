"""Loopback addresses, token files and ports."""

from __future__ import annotations

import socket

import pytest

from hookpoint.board.server import is_loopback, read_token, serve
from hookpoint.core.errors import BadArgument


@pytest.mark.parametrize(
    ("host", "expected"),
    [
        ("127.0.0.1", True),
        ("127.1.2.3", True),
        ("::1", True),
        ("localhost", True),
        ("0.0.0.0", False),
        ("::", False),
        ("a.b", False),
    ],
)
def test_is_loopback_recognizes_loopback_addresses(host, expected):
    assert is_loopback(host) is expected


def test_a_token_file_is_created_and_read_again(tmp_path):
    token = read_token(tmp_path / "token")
    assert len(token) >= 32
    assert (tmp_path / "token").stat().st_mode & 0o777 == 0o600
    assert read_token(tmp_path / "token") == token


def test_a_token_file_that_others_can_read_raises(tmp_path):
    read_token(tmp_path / "token")
    (tmp_path / "token").chmod(0o640)
    with pytest.raises(BadArgument, match="must be a file that only you can read"):
        read_token(tmp_path / "token")


@pytest.mark.parametrize("text", ["", "short", "with a space in it, but long", "ümlauts-are-not-for-headers", "x" * 15])
def test_an_invalid_token_raises(tmp_path, text):
    read_token(tmp_path / "token")
    (tmp_path / "token").write_text(text)
    with pytest.raises(BadArgument, match="at least 16 letters and digits"):
        read_token(tmp_path / "token")


def test_a_port_in_use_raises(tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as other, pytest.raises(OSError, match="in use"):
        serve([tmp_path], port=other.getsockname()[1], on_ready=print)
