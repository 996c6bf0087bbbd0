"""Run `hookpoint demo` and draw it for the README, into docs/images: `make pictures`. No test runs it: it takes a minute."""

from __future__ import annotations

import argparse
import fcntl
import io
import os
import pty
import re
import struct
import subprocess
import sys
import tempfile
import termios
from pathlib import Path

from rich._export_format import CONSOLE_SVG_FORMAT
from rich.console import Console
from rich.terminal_theme import TerminalTheme
from rich.text import Text

import hookpoint

ROOT = Path(__file__).parents[1]
IMAGES = Path(__file__).with_name("images")
COLUMNS, ROWS = 96, 28
MOST_BYTES = 200_000

# As rich has it, but with fonts that readers have: a picture in a README fetches nothing.
FONTS = "ui-monospace, 'DejaVu Sans Mono', Menlo, Consolas, monospace"
TEMPLATE = re.sub(r"@font-face \{\{.*?\}\}\s*|<!--.*?-->\s*", "", CONSOLE_SVG_FORMAT, flags=re.DOTALL)
TEMPLATE = TEMPLATE.replace("Fira Code, monospace", FONTS).replace("font-family: arial", "font-family: sans-serif")
BACK, FRONT = (24, 27, 33), (214, 218, 226)
DARK = [BACK, (224, 108, 117), (126, 190, 118), (229, 192, 123), (97, 175, 239), (198, 120, 221), (86, 182, 194), FRONT]
BRIGHT = [(110, 116, 128), (240, 130, 138), (150, 210, 140), (240, 210, 150), (130, 195, 250), (215, 150, 235), (120, 205, 215)]
THEME = TerminalTheme(BACK, FRONT, DARK, [*BRIGHT, (255, 255, 255)])


class Screen:
    """What a terminal shows: lines with their colours, of which the last ones may be drawn again."""

    _PIECES = re.compile(
        r"\x1b\[(?P<numbers>[?\d;]*)(?P<letter>[A-Za-z])|(?P<control>[\r\n])|(?P<text>[^\x1b\r\n]+)|(?P<other>.)"
    )

    def __init__(self) -> None:
        self.lines = [""]
        self._row = 0
        self._is_at_begin = True

    def feed(self, stream: str) -> None:
        for piece in self._PIECES.finditer(stream):
            if piece["control"] == "\n":
                self._row += 1
                self.lines += [""] * (self._row + 1 - len(self.lines))
                self._is_at_begin = True
            elif piece["control"] == "\r":
                self._is_at_begin = True
            elif piece["letter"] == "A":
                self._row = max(0, self._row - int(piece["numbers"] or 1))
            elif piece["letter"] == "K":
                self.lines[self._row] = ""
            elif piece["text"] or piece["letter"] == "m":
                if self._is_at_begin and piece["text"]:
                    self.lines[self._row], self._is_at_begin = "", False
                self.lines[self._row] += piece[0]


def recorded(command: list[str], folder: Path) -> str:
    """Run a command in a terminal of its own; return what it wrote there."""
    ours, its = pty.openpty()
    fcntl.ioctl(its, termios.TIOCSWINSZ, struct.pack("HHHH", ROWS, COLUMNS, 0, 0))
    surroundings = {**os.environ, "TERM": "xterm-256color", "COLORTERM": "truecolor", "PYTHONUNBUFFERED": "1"}
    surroundings.pop("NO_COLOR", None)
    surroundings["PATH"] = os.pathsep.join([os.path.dirname(sys.executable), surroundings.get("PATH", "")])
    stream = b""
    with subprocess.Popen(command, cwd=folder, env=surroundings, stdin=its, stdout=its, stderr=its) as process:
        os.close(its)
        try:
            while piece := os.read(ours, 65_536):
                stream += piece
        except OSError:  # Linux says so when the other end is closed
            pass
    os.close(ours)
    if process.returncode:
        raise SystemExit(f"{' '.join(command)} ended with {process.returncode}:\n{stream.decode(errors='replace')[-2000:]}")
    return stream.decode(errors="replace")


def terminal_picture(title: str, lines: list[str]) -> str:
    """Return lines of a terminal as an SVG that needs no other file."""
    console = Console(record=True, width=COLUMNS, file=io.StringIO(), force_terminal=True, color_system="truecolor")
    for line in [*lines, ""]:  # the picture cuts into a last line
        console.print(Text.from_ansi(line), overflow="crop", no_wrap=True)
    return console.export_svg(title=title, theme=THEME, code_format=TEMPLATE, unique_id="terminal")


def main(epochs: int) -> None:
    IMAGES.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        screen = Screen()
        screen.feed(recorded(["hookpoint", "demo", "--epochs", str(epochs)], folder).replace(f"{ROOT}/", ""))
        lines = screen.lines
        while not Text.from_ansi(lines[-1]).plain.strip():
            lines.pop()
        typed = f"\x1b[1m$ hookpoint demo --epochs {epochs}\x1b[0m"
        shown = [typed, *lines[:4], "\x1b[2m...\x1b[0m", *lines[6 - ROWS :]] if len(lines) >= ROWS else [typed, *lines]
        (IMAGES / "terminal.svg").write_text(terminal_picture("hookpoint demo", shown))
        metrics = ["loss", "val-error-top1", "learning_rate"]
        hookpoint.plot(folder / "runs" / "digits", path=IMAGES / "curves.png", metrics=metrics, x="epoch")
    for picture in sorted(IMAGES.iterdir()):
        print(f"{picture.relative_to(ROOT)}  {picture.stat().st_size:,} bytes")
        if picture.stat().st_size > MOST_BYTES:
            raise SystemExit(f"{picture.name} is too large for a README: more than {MOST_BYTES:,} bytes")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, default=12)
    main(parser.parse_args().epochs)
