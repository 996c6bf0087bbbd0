"""ProxyCallback: the base class for wrappers around a callback, as in tensorpack."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import fields
from functools import lru_cache
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from hookpoint.core.callback.callback import Callback
from hookpoint.core.callback.callback_info import info_of, read_info, run_method
from hookpoint.core.callback.foreign import adopted
from hookpoint.core.callback.handlers import DUE, Handler, declared_only, find_handlers, handlers_for, in_table_order
from hookpoint.core.callback.main_callback import MainCallback
from hookpoint.core.callback.pipeline import CallbackPipeline
from hookpoint.core.callback.replace import Replace
from hookpoint.core.callback.watcher import Watcher
from hookpoint.core.errors import BadArgument, CompileError, NotACallback
from hookpoint.core.points import BY_NAME, POINTS

if TYPE_CHECKING:
    from typing import Unpack

    from hookpoint.core.callback.callback import Options


PAYLOAD: ContextVar[Mapping[str, Any]] = ContextVar("hookpoint_payload", default=MappingProxyType({}))


class ProxyHandler(Handler):
    """A handler method of a wrapper. It can pass the wrapped callback any argument of the point."""

    __slots__ = ()

    def call(self, payload: Mapping[str, Any]) -> Any:
        token = PAYLOAD.set(payload)
        try:
            return Handler.call(self, payload)
        finally:
            PAYLOAD.reset(token)


class ProxyCallback(CallbackPipeline):
    """Wrap a callback. To change how it behaves at a point, derive a class from this one and override the point's method.

    At points that the wrapper does not override, the run calls the wrapped callback directly, with no overhead. The wrapped
    callback keeps its name, options, schedule and state, so checkpoints load with or without the wrapper. If the wrapper sets
    `ranks` or `on_error`, its value takes precedence. The wrapper's `reads`, `writes`, `after` and `before` are added to the
    wrapped callback's own names.

    In a method, `super().on_epoch_end(run)` calls the wrapped callback. Arguments that you pass replace the values that the
    point provides. The wrapped callback receives only the arguments that it names. For a custom point, call
    `self.forward("on_my_point", words=3)` instead of a method of `super()`. By default, `state_dict` and `load_state_dict`
    return and load the wrapped callback's state. Extend them if the wrapper has its own state. `self.callback`, or `self.cb` as
    in tensorpack, is the wrapped callback.

    >>> class Announced(ProxyCallback):
    ...     def on_epoch_end(self, run):
    ...         print("before")
    ...         super().on_epoch_end(run)
    >>> with Loop([Announced(LambdaCallback(on_epoch_end=lambda run: print("epoch", run.epoch)))]) as run:
    ...     for epoch in run.epochs(1): pass
    before
    epoch 1
    """

    def __init__(self, callback: Any, **options: Unpack[Options]) -> None:
        Callback.__init__(self, **options)
        _check_inside(type(self).__name__, callback)
        self._callbacks = (callback,)

    @property
    def callback(self) -> Any:
        """The wrapped callback."""
        return self._callbacks[0]

    @property
    def cb(self) -> Any:
        """The wrapped callback, under its tensorpack name."""
        return self._callbacks[0]

    def forward(self, point: str, **payload: Any) -> Any:
        """Call the wrapped callback's handler for a point. During a run, the handler may name any argument of the point."""
        run = read_info(self).run
        offers = BY_NAME[point].offers if point in BY_NAME else ("run", "epoch", "logs")
        offered = run.offered(offers) if run is not None else {}
        return _called(adopted(self.callback), point, {**offered, **PAYLOAD.get(), **payload})

    def run(self, hookpoint: str | None = None, logs: Mapping[str, Any] | None = None) -> None:
        _called(self, hookpoint or "", logs or {})

    def state_dict(self) -> dict[str, Any]:
        """Return the wrapped callback's state."""
        own = getattr(adopted(self.callback), "state_dict", None)
        return own() if own is not None else {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the wrapped callback's state."""
        own = getattr(adopted(self.callback), "load_state_dict", None)
        if own is not None:
            own(state)


def through_proxies(handlers: list[Handler], proxies: Sequence[ProxyCallback]) -> list[Handler]:
    """Return a callback's handlers. If a wrapper overrides a point, the wrapper's handler replaces the callback's handler.

    `proxies` contains the wrappers, innermost last.
    """
    for proxy in reversed(proxies):
        own = _handlers(proxy)
        for handler in handlers:
            if handler.when is not None and any(other.point == handler.point for other in own):
                raise CompileError(
                    f"{type(proxy).__name__} cannot override {handler.point}: {handler.owner}.{handler.spelling} has its own"
                    f" schedule, {handler.when!r}.",
                    override="another point, or wrap a callback that has no schedule at this point",
                )
        taken = {handler.point for handler in own}
        handlers = in_table_order([*(handler for handler in handlers if handler.point not in taken), *own])
    return handlers


def holder_of_state(subject: Any, proxies: Sequence[ProxyCallback]) -> Any:
    """Return the outermost wrapper that has its own state, or the callback itself."""
    for proxy in proxies:
        for method in ("state_dict", "load_state_dict"):
            if getattr(type(proxy), method) is not getattr(ProxyCallback, method):
                return proxy
    return subject


def _check_inside(wrapper: str, callback: Any) -> None:
    kind = type(callback).__name__
    if inspect.isclass(callback):
        raise NotACallback.a_class(callback)
    if isinstance(callback, MainCallback | Watcher):
        raise NotACallback(f"{wrapper} cannot wrap {kind}.", derive=f"a class from {kind}, and override its methods")
    is_group = isinstance(callback, CallbackPipeline) or callable(getattr(callback, "get_pipeline", None))
    if is_group and not isinstance(callback, ProxyCallback):
        raise NotACallback(
            f"{wrapper} wraps one callback, not a {kind}.", write=f"{kind} around {wrapper}, or {wrapper} around each callback"
        )


def _called(callback: Any, point: str, payload: Mapping[str, Any]) -> Any:
    """Call a callback's handlers. If a wrapper does not override the point, call the wrapped callback's handlers."""
    if isinstance(callback, ProxyCallback):
        handlers = handlers_for(_handlers(callback), point)
        if not handlers:
            return _called(adopted(callback.callback), point, payload)
        if point == "on_trigger" and DUE.get() not in (None, _innermost(callback)):
            return None  # the trigger is for another callback in the same pipeline
    elif isinstance(callback, Callback):
        own_run = run_method(callback)
        if own_run is not None and type(callback).run is not Callback.run:
            return own_run(point, payload)
        handlers = handlers_for(_handlers(callback), point)
    else:
        handlers = handlers_for(find_handlers(callback), point)
    answers = [handler.call(payload) for handler in handlers]
    return next((answer for answer in reversed(answers) if isinstance(answer, Replace)), None)


def _handlers(callback: Callback) -> list[Handler]:
    info = info_of(callback)
    if info.handlers is None:
        info.handlers = find_handlers(callback)
        if isinstance(callback, ProxyCallback):
            names = [field.name for field in fields(Handler)]
            info.handlers = [ProxyHandler(*(getattr(handler, name) for name in names)) for handler in info.handlers]
    return info.handlers


def _innermost(callback: Any) -> Any:
    while isinstance(callback, ProxyCallback):
        callback = callback.callback
    return adopted(callback)


@lru_cache(maxsize=256)
def _parameters(method: Callable[..., Any]) -> list[str]:
    """Return the names of a method's parameters, without `self`."""
    return list(inspect.signature(method).parameters)[1:]


def _forwarding(name: str, point: str) -> Callable[..., Any]:
    def method(proxy: ProxyCallback, *args: Any, **kwargs: Any) -> Any:
        names = _parameters(getattr(type(proxy), name))
        if len(args) > len(names):
            why = f"{type(proxy).__name__}.{name} has {len(names)} parameters but passes on {len(args)} arguments."
            raise BadArgument(why, write=f"super().{name}(run, value=...), with the additional arguments by name")
        return proxy.forward(point, **dict(zip(names, args, strict=False)), **kwargs)

    method.__name__ = name
    method.__doc__ = f"Call the wrapped callback at {point}."
    return declared_only(method)


for _point in POINTS:
    for _name in (_point.name, *(also.name for also in _point.spellings if also.system == "tensorpack")):
        setattr(ProxyCallback, _name, _forwarding(_name, _point.name))
