"""Run details: collect all information about a run, as values that can be converted to JSON."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from itertools import islice
from typing import Any

from hookpoint.run_folder.best_value import BestValue
from hookpoint.run_folder.checkpoint_list import bytes_of
from hookpoint.run_folder.run_folder import RunFolder
from hookpoint.storage.checkpoint.layout import PREVIOUS, RUN_FILES

FILES = (*RUN_FILES, PREVIOUS)
CHECKPOINT_KEYS = ("measured", "tags", "size_bytes", "own_bytes", "problem")


def details_of(run: RunFolder, events: int) -> dict[str, Any]:
    """Return a run's state, best and last metric values, newest events, checkpoints and file sizes."""
    best = {value.metric: asdict(value) for value in best_values_of(run)}
    return {
        **run.summary(),
        "best": {name: {key: value[key] for key in value if key != "metric"} for name, value in best.items()},
        "best_checkpoints": run.best_checkpoints,
        "last": {name: asdict(point) for name, point in run.last.points.items()},
        "run": run.facts,
        "events": list(islice(run.events(), events))[::-1],
        "checkpoints": [
            {
                "name": checkpoint.path.name,
                "step": checkpoint.step,
                "epoch": None if checkpoint.manifest is None else checkpoint.manifest.moment.epoch,
                "iteration": None if checkpoint.manifest is None else checkpoint.manifest.moment.iteration,
                **{key: getattr(checkpoint, key) for key in CHECKPOINT_KEYS},
            }
            for checkpoint in run.checkpoints
        ],
        "size_bytes": dict(sizes_of(run)),
    }


def sizes_of(run: RunFolder) -> list[tuple[str, int]]:
    """Return the sizes of a run's files in bytes, and their sum."""
    seen: set[tuple[int, int]] = set()
    sizes = [(name, bytes_of(run.path / name, seen)) for name in FILES if os.path.lexists(run.path / name)]
    other = bytes_of(run.path, seen)
    return [*sizes, *([("other", other)] if other else []), ("all", sum(count for _, count in sizes) + other)]


def best_values_of(run: RunFolder) -> list[BestValue]:
    """Return all best values in run.json.

    If the run's best value comes from the events, or is guessed from scalars.jsonl, return only this value.
    """
    if run.best is None:
        return []
    return [*run.all_best.values()] if run.best.source == "run" else [run.best]


def flat(settings: Mapping[Any, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield nested settings with dotted names."""
    for name, value in settings.items():
        if isinstance(value, Mapping) and value and prefix.count(".") < 8:
            yield from flat(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value


def settings_of(run: RunFolder) -> dict[str, Any]:
    """Return a run's config and settings, with dotted names."""
    groups = [run.facts.get(name) for name in ("config", "hyper")]
    return {name: value for group in groups if isinstance(group, Mapping) for name, value in flat(group)}


def differences_of(runs: Sequence[RunFolder]) -> dict[str, list[Any]]:
    """Return the settings that differ between runs, with the value in each run, or None if a run has no such setting."""
    settings = [settings_of(run) for run in runs]
    names = dict.fromkeys(name for one in settings for name in one)
    table = {name: [one.get(name) for one in settings] for name in names}
    return {name: values for name, values in table.items() if any(value != values[0] for value in values)}
