"""Recognize two tensorpack methods: `_before_run` requests values from a step, and `_after_run` receives them."""

from __future__ import annotations

import inspect
from typing import Any

from hookpoint.core.points import BY_NAME, RUN_NAMES

# Maps each method to its point and to tensorpack's parameter names. Only the number of names is used.
FETCHING = {"_before_run": ("on_train_iter_begin", ("ctx",)), "_after_run": ("on_train_iter_end", ("ctx", "values"))}


def takes_fetches(name: str, method: Any) -> bool:
    """Return whether a method of a class is tensorpack's `_before_run(self, ctx)` or `_after_run(self, ctx, values)`.

    A parameter may have any name, unless the point has an argument of the same name. For example, `_before_run(self, batch)` is
    not tensorpack's method, because the point has the argument `batch`.
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
