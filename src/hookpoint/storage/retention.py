"""Retention: rules that select the checkpoints to keep. `storage/checkpoint_store.py` deletes the others.

A rule is called with all checkpoints that have the same tag, oldest first, and returns the checkpoints to keep. The rules in
this file have no state, so a resumed run keeps the same checkpoints as an uninterrupted run. The rule of TopKSaver ranks the
values of a metric, and its ranking is part of the saver's state (`callbacks/saving/_top_k.py`).
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from hookpoint.core.checkpoint.store import Keep, Kept
from hookpoint.core.errors import BadRetention
from hookpoint.core.schedule.moment import Moment
from hookpoint.storage.checkpoint.manifest import Manifest
from hookpoint.storage.workdir.catalog import Entry

OWN_TAGS = frozenset({"end", "signal", "stop"})  # checkpoints with these tags are saved only so that a run can resume.
ALWAYS_KEPT = 2  # The newest two checkpoints are never deleted. If a saver sets a limit, only the newest one is protected.


@dataclass(frozen=True, slots=True)
class KeepNewest:
    """Keep the newest `number` checkpoints."""

    number: int

    def __post_init__(self) -> None:
        if isinstance(self.number, bool) or not isinstance(self.number, int) or self.number < 1:
            raise BadRetention(f"KeepNewest: number must be an integer ≥ 1, got {self.number!r}.")

    def __call__(self, kept: Sequence[Kept]) -> Iterable[Kept]:
        return kept[-self.number :]


@dataclass(frozen=True, slots=True)
class KeepEvery:
    """Divide the training time into intervals of `minutes` minutes, and keep the first checkpoint in each interval.

    Time between runs does not count. With `waits=True`, the rule keeps no checkpoint until a checkpoint is saved after the
    first interval. In combination with another rule, a short run then keeps no more checkpoints than the other rule allows.
    """

    minutes: float
    waits: bool = field(default=False, repr=False)

    def __post_init__(self) -> None:
        is_number = isinstance(self.minutes, int | float) and not isinstance(self.minutes, bool)
        if not is_number or not math.isfinite(self.minutes) or self.minutes <= 0:
            raise BadRetention(f"KeepEvery: minutes must be a number > 0, got {self.minutes!r}.")

    def __call__(self, kept: Sequence[Kept]) -> Iterable[Kept]:
        if self.waits and kept and kept[-1].elapsed < 60 * self.minutes:
            return []
        first: dict[float, Kept] = {}
        for checkpoint in kept:
            first.setdefault(checkpoint.elapsed // (60 * self.minutes), checkpoint)
        return first.values()


class KeepAny:
    """Keep each checkpoint that at least one of the rules keeps."""

    def __init__(self, *rules: Keep) -> None:
        if not rules or not all(callable(rule) and not isinstance(rule, type) for rule in rules):
            raise BadRetention(
                f"KeepAny: {rules!r} are not rules.", give="rules, such as KeepAny(KeepNewest(3), KeepEvery(60))"
            )
        self.rules = rules

    def __call__(self, kept: Sequence[Kept]) -> Iterable[Kept]:
        chosen = {checkpoint for rule in self.rules for checkpoint in rule(kept)}
        return [checkpoint for checkpoint in kept if checkpoint in chosen]

    def __repr__(self) -> str:
        return f"KeepAny({', '.join(map(repr, self.rules))})"


def to_delete(checkpoints: Sequence[Entry], rules: Mapping[str, Keep], limits: Collection[str] = ()) -> list[Entry]:
    """Return the checkpoints to delete, oldest first.

    A checkpoint may be deleted if each of its tags either is one of OWN_TAGS or has a rule that does not keep the checkpoint. A
    checkpoint is kept forever if it has no tags, a tag without a rule, or no manifest. The rule for a tag in
    `limits` also receives the checkpoints that have one of OWN_TAGS, so they count towards its limit. The two newest
    checkpoints that a run can resume from are never deleted. With limits, only the newest one is protected.
    """
    good = [(entry, entry.manifest) for entry in checkpoints if entry.manifest is not None]
    newest = [entry for entry, manifest in good if not manifest.is_of_exception][-1 if limits else -ALWAYS_KEPT :]

    def counts(manifest: Manifest, tag: str) -> bool:
        return tag in manifest.tags or (tag in limits and not OWN_TAGS.isdisjoint(manifest.tags))

    selected = {
        tag: {kept.name for kept in rule([_kept(entry.path, made, tag) for entry, made in good if counts(made, tag)])}
        for tag, rule in rules.items()
    }
    within_limits = {name for tag in limits for name in selected.get(tag, ())}

    def may_delete(name: str, tag: str) -> bool:
        return name not in selected[tag] if tag in selected else tag in OWN_TAGS and name not in within_limits

    return [
        entry
        for entry, manifest in good
        if entry not in newest and manifest.tags and all(may_delete(entry.path.name, tag) for tag in manifest.tags)
    ]


def _kept(path: Path, manifest: Manifest, tag: str) -> Kept:
    measured = manifest.measured.get(tag)
    moment = manifest.moment if measured is None else Moment.of(measured)
    return Kept(path.name, manifest.step, manifest.elapsed, moment)
