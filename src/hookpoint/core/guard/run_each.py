"""run_each: fire points around seeds, folds and sweeps."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, TypeVar

from hookpoint.core.errors import BadArgument
from hookpoint.core.guard.guard import compiled, guarding
from hookpoint.core.points import declare

Item = TypeVar("Item")


def run_each(name: str, items: Iterable[Item], callbacks: Any = None) -> Iterator[Item]:
    """Iterate over items, and fire points around the loop and each item: `for seed in run_each("seed", range(3), callbacks):`.

    Around the whole loop, `on_<name>s_begin` and `on_<name>s_end` fire with the argument `items`. Around each item,
    `on_<name>_begin` and `on_<name>_end` fire with the arguments `<name>` (the item), `index` and `items`. After a `break` in
    the `for` body, the end points fire. An exception in the body also fires the end points, because a generator cannot
    distinguish an exception from a `break`. Wrap the body in `guarding` to fire `on_<name>_error`.

    >>> see = LambdaCallback(on_fold_begin=lambda fold, index: print("fold", fold, "is number", index))
    >>> [fold for fold in run_each("fold", ["a", "b"], see)]
    fold a is number 0
    fold b is number 1
    ['a', 'b']
    """
    if not name.isidentifier():
        raise BadArgument(f"run_each: name must be an identifier such as 'seed' or 'fold', got {name!r}.")
    declare(*(f"on_{name}{number}_{edge}" for number in ("", "s") for edge in ("begin", "end", "error")))
    all_items = list(items)
    hooks = None if callbacks is None else compiled(callbacks)  # only once, because `callbacks` may be a generator
    with guarding(f"on_{name}s", hooks, items=all_items):
        for index, item in enumerate(all_items):
            with guarding(f"on_{name}", hooks, **{name: item, "index": index, "items": all_items}):
                yield item
