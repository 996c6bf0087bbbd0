"""Outer routines: points around seeds, folds and sweeps."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, TypeVar

from hookpoint.core.guard.guard import guarding
from hookpoint.core.points import declare

Item = TypeVar("Item")


def run_each(name: str, items: Iterable[Item], callbacks: Any = None) -> Iterator[Item]:
    """Iterate over items with points around the whole and around each: `for seed in run_each("seed", range(3), callbacks):`.

    Fires `on_<name>s_begin` and `on_<name>s_end` with `items` around the routine, and `on_<name>_begin` and `on_<name>_end`
    with the item under its own name, `index` and `items` around each. A `break` ends item and routine. So does an exception in
    the body of the `for`, which cannot be told from it: wrap the body with `guarding` where errors matter.

    >>> see = LambdaCallback(on_fold_begin=lambda fold, index: print("fold", fold, "is number", index))
    >>> [fold for fold in run_each("fold", ["a", "b"], see)]
    fold a is number 0
    fold b is number 1
    ['a', 'b']
    """
    if not name.isidentifier():
        raise ValueError(f"a routine's name is a word such as 'seed' or 'fold', not {name!r}")
    declare(*(f"on_{name}{number}_{edge}" for number in ("", "s") for edge in ("begin", "end", "error")))
    everything = list(items)
    with guarding(f"on_{name}s", callbacks, items=everything):
        for index, item in enumerate(everything):
            with guarding(f"on_{name}", callbacks, **{name: item, "index": index, "items": everything}):
                yield item
