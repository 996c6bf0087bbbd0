"""Script schedules: the settings of a script's schedulers, compared with the settings in a checkpoint."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping
from typing import Any


def changed_schedules(part: Any, saved: Any) -> Iterator[str]:
    """Yield a message for each setting of a script's schedulers that differs from the checkpoint.

    `part` is a PyTorch scheduler, or a list or mapping of schedulers. The settings of a scheduler are the arguments of its
    class that it stores under the same name, such as `T_max`.
    """
    if not isinstance(saved, Mapping):
        return
    if isinstance(part, Mapping | list | tuple):
        for key, inner in part.items() if isinstance(part, Mapping) else enumerate(part):
            yield from changed_schedules(inner, saved.get(str(key)))
        return
    is_torchs = type(part).__module__.startswith("torch.")  # other schedulers may change such an attribute themselves
    for name in _arguments(type(part)) if is_torchs else ():
        for attribute in (name, f"_{name}"):  # SequentialLR has _milestones
            values = [getattr(part, attribute, part), saved.get(attribute, part)]
            if name != "last_epoch" and all(map(_is_plain, values)):
                script, used = map(_shown, values)
                if script != used:
                    what = f"the script's {type(part).__name__} has {name}={script}"
                    cure = f"To use another value, set the scheduler's attribute {attribute} in on_epoch_begin"
                    yield f"{what}, but the run uses {used}, the value in the checkpoint. {cure}"
    inner_schedulers = zip(getattr(part, "_schedulers", ()), saved.get("_schedulers", ()), strict=False)
    for inner, state in inner_schedulers:  # of SequentialLR and ChainedScheduler
        yield from changed_schedules(inner, state)


def _arguments(kind: type) -> list[str]:
    try:
        return list(inspect.signature(kind).parameters)
    except (TypeError, ValueError):  # a class that is not written in Python
        return []


def _is_plain(value: Any) -> bool:
    if isinstance(value, Mapping | list | tuple):
        return all(map(_is_plain, value.values() if isinstance(value, Mapping) else value))
    return isinstance(value, bool | int | float | str | None)


def _shown(value: Any) -> str:
    return repr(dict(value) if isinstance(value, Mapping) else list(value) if isinstance(value, tuple) else value)
