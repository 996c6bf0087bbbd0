"""MetricNames: the metrics that a run will log, as far as known before it begins."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field


def always() -> bool:
    """Return True: other names may be logged, too."""
    return True


@dataclass(frozen=True, slots=True)
class MetricNames:
    """The names that a run logs itself, in addition to those that callbacks declare.

    `validates` is whether the run makes validation passes; None if unknown, as in your own loop. `can_be_more` returns whether
    anything except callbacks could log other names; it is called only if a name is unknown. `reads` maps other readers of
    metrics, as text for messages, to the name of the metric.
    """

    known: frozenset[str] = frozenset()
    validates: bool | None = None
    can_be_more: Callable[[], bool] = always
    reads: Mapping[str, str] = field(default_factory=dict)


UNKNOWN = MetricNames()
