"""MetricNames: the metrics that a run is known to log, determined before it begins."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import NamedTuple


def always() -> bool:
    """Return True: other names may also be logged."""
    return True


class MetricNames(NamedTuple):
    """The names that a run logs itself, in addition to those that callbacks declare.

    `validates` says whether the run has validation passes; None if unknown, as in your own loop. `can_be_more` returns whether
    anything other than a callback could log further names; it is called only if a name is unknown. `reads` maps other readers
    of metrics to the metric they read. The keys are shown in messages.
    """

    known: frozenset[str] = frozenset()
    validates: bool | None = None
    can_be_more: Callable[[], bool] = always
    reads: Mapping[str, str] = MappingProxyType({})


UNKNOWN = MetricNames()
