"""Callback rows: a run's callbacks in order, with their schedules and costs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hookpoint.run_folder.json_records import number_of


def callback_rows(facts: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return a row for each callback in run.json: its points, its schedule and time at each point, and its total time.

    Times are in seconds, or None if they were not measured. Rows are in the order in which callbacks run.

    >>> schedule = [{"callback": "ModelSaver", "point": "on_epoch_end", "when": "complete epochs"}]
    >>> callback_rows({"callbacks": ["ModelSaver"], "schedule": schedule})[0]["points"]
    [{'point': 'on_epoch_end', 'when': 'complete epochs', 'seconds': None, 'calls': None}]
    """
    names = [name for name in _list(facts.get("callbacks")) if isinstance(name, str)]
    schedule = _by_callback(facts.get("schedule"))
    costs = _by_callback(facts.get("costs"))
    return [_row(name, schedule.get(name, {}), costs.get(name, {})) for name in dict.fromkeys([*names, *costs])]


def _by_callback(rows: Any) -> dict[str, dict[str, dict[str, Any]]]:
    """Arrange rows from run.json as `{callback: {point: row}}`. Ignore invalid rows."""
    found: dict[str, dict[str, dict[str, Any]]] = {}
    for row in _list(rows):
        if isinstance(row, dict) and isinstance(row.get("callback"), str) and isinstance(row.get("point"), str):
            found.setdefault(row["callback"], {})[row["point"]] = row
    return found


def _row(name: str, schedule: Mapping[str, Any], costs: Mapping[str, Any]) -> dict[str, Any]:
    points = [
        {
            "point": point,
            "when": str(schedule.get(point, {}).get("when", "")),
            "seconds": _seconds(costs.get(point, {})),
            "calls": number_of(costs.get(point, {}).get("calls")),
        }
        for point in dict.fromkeys([*schedule, *costs])
    ]
    measured = [point["seconds"] for point in points if point["seconds"] is not None]
    return {"name": name, "points": points, "seconds": sum(measured) if measured else None}


def _seconds(cost: Mapping[str, Any]) -> float | None:
    """Return how many seconds a callback took at one point in total, or None if this was not measured.

    For points inside the training step, this time is an estimate, because only some calls are measured.
    """
    estimated = number_of(cost.get("estimated_seconds"))
    return number_of(cost.get("seconds")) if estimated is None else estimated


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []
