"""Format the progress of a pass for a terminal, for plain text and for a notebook. This module only returns text."""

from __future__ import annotations

import html
from collections.abc import Sequence
from dataclasses import dataclass

from hookpoint.core.text.terminal import printable

GAP = "  "
MIN_BAR, MAX_BAR = 8, 40
LINES = ("━", "╸", "─")  # done, half a cell, remaining; three different characters, because colours may be disabled
ASCII = ("#", "#", ".")

Styled = tuple[str, str]


@dataclass(frozen=True, slots=True)
class View:
    """The progress of a pass at one moment. `rate` is in batches per second; `values` are (name, number) pairs."""

    mode: str
    done: int
    total: int | None
    epoch: int = 0
    max_epochs: int | None = None
    rate: float | None = None
    values: tuple[tuple[str, float], ...] = ()
    is_paused: bool = False

    @property
    def label(self) -> str:
        of = "" if self.max_epochs is None else f"/{self.max_epochs}"
        epoch = [f"epoch {self.epoch}{of}"] if self.epoch else []
        return " ".join(epoch + ([self.mode] if self.mode != "train" or not epoch else []))

    @property
    def counts(self) -> str:
        return f"{self.done} batches" if self.total is None else f"{self.done}/{self.total}"

    @property
    def percent(self) -> str:
        return f"({self.done / self.total:.0%})" if self.total else ""

    @property
    def pace(self) -> str:
        if self.is_paused:
            return "paused"
        if not self.rate:
            return ""
        return f"{_short(self.rate)} it/s" if self.rate >= 1 else f"{_short(1 / self.rate)} s/it"

    @property
    def left(self) -> str:
        """The time left in the pass at the current rate."""
        if not self.rate or self.total is None or self.done >= self.total or self.is_paused:
            return ""
        return f"{clock((self.total - self.done) / self.rate)} left"

    @property
    def numbers(self) -> list[str]:
        return [f"{printable(name)} {value:.4g}" for name, value in self.values]


def as_line(view: View, width: int, *, ascii_only: bool = False) -> list[Styled]:
    """Return one line of (text, style) pieces, at most `width` wide. Pieces that do not fit are left out.

    Numbers are padded so that the length of the bar does not change with every value.
    """
    pieces = _pieces(view, width)
    text = GAP.join(text for text, _ in pieces)
    if len(text) > width:
        return [(text[:width], "")]
    line = [one for piece in pieces for one in ((GAP, ""), piece)][1:]
    length = min(MAX_BAR, width - len(text) - len(GAP))
    if view.total and length >= MIN_BAR:
        line[1:1] = [(GAP, ""), *_bar(view.done / view.total, length, ASCII if ascii_only else LINES)]
    return line


def as_text(view: View) -> str:
    """Return one line of plain text, for files."""
    return GAP.join(filter(None, [view.label, view.counts, view.percent, view.pace, view.left, *view.numbers]))


def as_html(view: View) -> str:
    """Return HTML for a notebook, with all text escaped."""
    bar = f'<progress value="{view.done}" max="{view.total}"></progress>' if view.total else ""
    texts = map(html.escape, [view.counts, view.pace, view.left, *view.numbers])
    shown = GAP.join(filter(None, [html.escape(view.label), bar, *texts]))
    return f'<div style="font-family: monospace; white-space: pre">{shown}</div>'


def clock(seconds: float) -> str:
    """Format a duration as 0:12, 1:02:03 or 3d 4h.

    >>> clock(3723)
    '1:02:03'
    """
    minutes, second = divmod(round(seconds), 60)
    hours, minute = divmod(minutes, 60)
    if hours >= 48:
        return f"{hours // 24}d {hours % 24}h"
    return f"{hours}:{minute:02d}:{second:02d}" if hours else f"{minute}:{second:02d}"


def _pieces(view: View, width: int) -> list[Styled]:
    """Return the pieces that fit next to a short bar.

    The pieces are chosen in this order: the label, the counts, the first value, the times, and then the other values.
    """
    counts = view.counts if view.total is None else view.counts.rjust(2 * len(str(view.total)) + 1)
    numbers = [(text.ljust(len(text.rpartition(" ")[0]) + 9), "") for text in view.numbers]
    by_priority = [(view.label, "bold"), (counts, ""), *numbers[:1], *_times(view), *numbers[1:]]
    bar = MIN_BAR + len(GAP) if view.total else 0
    fitting: list[Styled] = []
    for piece in by_priority:
        if piece[0].strip() and (len(fitting) < 2 or len(GAP.join(text for text, _ in [*fitting, piece])) + bar <= width):
            fitting.append(piece)
    return [piece for piece in [*by_priority[:2], *_times(view), *numbers] if piece in fitting]


def _times(view: View) -> list[Styled]:
    return [(text.ljust(width) if text else "", "bright_black") for text, width in ((view.pace, 9), (view.left, 10))]


def _bar(share: float, length: int, characters: Sequence[str]) -> list[Styled]:
    full, half, empty = characters
    halves = min(2 * length, int(2 * length * share))
    done = full * (halves // 2) + half * (halves % 2)
    return [(done, "green" if share >= 1 else "cyan"), (empty * (length - len(done)), "bright_black")]


def _short(number: float) -> str:
    return f"{number:.0f}" if number >= 100 else f"{number:.1f}" if number >= 10 else f"{number:.2f}"
