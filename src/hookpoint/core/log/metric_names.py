"""MetricNames: the metrics that a run is known to log, determined before the run begins."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import NamedTuple


def always() -> bool:
    """Return True, because names that are not known in advance may be logged."""
    return True


class MetricNames(NamedTuple):
    """The metric names that a run itself logs, in addition to those that callbacks declare.

    `validates` tells whether the run has validation passes. It is None if that is unknown, as in your own loop. `can_be_more`
    returns whether code other than callbacks, such as the model, could log further names. It is called only if a name is
    unknown. `reads` maps each reader that is not a callback to the metric it reads. Error messages show the names of these
    readers.
    """

    known: frozenset[str] = frozenset()
    validates: bool | None = None
    can_be_more: Callable[[], bool] = always
    reads: Mapping[str, str] = MappingProxyType({})


UNKNOWN = MetricNames()
