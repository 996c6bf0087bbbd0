"""run_each: points around seeds, folds and sweeps."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, TypeVar

from hookpoint.core.errors import BadArgument
from hookpoint.core.guard.guard import guarding
from hookpoint.core.points import declare

Item = TypeVar("Item")


def run_each(name: str, items: Iterable[Item], callbacks: Any = None) -> Iterator[Item]:
    """Iterate over items, and fire points around the loop and each item: `for seed in run_each("seed", range(3), callbacks):`.

    Fires `on_<name>s_begin` and `on_<name>s_end` with `items` around the whole loop, and `on_<name>_begin` and
    `on_<name>_end` with the item (as an argument called `<name>`), `index` and `items` around each. A `break` ends the item
    and the loop. So does an exception in the body of the `for`, which looks the same to a generator: wrap the body in
    `guarding` to get `on_<name>_error`.

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
    with guarding(f"on_{name}s", callbacks, items=all_items):
        for index, item in enumerate(all_items):
            with guarding(f"on_{name}", callbacks, **{name: item, "index": index, "items": all_items}):
                yield item
