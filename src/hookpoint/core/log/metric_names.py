"""MetricNames: what is known before a run begins of the metrics that it will log."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field


def always() -> bool:
    """Say that other names may be logged, too."""
    return True


@dataclass(frozen=True, slots=True)
class MetricNames:
    """The names that a run logs by itself, beside those that callbacks declare.

    `validates` says whether the run makes validation passes; None where nobody knows, as in a loop of the user's own.
    `can_be_more` says whether anything but callbacks could log other names; it is called only if a name is unknown.
    `reads` maps what else reads a metric, in words for messages, to the metric's name.
    """

    known: frozenset[str] = frozenset()
    validates: bool | None = None
    can_be_more: Callable[[], bool] = always
    reads: Mapping[str, str] = field(default_factory=dict)


UNKNOWN = MetricNames()
