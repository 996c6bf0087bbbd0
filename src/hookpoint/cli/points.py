"""`hookpoint points`: list the points."""

from __future__ import annotations

from dataclasses import asdict

import click

from hookpoint.cli._output import Column, print_json, print_lines, table, width
from hookpoint.core.points import POINTS, Point
from hookpoint.core.text.spelling import near_miss
from hookpoint.run_folder.command_error import USAGE, CommandError
from hookpoint.run_folder.formatting import shown


@click.command()
@click.argument("name", required=False)
@click.option("--json", "as_json", is_flag=True, help="Print JSON, for programs.")
def points(name: str | None, as_json: bool) -> None:
    """List the points of a run in the order in which they fire, or describe the point NAME.

    NAME may also be the name of a point in Keras, tensorpack, MindSpore or BigDL Orca.

    \b
    Examples:
      hookpoint points
      hookpoint points on_epoch_end
      hookpoint points on_train_batch_end
    """
    chosen = POINTS if name is None else _find(name)
    if as_json:
        print_json([_facts(point) for point in chosen])
    elif name is None:
        rows = [(point.name, ", ".join(point.modes), point.fires.replace("`", "")) for point in chosen]
        print_lines(table([Column("point"), Column("mode", drop=1), Column("fires", wraps=True)], rows, width()))
    else:
        for number, point in enumerate(chosen):
            print_lines([*([""] if number else []), point.name])
            print_lines(f"  {line}" for line in _description(point, width()))


def _find(name: str) -> list[Point]:
    points = [point for point in POINTS if point.name == name]
    points = points or [point for point in POINTS if any(spelling.name == name for spelling in point.spellings)]
    if not points:
        meant = near_miss(name, [point.name for point in POINTS])
        hint = f"did you mean {meant}?" if meant else "hookpoint points lists them"
        raise CommandError(f"there is no point {shown(name)}; {hint}", USAGE)
    return points


def _description(point: Point, limit: int | None) -> list[str]:
    rows = [
        ("fires", point.fires.replace("`", "")),
        ("offers", ", ".join(point.offers)),
        ("mode", ", ".join(point.modes)),
        ("only in", "the MainCallback" if point.main_only else "callbacks of a HookedLoader" if point.in_data else ""),
        *((other.system, ": ".join(filter(None, (other.name, other.differs))).replace("`", "")) for other in point.spellings),
    ]
    return table([Column(), Column(wraps=True)], [row for row in rows if row[1]], None if limit is None else limit - 2)


def _facts(point: Point) -> dict[str, object]:
    names = [{"system": other.system, "name": other.name, "differs": other.differs} for other in point.spellings]
    return {**asdict(point), "spellings": names}
