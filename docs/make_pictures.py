"""Run `hookpoint demo` and redraw the README images in docs/images.

Run this script with `make pictures`. It takes a minute. The tests do not run this script.
"""

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
MAX_BYTES = 200_000

# rich's template with local fonts: an image in a README cannot load web fonts.
FONTS = "ui-monospace, 'DejaVu Sans Mono', Menlo, Consolas, monospace"
TEMPLATE = re.sub(r"@font-face \{\{.*?\}\}\s*|<!--.*?-->\s*", "", CONSOLE_SVG_FORMAT, flags=re.DOTALL)
TEMPLATE = TEMPLATE.replace("Fira Code, monospace", FONTS).replace("font-family: arial", "font-family: sans-serif")
BACK, FRONT = (24, 27, 33), (214, 218, 226)
DARK = [BACK, (224, 108, 117), (126, 190, 118), (229, 192, 123), (97, 175, 239), (198, 120, 221), (86, 182, 194), FRONT]
BRIGHT = [(110, 116, 128), (240, 130, 138), (150, 210, 140), (240, 210, 150), (130, 195, 250), (215, 150, 235), (120, 205, 215)]
THEME = TerminalTheme(BACK, FRONT, DARK, [*BRIGHT, (255, 255, 255)])


class Screen:
    """The lines that a terminal shows, with colour codes. Handles output that moves the cursor up and redraws lines."""

    _TOKENS = re.compile(
        r"\x1b\[(?P<numbers>[?\d;]*)(?P<letter>[A-Za-z])|(?P<control>[\r\n])|(?P<text>[^\x1b\r\n]+)|(?P<other>.)"
    )

    def __init__(self) -> None:
        self.lines = [""]
        self._row = 0
        self._is_at_line_start = True

    def feed(self, stream: str) -> None:
        for token in self._TOKENS.finditer(stream):
            if token["control"] == "\n":
                self._row += 1
                self.lines += [""] * (self._row + 1 - len(self.lines))
                self._is_at_line_start = True
            elif token["control"] == "\r":
                self._is_at_line_start = True
            elif token["letter"] == "A":
                self._row = max(0, self._row - int(token["numbers"] or 1))
            elif token["letter"] == "K":
                self.lines[self._row] = ""
            elif token["text"] or token["letter"] == "m":
                if self._is_at_line_start and token["text"]:
                    self.lines[self._row], self._is_at_line_start = "", False
                self.lines[self._row] += token[0]


def record(command: list[str], folder: Path) -> str:
    """Run a command in a pseudo-terminal and return its output."""
    controller, terminal = pty.openpty()
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", ROWS, COLUMNS, 0, 0))
    environment = {**os.environ, "TERM": "xterm-256color", "COLORTERM": "truecolor", "PYTHONUNBUFFERED": "1"}
    environment.pop("NO_COLOR", None)
    environment["PATH"] = os.pathsep.join([os.path.dirname(sys.executable), environment.get("PATH", "")])
    stream = b""
    with subprocess.Popen(command, cwd=folder, env=environment, stdin=terminal, stdout=terminal, stderr=terminal) as process:
        os.close(terminal)
        try:
            while chunk := os.read(controller, 65_536):
                stream += chunk
        except OSError:  # on Linux, reading from a closed terminal raises an error
            pass
    os.close(controller)
    output = stream.decode(errors="replace")
    if process.returncode:
        raise SystemExit(f"{' '.join(command)} failed with exit code {process.returncode}:\n{output[-2000:]}")
    return output


def terminal_svg(title: str, lines: list[str]) -> str:
    """Draw terminal lines as a self-contained SVG."""
    console = Console(record=True, width=COLUMNS, file=io.StringIO(), force_terminal=True, color_system="truecolor")
    for line in [*lines, ""]:  # the SVG cuts off the last line, so add an empty line
        console.print(Text.from_ansi(line), overflow="crop", no_wrap=True)
    return console.export_svg(title=title, theme=THEME, code_format=TEMPLATE, unique_id="terminal")


def draw_landscape(workdir: Path) -> None:
    """Train a small classifier and draw its loss landscape."""
    import torch
    from torch import nn

    torch.manual_seed(0)
    points = torch.randn(512, 2)
    classes = (points[:, 0] * points[:, 1] > 0).long()
    model = nn.Sequential(nn.Linear(2, 16), nn.Tanh(), nn.Linear(16, 16), nn.Tanh(), nn.Linear(16, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.3, momentum=0.9)
    landscape = hookpoint.callbacks.LossLandscape((points, classes), size=21, batch_size=128)
    options = {"workdir": workdir, "name": "quadrants", "callbacks": [landscape], "extra_callbacks": [], "monitors": []}
    hookpoint.Runner(model, optimizer, nn.CrossEntropyLoss(), **options).fit((points, classes), epochs=25, batch_size=32)
    hookpoint.plot(workdir, path=IMAGES / "landscape.png", landscape=True, width=600, height=480)


def main(epochs: int) -> None:
    IMAGES.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        screen = Screen()
        screen.feed(record(["hookpoint", "demo", "--epochs", str(epochs)], folder).replace(f"{ROOT}/", ""))
        lines = screen.lines
        while not Text.from_ansi(lines[-1]).plain.strip():
            lines.pop()
        prompt = f"\x1b[1m$ hookpoint demo --epochs {epochs}\x1b[0m"
        shown = [prompt, *lines[:4], "\x1b[2m...\x1b[0m", *lines[6 - ROWS :]] if len(lines) >= ROWS else [prompt, *lines]
        (IMAGES / "terminal.svg").write_text(terminal_svg("hookpoint demo", shown))
        metrics = ["loss", "val-error-top1", "learning_rate"]
        hookpoint.plot(folder / "runs" / "digits", path=IMAGES / "curves.png", metrics=metrics, x="epoch")
        draw_landscape(folder / "landscape")
    for image in sorted(IMAGES.iterdir()):
        print(f"{image.relative_to(ROOT)}  {image.stat().st_size:,} bytes")
        if image.stat().st_size > MAX_BYTES:
            raise SystemExit(f"{image.name} is too large for a README: the limit is {MAX_BYTES:,} bytes")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, default=12)
    main(parser.parse_args().epochs)
