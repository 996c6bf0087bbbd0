"""Options: find and check what a callback, its class, an `@on` decorator or a pipeline sets, such as `on_error` and `ranks`."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from hookpoint.core.callback.callback import Callback
from hookpoint.core.callback.knob import actions_of, knobs_of
from hookpoint.core.callback.on import Mark, marks
from hookpoint.core.callback.proxy_callback import ProxyCallback
from hookpoint.core.errors import BadOption, CompileError

DECLARED = ("after", "before", "reads", "writes", "may_write")
OF_ONE_CALLBACK = (*DECLARED, "collective", "may_skip", "per_rank_state")


def marked_options(function: Any) -> Mark:
    """Return the options that `@on` decorators set on a function. If several of them set an option, the innermost one wins."""
    all_marks = marks(function)
    on_error = next((mark.on_error for mark in all_marks if mark.on_error is not None), None)
    ranks = next((mark.ranks for mark in all_marks if mark.ranks is not None), None)
    return Mark(all_marks[0].point, on_error=on_error, ranks=ranks)


def option_of(name: str, option: str, options: Any, known: tuple[str, ...], *, default: str) -> str:
    """Return an option's value. Raise BadOption if the value is invalid.

    If only the base class Callback sets the option, return `default`.
    """
    value: str | None = getattr(options, option, None)
    if value is None or (value is getattr(Callback, option) and not _sets(options, option)):
        value = default
    if value not in known:
        raise BadOption(name, option, value, known)
    return value


def names_in(value: Any, option: str, owner: str) -> tuple[str, ...]:
    """Return the names in an option such as `after` or `reads`. A class stands for its name."""
    is_one = isinstance(value, str | type) or (value and not isinstance(value, Iterable))
    names = (value,) if is_one else tuple(value or ())
    for name in names:
        if not isinstance(name, str | type):
            example = type(name).__name__ if isinstance(name, Callback) else "name"
            raise CompileError(f"{owner}.{option} contains {name!r}, which is not a name.", write=f'{option} = ("{example}",)')
    return tuple(name.__name__ if isinstance(name, type) else name for name in names)


def setter(path: Sequence[Callback], names: Sequence[str], options: Any) -> Any:
    """Return the outermost pipeline or wrapper that sets one of these options, or else the callback's own options."""
    return next((pipeline for pipeline in path if any(_sets(pipeline, name) for name in names)), options)


def reject_ineffective(pipeline: Callback) -> None:
    """Raise CompileError if a pipeline sets an option that has an effect only on a single callback."""
    if isinstance(pipeline, ProxyCallback):
        return
    kind = type(pipeline)
    given = [option for option in OF_ONE_CALLBACK if getattr(pipeline, option, None)]
    given += [option for option, values in (("knobs", knobs_of(kind)), ("actions", actions_of(kind))) if values]
    if given:
        name, option = kind.__name__, given[0]
        raise CompileError(f"{name} is a pipeline and cannot set {option}.", set=f"{option} on a callback in {name}")


def reject_unsaved_state(holder: Any) -> None:
    """Raise CompileError if a callback loads state that it never saves. In a resumed run, it would start from scratch."""
    if has_own(holder, "load_state_dict") and not has_own(holder, "state_dict"):
        name = type(holder).__name__
        cure = f"{name}.state_dict(self), which returns the state to save"
        raise CompileError(f"{name} defines load_state_dict but no state_dict.", define=cure)


def has_own(subject: Any, method: str) -> bool:
    """Return whether a callback has a method that is not inherited from the base class Callback."""
    bound = getattr(subject, method, None)
    return bound is not None and getattr(bound, "__func__", None) is not getattr(Callback, method)


def _sets(options: Any, option: str) -> bool:
    """Return whether the callback or its class sets an option. The default in the base class Callback does not count."""
    classes = [cls for cls in type(options).__mro__ if cls is not Callback]
    return option in getattr(options, "__dict__", {}) or any(option in vars(cls) for cls in classes)
