"""What is known of the metrics of a fit before it begins."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

from torch.optim.lr_scheduler import ReduceLROnPlateau

from hookpoint.core.log.logbook import logged_name
from hookpoint.core.log.metric_names import MetricNames
from hookpoint.engine._log_calls import may_log
from hookpoint.engine._torch_stepper import learning_rate


def names_of_fit(passed: Mapping[str, Any], lr_metric: str | None, *, lr_each_step: bool) -> MetricNames:
    """Return the metrics that a runner logs in a fit with what was passed to it and to `fit`, by the names of its arguments.

    Each metric is a single number under its own name: anything else that a function returns is refused when it is logged.
    """
    own, has_val = ["loss", *passed["metrics"]], passed["val"] is not None
    known = {*own, *learning_rate(passed["optimizer"]), *(logged_name(name, "val") for name in own if has_val)}
    schedulers = passed["lr_scheduler"]
    several = schedulers.values() if isinstance(schedulers, Mapping) else [schedulers]
    reads = {}
    if not lr_each_step and any(isinstance(one, ReduceLROnPlateau) for one in several):
        reads["the plateau scheduler"] = lr_metric or ("val_loss" if has_val else "loss")
    return MetricNames(frozenset(known), has_val, partial(may_log, passed), reads)
