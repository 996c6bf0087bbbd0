"""`hookpoint board`: a local web page with live curves, events, settings and controls for runs."""

from __future__ import annotations

import errno
import os
import sys
import webbrowser
from contextlib import suppress
from pathlib import Path
from threading import Thread

import click

from hookpoint.cli._output import note, print_lines
from hookpoint.run_folder.command_error import IN_USE, USAGE, CommandError
from hookpoint.run_folder.find_run import default_folder
from hookpoint.run_folder.formatting import shown


@click.command(short_help="Show runs in the browser.")
@click.argument("folders", metavar="[FOLDER]...", nargs=-1, type=click.Path(path_type=Path))
@click.option(
    "--port", type=click.IntRange(0, 65_535), metavar="N", help="The port. Default: 8787, or a free port if 8787 is in use."
)
@click.option("--host", default="127.0.0.1", show_default=True, metavar="ADDRESS", help="The address to listen on.")
@click.option("--token-file", type=click.Path(path_type=Path), metavar="FILE", help="Use the token in this file.")
@click.option("--read-only", is_flag=True, help="Show the runs, but do not let the page control them.")
@click.option("--no-open", is_flag=True, help="Do not open the browser.")
def board(
    folders: tuple[Path, ...], port: int | None, host: str, token_file: Path | None, read_only: bool, no_open: bool
) -> None:
    """Serve a web page that shows the runs in FOLDER: live curves, events, checkpoints, settings and controls.

    Without FOLDER, the page shows the runs in runs/ if that folder exists, otherwise in the current folder. The address
    contains a token: anyone who has the address can read and control the runs. Ctrl-C ends the server. The server writes
    nothing to run folders except the commands that you send.

    \b
    Examples:
      hookpoint board
      hookpoint board runs /shared/runs --read-only
      hookpoint board --port 8787 --no-open     and ssh -L 8787:127.0.0.1:8787 HOST on your own machine
    """
    for folder in folders:
        if not folder.is_dir():
            raise CommandError(f"{shown(folder)} is not a folder; expected a folder with runs", USAGE)
    try:
        from hookpoint.board.server import is_loopback, read_token, serve
    except ImportError as error:
        raise CommandError(f"the board needs {error.name}: pip install 'hookpoint[board]'", USAGE) from None
    if not is_loopback(host) and token_file is None:
        what = f"--host {shown(host)} lets other machines connect, so it needs --token-file FILE"
        raise CommandError(f"{what}; a tunnel (ssh -L 8787:127.0.0.1:8787 HOST) needs neither", USAGE)
    token = None if token_file is None else read_token(token_file)

    def announce(url: str, url_for_browser: str) -> None:
        print_lines([url])
        sys.stdout.flush()
        note("Ctrl-C ends the board.")
        if not no_open and _has_browser():
            Thread(target=_open, args=(url_for_browser,), daemon=True).start()

    try:
        serve(folders or [default_folder()], host=host, port=port, token=token, read_only=read_only, on_ready=announce)
    except OSError as error:
        where = shown(host) if port is None else f"{shown(host)}, port {port}"
        what = f"cannot listen on {where}: {error.strerror or error}"
        cure = "; leave out --port to use a free port" if error.errno == errno.EADDRINUSE else ""
        raise CommandError(what + cure, IN_USE) from None


def _open(url: str) -> None:
    with suppress(webbrowser.Error, OSError):
        webbrowser.open(url)


def _has_browser() -> bool:
    """Return whether a browser window can probably be opened on the user's screen."""
    if not sys.stdout.isatty() or os.environ.get("SSH_CONNECTION"):
        return False
    return sys.platform != "linux" or bool(os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY"))
