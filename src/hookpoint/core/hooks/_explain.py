"""Explain: a table that shows which callbacks run at which point, and why they run in this order."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from hookpoint.core.points import BY_NAME, declared

if TYPE_CHECKING:
    from hookpoint.core.hooks.dispatch import Call
    from hookpoint.core.hooks.entry import Entry

HEAD = ("point", "callback", "method", "when", "ranks", "on_error", "why here")
USUAL = {"method": "", "when": "always", "ranks": "all", "on_error": "raise"}


def explain(calls: Mapping[str, Sequence[Call]], entries: Iterable[Entry]) -> str:
    """Return a table of points and their callbacks in order, and a list of custom points.

    The table shows the name of a method only if it differs from the name of the point. Columns with only default values
    are left out.
    """
    rows: list[tuple[str, ...]] = []
    for point, in_order in calls.items():
        if point in BY_NAME and point != "on_trigger":
            label = point
            for call in in_order:
                usually = "in a HookedLoader" if BY_NAME[point].in_data else "always"
                when = call.when or ("complete epochs" if call.complete_only else usually)
                when += (" (gated)" if call.gates else "") + (", in the background" if call.is_deferred else "")
                entry = call.entry
                method = call.handler.spelling if call.handler.spelling != point else ""
                rows.append((label, entry.name, method, when, entry.ranks, entry.on_error, call.why))
                label = ""
    shown = [column for column, name in enumerate(HEAD) if name not in USUAL or any(row[column] != USUAL[name] for row in rows)]
    head, *rows = [tuple(row[column] for column in shown) for row in (HEAD, *rows)]
    return "\n".join([*table(head, rows), *_own_points(entries)])


def table(head: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> list[str]:
    """Return the lines of a table with aligned columns."""
    widths = [max(len(row[column]) for row in (head, *rows)) for column in range(len(head))]
    lines = [head, tuple("-" * width for width in widths), *rows]
    return ["  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip() for line in lines]


def _own_points(entries: Iterable[Entry]) -> list[str]:
    own: dict[str, list[str]] = {}
    for entry in entries:
        for handler in entry.handlers:
            if handler.point not in BY_NAME:
                own.setdefault(handler.point, []).append(entry.name)
    if not own:
        return []
    known = declared()
    lines = ["", "custom points"]
    for point, names in own.items():
        lines.append(f"  {point}: {', '.join(names)}{'' if point in known else '   (not declared)'}")
    return lines
