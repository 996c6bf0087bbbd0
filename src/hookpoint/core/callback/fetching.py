"""Recognize tensorpack's methods that request values of a step and receive them."""

from __future__ import annotations

import inspect
from typing import Any

from hookpoint.core.points import BY_NAME, RUN_NAMES

# Each method with its point and tensorpack's names for the parameters. Only the number of parameters matters.
FETCHING = {"_before_run": ("on_train_iter_begin", ("ctx",)), "_after_run": ("on_train_iter_end", ("ctx", "values"))}


def takes_fetches(name: str, method: Any) -> bool:
    """Return whether a method of a class is tensorpack's `_before_run(self, ctx)` or `_after_run(self, ctx, values)`.

    Parameters may have any names, except those of the point's arguments: `_before_run(self, batch)` expects a batch.
    """
    if name not in FETCHING or not inspect.isfunction(method):
        return False
    point, expected = FETCHING[name]
    signature = inspect.signature(method)
    names = list(signature.parameters)[1:]
    if any(own in BY_NAME[point].offers and own not in RUN_NAMES for own in names):
        return False
    try:
        signature.bind(None, *expected)
    except TypeError:
        return False
    return True
