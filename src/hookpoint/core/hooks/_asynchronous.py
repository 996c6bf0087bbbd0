"""Asynchronous callbacks: check what they declare, and replace their handlers with functions that queue a call."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from hookpoint.core.callback.main_callback import MainCallback
from hookpoint.core.callback.proxy_callback import ProxyHandler
from hookpoint.core.callback.watcher import Watcher
from hookpoint.core.errors import BadLoop, CompileError, StopRun
from hookpoint.core.hooks._idle_class import fetches_in_step
from hookpoint.core.hooks._overridden_run import overrides_run
from hookpoint.core.hooks._returned import may_return, report
from hookpoint.core.hooks.entry import Entry
from hookpoint.core.points import BY_NAME

if TYPE_CHECKING:
    from hookpoint.core.callback.handlers import Handler
    from hookpoint.core.hooks._background_protocol import Background

# Points before training, where a callback checks its requirements. Their handlers are called on the training thread.
DIRECT = ("on_setup", "on_run_begin")
# Attributes that an asynchronous callback must not set. Each attribute is mapped to the reason, for the error message.
REFUSED = {
    "saves": "requests saves",
    "may_skip": "requests verdicts",
    "collective": "communicates with other ranks",
    "writes": "logs metrics",
    "may_write": "logs metrics",
    "writes_anything": "logs metrics",
    "knobs": "can be changed by commands",
    "actions": "can be called by commands",
}


def check_asynchronous(entry: Entry) -> None:
    """Raise CompileError if a callback has `asynchronous = True` but does more than read values."""
    for pipeline in entry.path:
        if getattr(pipeline, "asynchronous", False):
            name = type(pipeline).__name__
            raise CompileError(f"{name} is a pipeline and cannot set asynchronous.", set=f"it on callbacks in {name}")
    if not entry.is_asynchronous:
        return
    for why, cures in _problems(entry):
        raise CompileError(f"{entry.name} has asynchronous = True but {why}.", **cures, remove="asynchronous = True")


def _problems(entry: Entry) -> Iterator[tuple[str, dict[str, str]]]:
    subject = entry.subject
    if isinstance(subject, MainCallback):
        yield "is the MainCallback, which computes the step", {}
    if isinstance(subject, Watcher):
        yield "observes the calls of other callbacks", {}
    for flag, why in REFUSED.items():
        if getattr(subject, flag, False) or (flag in ("writes", "may_write") and entry.declared(flag)):
            yield f"{why} ({flag})", {"move": "that part to another callback"}
    if any(map(overrides_run, (subject, *entry.path))):
        yield "receives its points through an overridden run()", {"write": "a method for each point instead"}
    if fetches_in_step(subject):
        yield "defines _before_run or _after_run, which need values from the current step", {}
    for handler in entry.handlers:
        point = handler.point
        if point == "on_records":
            yield "is a monitor, which is called in the background anyway", {}
        if point == "on_iter_error":
            yield "handles on_iter_error, where a callback decides whether to retry or skip the batch", {}
        if point in BY_NAME and BY_NAME[point].in_data:
            yield f"handles {point}, which is called in the process that loads the data", {}
        if isinstance(handler, ProxyHandler):
            yield f"is in {handler.owner}, which overrides {point}", {}


def deferred(entry: Entry, handler: Handler, point: str) -> Callable[..., None]:
    """Return a function that queues a call to the handler. At DIRECT points and outside a run, it calls the handler now."""
    function = _reader(entry, handler, point, handler.function)

    def send(*args: Any, **kwargs: Any) -> None:
        background = entry.background
        if background is None:
            function(*args, **kwargs)
        elif point in DIRECT:
            background.call(entry, point, function, args, kwargs)
        else:
            background.send(entry, point, function, args, kwargs)

    return send


def send_payload(background: Background, entry: Entry, handler: Handler, point: str, payload: Mapping[str, Any]) -> None:
    """Queue a call to a custom point's handler. Pass only the payload items that the handler has parameters for."""
    named = {parameter.source for parameter in handler.parameters}
    # A handler with a parameter `logs` gets the whole payload in it, unless the payload contains an item named `logs`.
    if "logs" in payload or "logs" not in named:
        payload = {name: value for name, value in payload.items() if name in named}
    background.send(entry, point, _reader(entry, handler, point, handler.call), (payload,), {})


def _reader(entry: Entry, handler: Handler, point: str, function: Callable[..., Any]) -> Callable[..., None]:
    """Return a handler's function with the error policy applied. StopRun and similar exceptions become BadLoop."""

    def read(*args: Any, **kwargs: Any) -> None:
        try:
            answer = function(*args, **kwargs)
        except (StopRun, StopIteration, SystemExit, KeyboardInterrupt) as request:
            raise BadLoop(
                f"{entry.name} raised {type(request).__name__}; an asynchronous callback can only read.",
                remove="asynchronous = True, or raise another exception",
            ) from request
        if answer is not None and may_return(handler.function):
            report(entry, handler, point, answer)

    return entry.contained(read, point)
