"""Reject a callback class whose methods a run would never call, and suggest names for its methods."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from typing import Any

from hookpoint._exports import FOR_THE_CORE, load
from hookpoint.core.callback.fetching import FETCHING, takes_fetches
from hookpoint.core.errors import CURE_WIDTH, NotACallback
from hookpoint.core.points import BY_NAME, FOREIGN, SPELLINGS
from hookpoint.core.text.spelling import near_miss

# Attributes, other than handlers, that a run uses.
CALLED = ("__enter__", "__exit__", "setup", "state_dict", "load_state_dict", "knobs", "actions", "around_call")

# Maps callback methods of other libraries to the hookpoint methods to write instead. No point corresponds to these methods.
MEANT = {
    "__call__": "on_trigger(self, run)",
    "process": "on_records(self, records)",
    "process_event": "on_records(self, records)",
    "process_image": "on_records(self, records)",
    "process_scalar": "on_records(self, records)",
    "process_summary": "on_records(self, records)",
    "set_model": "setup(self, component, save_path)",
    "set_params": "on_setup(self, run)",
    "set_trainer": "on_setup(self, run)",
    "trigger": "on_trigger(self, run)",
}


def fetches_in_step(subject: Any) -> bool:
    """Return whether a callback has tensorpack's `_before_run(self, ctx)` or `_after_run(self, ctx, values)`."""
    return any(_fetching_methods(subject))


def fetches_of(callback: Any) -> Any:
    """Return a callback that fetches the values for `_before_run` and `_after_run`."""
    ranks = "chief" if getattr(callback, "chief_only", False) else callback.ranks
    before, after = _fetching_methods(callback)
    step_fetches = load("hookpoint", FOR_THE_CORE, "StepFetches")
    return step_fetches(type(callback).__name__, before, after, ranks=ranks, on_error=callback.on_error)


def _fetching_methods(subject: Any) -> list[Any]:
    """Return the bound methods `_before_run` and `_after_run`, with None for a missing method."""
    cls = type(subject)
    is_callback = hasattr(cls, "state_dict")
    is_there = (is_callback and takes_fetches(name, getattr(cls, name, None)) for name in FETCHING)
    return [getattr(subject, name) if found else None for name, found in zip(FETCHING, is_there, strict=True)]


def reject_idle_class(subject: Any, callback: type) -> None:
    """Raise NotACallback if a run would call none of the methods of this callback's class, including inherited ones.

    Methods of the base class `callback` do not count.
    """
    own = [cls for cls in type(subject).__mro__ if cls not in (callback, object)]
    is_ours = type(subject).__module__.startswith("hookpoint.")  # such as Callback(), or LambdaCallback() without functions
    if is_ours or fetches_in_step(subject) or any(name in vars(owner) for owner in (subject, *own) for name in CALLED):
        return
    name = type(subject).__name__
    renames = f"\n{' ' * (CURE_WIDTH + 3)}".join(_renames(own))
    cures = {"rename": renames} if renames else {"write": "a method such as on_epoch_end(self, run)"}
    raise NotACallback(f"{name}: a run calls none of its methods.", **cures)


def _renames(classes: list[type]) -> Iterator[str]:
    methods = {name: method for cls in reversed(classes) for name, method in vars(cls).items() if inspect.isfunction(method)}
    for name, method in methods.items():
        ours = MEANT.get(name) or _point_of(name)
        if ours is not None:
            yield f"{name}{inspect.signature(method)} -> {ours}"


def _point_of(name: str) -> str | None:
    bare = name.strip("_")
    for candidate in (name, f"_{bare}", f"on_{bare}"):
        if candidate in BY_NAME:
            return f"{candidate}(self, run)"
        if candidate in SPELLINGS:
            return f"{SPELLINGS[candidate][0][0].name}(self, run)"
        if candidate in FOREIGN:
            return f"{FOREIGN[candidate]}(self, run)"
    meant = near_miss(f"on_{bare}", BY_NAME)
    return None if meant is None else f"{meant}(self, run)"
