"""Overridden run: callbacks whose class overrides `run`. A run passes most points to that method, as in cinnamon."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from hookpoint.core.callback.callback import Callback
from hookpoint.core.callback.callback_info import run_method
from hookpoint.core.callback.handlers import DUE, Handler, Parameter, find_handlers, scheduled_handlers
from hookpoint.core.callback.pipeline import CallbackPipeline
from hookpoint.core.callback.proxy_callback import ProxyCallback
from hookpoint.core.errors import CompileError
from hookpoint.core.points import BY_NAME, POINTS

if TYPE_CHECKING:
    from hookpoint.core.run_view import RunView

ONLY_RUN = (Parameter("run", "run", required=True, keyword_only=False),)
# Points whose handlers are never called through a custom `run`. A schedule, a thread, a worker or the step calls them directly.
BESIDE_RUN = {"on_trigger", "on_records", *(point.name for point in POINTS if point.main_only or point.in_data)}


def handlers_of(subject: Any) -> list[Handler]:
    """Return a callback's handlers. If its class overrides `run`, they call `run` with the name of the point."""
    if not overrides_run(subject):
        return find_handlers(subject)
    points = [point.name for point in POINTS if point.name not in BESIDE_RUN]  # `run` is called at these points
    if not is_custom_pipeline(subject):
        scheduled = scheduled_handlers(subject)
        reject_schedules(subject, scheduled)
        points += ["on_trigger"] if scheduled else []
    return [Handler(type(subject).__name__, point, "run", partial(_through_run, subject, point), ONLY_RUN) for point in points]


def reject_schedules(owner: Any, handlers: Iterable[Handler]) -> None:
    """Raise CompileError if a handler that `run` calls has its own schedule, because `run` would ignore it."""
    for handler in handlers:
        if handler.when is not None:
            runs = f"{type(owner).__name__}.run()"
            raise CompileError(
                f"{handler.owner}.{handler.spelling} is called through {runs}, which ignores its schedule {handler.when!r}.",
                define="on_trigger, and call .when(...) on the callback",
            )


def overrides_run(subject: Any) -> bool:
    """Return whether a callback's class overrides `run`, so that all points are passed to that method."""
    own = type(subject).run if isinstance(subject, Callback) and run_method(subject) is not None else Callback.run
    return own not in (Callback.run, CallbackPipeline.run, ProxyCallback.run)


def is_custom_pipeline(subject: Any) -> bool:
    """Return whether a callback is a pipeline that decides in `run` whether its callbacks are called, as in cinnamon."""
    return overrides_run(subject) and callable(getattr(subject, "get_pipeline", None))


def through_pipeline(pipeline: Any, subject: Any, handler: Handler) -> Handler:
    """Return a trigger handler for one callback in a pipeline that overrides `run`. It calls `run` for this callback only."""
    if handler.point not in BESIDE_RUN:
        reject_schedules(pipeline, [handler])
    if handler.point != "on_trigger":
        return handler

    def trigger(run: RunView) -> None:
        token = DUE.set(subject)
        try:
            _through_run(pipeline, "on_trigger", run)
        finally:
            DUE.reset(token)

    return replace(handler, function=trigger, parameters=ONLY_RUN)


def _through_run(callback: Callback, point: str, run: RunView) -> None:
    call_run(callback, point, run.offered(BY_NAME[point].offers))


def call_run(callback: Any, point: str, payload: Mapping[str, Any]) -> None:
    """Call the `run` method of a callback that overrides it. The arguments are the same as in the cinnamon library."""
    own_run = run_method(callback)
    assert own_run is not None
    own_run(hookpoint=point, logs=payload)
