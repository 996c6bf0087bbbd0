"""Serve the board: bind a port, report the address, and answer requests until Ctrl-C."""

from __future__ import annotations

import ipaddress
import os
import secrets
import socket
import stat
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from types import FrameType

import uvicorn

from hookpoint.board._application import Board
from hookpoint.board._request_guard import Access
from hookpoint.core.errors import BadArgument

DEFAULT_PORT = 8787
LOOPBACK = ("127.0.0.1", "localhost", "[::1]")
MIN_TOKEN_CHARACTERS = 16
MAX_TOKEN_BYTES = 4096


def serve(
    folders: Sequence[Path],
    *,
    host: str = "127.0.0.1",
    port: int | None = None,
    token: str | None = None,
    read_only: bool = False,
    cache: Path | None = None,
    on_ready: Callable[[str, str], None],
) -> None:
    """Serve the runs below the given folders until Ctrl-C is pressed. Call `on_ready` once the server answers.

    `on_ready` receives two addresses. The first contains the token. The second works only once. Use the second to start the
    browser, because all users of the machine can see the browser's command line.

    Without `port`, the server uses port 8787, or a free port if 8787 is taken. Raises OSError if `port` cannot be used.
    """
    listening = _bound(host, port)
    own_port = listening.getsockname()[1]
    token = token or secrets.token_urlsafe(24)
    names = dict.fromkeys((*LOOPBACK, _in_url(host).lower(), *(() if is_loopback(host) else _names_of_this_machine())))
    access = Access(own_port, token, tuple(names), any_address=not is_loopback(host), read_only=read_only)
    board = Board(list(folders), access, cache=cache)
    shown = "127.0.0.1" if host in ("0.0.0.0", "::") else _in_url(host)
    config = uvicorn.Config(
        board.app,
        log_level="error",
        access_log=False,
        lifespan="on",
        ws="none",
        server_header=False,
        timeout_graceful_shutdown=2,
    )
    with listening:
        address = f"http://{shown}:{own_port}/"
        ready = partial(on_ready, f"{address}?token={token}", f"{address}?once={access.once.value}")
        _Server(config, board, ready).run(sockets=[listening])


class _Server(uvicorn.Server):
    """A server that ends its streams when a signal asks it to exit. Open streams would otherwise keep it alive."""

    def __init__(self, config: uvicorn.Config, board: Board, on_ready: Callable[[], None]) -> None:
        super().__init__(config)
        self._board = board
        self._on_ready = on_ready

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if self.started:
            self._on_ready()

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        super().handle_exit(sig, frame)
        self._board.stop()


def is_loopback(host: str) -> bool:
    """Return whether an address can be reached only from this machine."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def read_token(path: Path) -> str:
    """Read the token from a file. If the file does not exist, create it with a new token. Only the file's owner can read it.

    Raises BadArgument if others can read the file, or if the token is too short or contains invalid characters.
    """
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        return _checked_token(path)
    token = secrets.token_urlsafe(24)
    with open(descriptor, "w") as file:
        file.write(f"{token}\n")
    return token


def _checked_token(path: Path) -> str:
    with open(path, "rb") as file:
        status = os.fstat(file.fileno())
        if not stat.S_ISREG(status.st_mode) or stat.S_IMODE(status.st_mode) & 0o077:
            raise BadArgument(f"{path} must be a file that only you can read.", type=f"chmod 600 {path}")
        token = file.read(MAX_TOKEN_BYTES).decode("ascii", "replace").strip()
    if len(token) < MIN_TOKEN_CHARACTERS or not token.replace("-", "").replace("_", "").isalnum() or not token.isascii():
        wanted = f"at least {MIN_TOKEN_CHARACTERS} letters and digits"
        raise BadArgument(f"{path} must contain a token of {wanted}.", delete=f"{path} to get a new one")
    return token


def _bound(host: str, port: int | None) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listening = socket.socket(family)
    try:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listening.bind((host, DEFAULT_PORT if port is None else port))
        except OSError:
            if port is not None:
                raise
            listening.bind((host, 0))
        listening.listen(128)
        listening.set_inheritable(False)
        return listening
    except BaseException:
        listening.close()
        raise


def _in_url(host: str) -> str:
    return f"[{host}]" if ":" in host else host


def _names_of_this_machine() -> tuple[str, ...]:
    return socket.gethostname().lower(), socket.getfqdn().lower()
