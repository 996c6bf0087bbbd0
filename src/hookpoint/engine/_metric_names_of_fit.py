"""Metric names of a fit: determine, before a fit begins, which metrics it logs.

A model's forward may call `hookpoint.log` with any metric name. To find such calls, this module inspects the code of the user's
functions and classes.
"""

from __future__ import annotations

import sys
from collections import ChainMap, deque
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dis import get_instructions
from functools import partial
from itertools import islice
from types import CodeType, FunctionType, GeneratorType, MethodType, ModuleType
from typing import Any

import torch
from torch.optim.lr_scheduler import ReduceLROnPlateau

from hookpoint.core.callback.current import log
from hookpoint.core.errors import BadArgument
from hookpoint.core.log.logbook import logged_name
from hookpoint.core.log.metric_names import MetricNames, always
from hookpoint.core.log.metric_objects import names_of, returns_more, takes_tensors
from hookpoint.core.run.current_run import current_run
from hookpoint.engine.step.optimizer_values import learning_rate

LOGGING = (log, current_run)
LOGGING_NAMES = {function.__name__ for function in LOGGING}
LIBRARIES = {*sys.stdlib_module_names, "hookpoint", "torch", "numpy"}
MOST_ITEMS = 1000  # only this many items of a list or dict are inspected, because it may contain a whole dataset
MOST_OBJECTS = 100_000
REFERENCES = ("__func__", "__self__", "func", "args", "keywords", "fget", "fset")
PLAIN = str | bytes | int | float | complex | torch.Tensor | None


def names_of_fit(passed: Mapping[str, Any], lr_metric: str | None, *, lr_each_step: bool) -> MetricNames:
    """Return the names of the metrics that a fit logs.

    `passed` contains the arguments that were passed to Runner and to `fit`, by name.

    A metric function logs a single number under its name in `metrics=`. Any other result raises an error when it is logged. The
    annotations of a metric object show whether it computes a dict. The names in such a dict are unknown. A model without a
    criterion, or with a criterion that is not from torch, may return a dict of losses.

    Raises BadArgument if there is an `lr_metric`, but no scheduler reads it.
    """
    metrics, has_val = passed["metrics"], passed["val"] is not None
    own = ["loss", *(one for name, metric in metrics.items() for one in names_of(name, metric))]
    known = {*own, *learning_rate(passed["optimizer"]), *(logged_name(name, "val") for name in own if has_val)}
    scheduler = passed["lr_scheduler"]
    schedulers = scheduler.values() if isinstance(scheduler, Mapping) else [scheduler]
    reads = {}
    has_plateau = any(isinstance(one, ReduceLROnPlateau) for one in schedulers)
    if lr_metric is not None and not has_plateau:
        raise BadArgument(f"lr_metric={lr_metric!r} needs a ReduceLROnPlateau scheduler.", drop="lr_metric")
    if has_plateau and not lr_each_step:
        reads["the plateau scheduler"] = lr_metric or ("val_loss" if has_val else "loss")
    has_parts = not takes_tensors(passed["criterion"])  # a criterion from torch never returns a dict of losses
    can_be_more = always if has_parts or any(map(returns_more, metrics.values())) else partial(may_log, passed)
    return MetricNames(frozenset(known), has_val, can_be_more, reads)


def may_log(passed: Any) -> bool:
    """Return whether the code of these objects, or of any object that they refer to, uses `hookpoint.log`.

    The search covers containers, modules, loaders, callbacks and instances of the user's classes. If there are too many objects
    to inspect, the function returns True.
    """
    queue = deque([passed])
    seen: dict[int, Any] = {}  # keeps the objects alive, so that their ids stay unique
    while queue:
        value = queue.popleft()
        if id(value) in seen or isinstance(value, PLAIN):
            continue
        if any(value is function for function in LOGGING) or len(seen) >= MOST_OBJECTS:
            return True
        seen[id(value)] = value
        try:
            queue.extend(_inside(value))
        except _UsesLog:
            return True
    return False


class _UsesLog(Exception):
    """Raised when the inspected code uses `hookpoint.log`."""


def _inside(value: Any) -> Iterator[Any]:
    """Yield the objects that a value refers to."""
    if isinstance(value, FunctionType):
        if not _is_users(value):
            return
        free = _closure_of(value)
        yield from (*free.values(), *(value.__defaults__ or ()), *(value.__kwdefaults__ or {}).values())
        yield from _named(value.__code__, ChainMap(free, value.__globals__))
        yield getattr(value, "__wrapped__", None)
    elif isinstance(value, GeneratorType):
        yield from _named(value.gi_code, value.gi_frame.f_globals if value.gi_frame is not None else {})
    elif isinstance(value, MethodType | partial | staticmethod | classmethod | property):
        yield from (getattr(value, name, None) for name in REFERENCES)
    elif isinstance(value, type):
        yield from (attribute for base in value.__mro__ if _is_users(base) for attribute in vars(base).values())
    elif isinstance(value, Mapping | list | tuple | set | frozenset):
        yield from islice(value.values() if isinstance(value, Mapping) else value, MOST_ITEMS)
    elif _root(type(value).__module__) not in sys.stdlib_module_names:
        yield type(value)
        yield from getattr(value, "__dict__", {}).values()


def _named(code: CodeType, known: Mapping[str, Any]) -> Iterator[Any]:
    """Yield the functions and classes that a code object refers to by name. Raise _UsesLog if it uses `hookpoint.log`."""
    names = set(code.co_names) | set(code.co_freevars)
    for name in names:
        value = known.get(name)
        is_hookpoint = _root(name) == "hookpoint" or (isinstance(value, ModuleType) and _root(value.__name__) == "hookpoint")
        is_log = any(value is function for function in LOGGING)
        if (is_log and _is_variable(name, code)) or (is_hookpoint and names & LOGGING_NAMES):
            raise _UsesLog
        if isinstance(value, ModuleType):
            if _root(value.__name__) not in LIBRARIES:
                yield from (vars(value)[part] for part in names if part in vars(value))
        elif isinstance(value, FunctionType | type | partial) and not is_log:
            yield value
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _named(constant, known)


def _is_variable(name: str, code: CodeType) -> bool:
    """Return whether a code object uses a name as a variable. In `torch.log`, for example, `log` is only an attribute."""
    return any(one.argval == name and not one.opname.endswith(("ATTR", "METHOD")) for one in get_instructions(code))


def _closure_of(function: FunctionType) -> dict[str, Any]:
    values = {}
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        with suppress(ValueError):  # a closure variable may not have a value yet
            values[name] = cell.cell_contents
    return values


def _is_users(value: Any) -> bool:
    return _root(str(getattr(value, "__module__", ""))) not in LIBRARIES


def _root(name: str) -> str:
    return name.partition(".")[0]
