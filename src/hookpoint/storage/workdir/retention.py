"""Retention: which checkpoints stay. Rules only; whoever owns the files deletes what no rule keeps.

A rule is called with the checkpoints of one tag, the oldest first, and returns those to keep. It remembers nothing between
calls, so that a resumed run decides as the uninterrupted one would have.
"""

from __future__ import annotations

import math
from collections.abc import Container, Iterable, Sequence
from dataclasses import dataclass, field

from hookpoint.core.checkpoint.store import Keep, Kept
from hookpoint.core.errors import BadRetention, text


@dataclass(frozen=True, slots=True)
class KeepNewest:
    """Keep the newest so many."""

    number: int

    def __post_init__(self) -> None:
        if isinstance(self.number, bool) or not isinstance(self.number, int) or self.number < 1:
            raise BadRetention(text(f"KeepNewest({self.number!r}) keeps no number of checkpoints.", give="1 or more"))

    def __call__(self, kept: Sequence[Kept]) -> Iterable[Kept]:
        return kept[-self.number :]


@dataclass(frozen=True, slots=True)
class KeepEvery:
    """Keep the first of each so many minutes of training, for ever. Minutes without training, between runs, do not count.

    With `waits` it keeps none before so many minutes are over: a limit beside it is a limit in short runs.
    """

    minutes: float
    waits: bool = field(default=False, repr=False)

    def __post_init__(self) -> None:
        is_number = isinstance(self.minutes, int | float) and not isinstance(self.minutes, bool)
        if not is_number or not math.isfinite(self.minutes) or self.minutes <= 0:
            raise BadRetention(text(f"KeepEvery({self.minutes!r}) is no length of time.", give="minutes, more than 0"))

    def __call__(self, kept: Sequence[Kept]) -> Iterable[Kept]:
        if self.waits and kept and kept[-1].elapsed < 60 * self.minutes:
            return []
        first: dict[float, Kept] = {}
        for one in kept:
            first.setdefault(one.elapsed // (60 * self.minutes), one)
        return first.values()


@dataclass(frozen=True, slots=True)
class KeepNamed:
    """Keep those whose name or step is in a collection. It is looked into anew at each call: its owner may change it."""

    names: Container[str] | Container[int]

    def __post_init__(self) -> None:
        if isinstance(self.names, str) or not isinstance(self.names, Container):
            raise BadRetention(
                text(f"KeepNamed({self.names!r}) is no collection of names or steps.", give="a set, a list or a dict of them")
            )

    def __call__(self, kept: Sequence[Kept]) -> Iterable[Kept]:
        return [one for one in kept if one.name in self.names or one.step in self.names]


class KeepAny:
    """Keep what at least one of the rules keeps."""

    def __init__(self, *rules: Keep) -> None:
        if not rules or not all(callable(rule) and not isinstance(rule, type) for rule in rules):
            raise BadRetention(
                text(
                    f"KeepAny({', '.join(map(repr, rules))}) is no list of rules.",
                    give="rules, such as KeepAny(KeepNewest(3), KeepEvery(60))",
                )
            )
        self.rules = rules

    def __call__(self, kept: Sequence[Kept]) -> Iterable[Kept]:
        chosen = {one for rule in self.rules for one in rule(kept)}
        return [one for one in kept if one in chosen]

    def __repr__(self) -> str:
        return f"KeepAny({', '.join(map(repr, self.rules))})"
