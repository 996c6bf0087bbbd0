"""What a progress bar shows, and how it looks: in a terminal, in plain text and in a notebook. Nothing here draws."""

from __future__ import annotations

import html
from collections.abc import Sequence
from dataclasses import dataclass

from hookpoint.core.text.terminal import printable

GAP = "  "
LEAST_BAR, MOST_BAR = 8, 40
LINES = ("━", "╸", "─")  # done, half of one, to do: different characters, as colours may be off
ASCII = ("#", "#", ".")

Styled = tuple[str, str]


@dataclass(frozen=True, slots=True)
class View:
    """Where a pass stands at one moment. `rate` is batches per second; `values` are names with numbers, in order."""

    mode: str
    done: int
    total: int | None
    epoch: int = 0
    max_epochs: int | None = None
    rate: float | None = None
    values: tuple[tuple[str, float], ...] = ()

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
        if not self.rate:
            return ""
        return f"{_short(self.rate)} it/s" if self.rate >= 1 else f"{_short(1 / self.rate)} s/it"

    @property
    def left(self) -> str:
        """The time until the pass is over, at this pace."""
        if not self.rate or self.total is None or self.done >= self.total:
            return ""
        return f"{clock((self.total - self.done) / self.rate)} left"

    @property
    def numbers(self) -> list[str]:
        return [f"{printable(name)} {value:.4g}" for name, value in self.values]


def as_line(view: View, width: int, *, ascii_only: bool = False) -> list[Styled]:
    """Return one line, as (text, style) pieces, that is at most `width` wide: what does not fit is left out.

    Numbers get the room that longer ones will need, so that the bar does not change its length all the time.
    """
    parts = _parts(view, width)
    taken = len(GAP.join(text for text, _ in parts))
    if taken > width:
        return [(GAP.join(text for text, _ in parts)[:width], "")]
    line = [one for part in parts for one in ((GAP, ""), part)][1:]
    length = min(MOST_BAR, width - taken - len(GAP))
    if view.total and length >= LEAST_BAR:
        bar = _bar(view.done / view.total, length, ASCII if ascii_only else LINES)
        line[1:1] = [(GAP, ""), *bar]
    return line


def as_text(view: View) -> str:
    """Return one line of plain text, for files."""
    parts = [view.label, view.counts, view.percent, view.pace, view.left, *view.numbers]
    return GAP.join(part for part in parts if part)


def as_html(view: View) -> str:
    """Return what a notebook shows. Names are escaped: they are text, whatever they hold."""
    bar = f'<progress value="{view.done}" max="{view.total}"></progress>' if view.total else ""
    parts = [view.label, None, view.counts, view.pace, view.left, *view.numbers]
    shown = [bar if part is None else html.escape(part) for part in parts]
    return f'<div style="font-family: monospace; white-space: pre">{GAP.join(part for part in shown if part)}</div>'


def clock(seconds: float) -> str:
    """Return a time as 0:12, 1:02:03 or 3d 4h.

    >>> clock(3723)
    '1:02:03'
    """
    minutes, second = divmod(round(seconds), 60)
    hours, minute = divmod(minutes, 60)
    if hours >= 48:
        return f"{hours // 24}d {hours % 24}h"
    return f"{hours}:{minute:02d}:{second:02d}" if hours else f"{minute}:{second:02d}"


def _parts(view: View, width: int) -> list[Styled]:
    """Return what fits beside a short bar; the label, counts, first number, pace and time matter more than other numbers."""
    counts = view.counts if view.total is None else view.counts.rjust(2 * len(str(view.total)) + 1)
    numbers = [(text.ljust(len(text.rpartition(" ")[0]) + 9), "") for text in view.numbers]
    by_weight = [(view.label, "bold"), (counts, ""), *numbers[:1], *_times(view), *numbers[1:]]
    bar = LEAST_BAR + len(GAP) if view.total else 0
    kept: list[Styled] = []
    for part in by_weight:
        if part[0].strip() and (len(kept) < 2 or len(GAP.join(text for text, _ in [*kept, part])) + bar <= width):
            kept.append(part)
    return [part for part in [*by_weight[:2], *_times(view), *numbers] if part in kept]


def _times(view: View) -> list[Styled]:
    return [(text.ljust(room) if text else "", "bright_black") for text, room in ((view.pace, 9), (view.left, 10))]


def _bar(share: float, length: int, characters: Sequence[str]) -> list[Styled]:
    full, half, empty = characters
    halves = min(2 * length, int(2 * length * share))
    done = full * (halves // 2) + half * (halves % 2)
    return [(done, "green" if share >= 1 else "cyan"), (empty * (length - len(done)), "bright_black")]


def _short(number: float) -> str:
    return f"{number:.0f}" if number >= 100 else f"{number:.1f}" if number >= 10 else f"{number:.2f}"
