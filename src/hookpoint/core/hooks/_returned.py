"""Report values that handlers return. A run ignores these values, so a warning suggests what to call instead."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from hookpoint.core.callback.replace import Replace
from hookpoint.core.errors import HookpointWarning
from hookpoint.core.points import BY_NAME

if TYPE_CHECKING:
    from hookpoint.core.callback.handlers import Handler
    from hookpoint.core.hooks.entry import Entry

UNKNOWN: Any = object()  # a value other than None that was dropped
STOP = 'call run.stop("why") to stop the run'
SET = "set run.outputs and run.loss"
INSTEAD = {
    "on_iter_begin": f"call run.skip_batch() to skip the batch, or {STOP}",
    "on_train_iter_begin": f"call run.skip_batch() to skip the batch, or {STOP}",
    "on_backward_begin": f"call run.skip_backward() to skip the backward pass, or {STOP}",
    "on_backward_end": f"call run.skip_step() to skip the optimizer step, or {STOP}",
    "on_step_begin": f"call run.skip_step() to skip the optimizer step, or {STOP}",
    "on_iter_error": "call run.retry() or run.skip_batch()",
    **{point: SET for point in BY_NAME if point.endswith("_forward")},
    **{
        f"on_{mode}_{end}": "call run.stop_epoch() to end this pass"
        for mode in ("val", "pred")
        for end in ("iter_begin", "iter_end")
    },
}


def may_return(function: Callable[..., Any]) -> bool:
    """Return whether a handler's return value may be intentional.

    This is the case if the handler is defined outside hookpoint with `def`, and is not annotated with `-> None`.
    """
    while isinstance(function, partial):
        function = function.func
    plain = inspect.unwrap(getattr(function, "__func__", function))
    if not inspect.isfunction(plain) or plain.__name__ == "<lambda>" or (plain.__module__ or "").startswith("hookpoint."):
        return False
    return plain.__annotations__.get("return", ...) not in (None, "None")


def report(entry: Entry, handler: Handler, point: str, answer: Any) -> None:
    """Warn once about a value that a handler returned and that has no effect."""
    if answer is None or (isinstance(answer, Replace) and point in BY_NAME) or (point, handler.spelling) in entry.reported:
        return
    entry.reported.add((point, handler.spelling))
    shown = repr(answer) if isinstance(answer, bool | int | float | str) else f"a value of type {type(answer).__name__}"
    shown = "a value" if answer is UNKNOWN else shown
    instead = (
        INSTEAD.get(point, STOP) if point in BY_NAME else "return Replace(value) at the end of a guard to change the result"
    )
    warnings.warn(
        f"{handler.owner}.{handler.spelling} returned {shown}, which is ignored: {instead}.", HookpointWarning, stacklevel=3
    )


class Returned:
    """Handle values that a handler returns at a point that fires in every step.

    The generated code only tests whether the value is None, which costs no more than ignoring it. The first value is therefore
    lost. After the first value, the handler is replaced with a function that reports the next value. If the next value is None,
    or the run ends first, the warning says only that the handler returned a value.
    """

    def __init__(self, entry: Entry, handler: Handler, point: str, names: dict[str, Any], key: str) -> None:
        self._report, self._names, self._key = partial(report, entry, handler, point), names, key
        self._dropped, self._unreported = False, entry.unreported

    def __call__(self) -> None:
        function = self._names[self._key]
        self._dropped = True
        self._unreported.append(self)

        def reported(*args: Any, **kwargs: Any) -> None:
            answer = function(*args, **kwargs)
            if answer is None:
                self.report_dropped()
            else:
                self._dropped = False
                self._report(answer)

        self._names[self._key] = reported

    def report(self, answer: Any) -> None:
        self._report(answer)

    def report_dropped(self) -> None:
        """Report that a value was dropped, unless a later value has been reported."""
        if self._dropped:
            self._dropped = False
            self._report(UNKNOWN)
