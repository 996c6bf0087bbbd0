"""What is known of the metrics of a fit before it begins."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

from torch.optim.lr_scheduler import ReduceLROnPlateau

from hookpoint.core.log.logbook import logged_name
from hookpoint.core.log.metric_names import MetricNames, always
from hookpoint.core.log.metric_objects import names_of, returns_more, takes_tensors
from hookpoint.engine._log_calls import may_log
from hookpoint.engine._torch_stepper import learning_rate


def names_of_fit(passed: Mapping[str, Any], lr_metric: str | None, *, lr_each_step: bool) -> MetricNames:
    """Return the metrics that a runner logs in a fit with what was passed to it and to `fit`, by the names of its arguments.

    A function's value is a single number under its own name: anything else that it returns is refused when it is logged. An
    object says in its annotations whether it computes a dict, whose names nobody knows before. A model without a criterion, or
    a criterion that is not torch's, may return a dict of losses.
    """
    metrics, has_val = passed["metrics"], passed["val"] is not None
    own = ["loss", *(one for name, metric in metrics.items() for one in names_of(name, metric))]
    known = {*own, *learning_rate(passed["optimizer"]), *(logged_name(name, "val") for name in own if has_val)}
    schedulers = passed["lr_scheduler"]
    several = schedulers.values() if isinstance(schedulers, Mapping) else [schedulers]
    reads = {}
    if not lr_each_step and any(isinstance(one, ReduceLROnPlateau) for one in several):
        reads["the plateau scheduler"] = lr_metric or ("val_loss" if has_val else "loss")
    has_parts = not takes_tensors(passed["criterion"])  # only torch's criteria are known to return no dict of losses
    can_be_more = always if has_parts or any(map(returns_more, metrics.values())) else partial(may_log, passed)
    return MetricNames(frozenset(known), has_val, can_be_more, reads)
