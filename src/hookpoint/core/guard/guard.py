"""Guard: fire points around any function, method, coroutine or generator."""

from __future__ import annotations

import functools
import inspect
from collections.abc import AsyncGenerator, Callable, Generator, Iterable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any, ParamSpec, TypeVar, cast, overload

from hookpoint.core.callback.callback import Callback
from hookpoint.core.errors import BadGuard
from hookpoint.core.hooks.hooks import Hooks
from hookpoint.core.logger import logger
from hookpoint.core.points import declare
from hookpoint.core.run.current_run import current_run

P = ParamSpec("P")
R = TypeVar("R")

PARAMETER = "callbacks"
HOOKS_CACHE = "_hookpoint_compiled"
CACHE_SIZE = 8


@overload
def guard(point: Callable[P, R]) -> Callable[P, R]: ...
@overload
def guard(point: str | None = None, *, hookpoint: str | None = None) -> Callable[[Callable[P, R]], Callable[P, R]]: ...
def guard(point: Any = None, *, hookpoint: str | None = None) -> Any:
    """Fire `<point>_begin` before each call of the function, and `<point>_end` or `<point>_error` after it.

    The function needs a parameter `callbacks`, keyword or positional: a callback, a list of callbacks, a pipeline, `Hooks` or
    None. A handler can take any of the function's parameters by name, as well as `args`, `kwargs`, and `result` or `error`. An
    end handler that returns `Replace(value)` changes the result. Without callbacks, a call costs one extra check. By default,
    the point is named after the function. `guard("fit")` fires on_fit_begin and on_fit_end. `guard(hookpoint="fit")`, as in
    cinnamon, does the same. A generator fires its points when it starts and when it ends or is abandoned.

    >>> @guard("on_tokenize")
    ... def tokenize(text, *, callbacks=None):
    ...     return text.split()
    >>> tokenize("a b", callbacks=LambdaCallback(on_tokenize_end=lambda text, result: print(text, result)))
    a b ['a', 'b']
    ['a', 'b']
    """
    if callable(point) or isinstance(point, classmethod):
        return guard()(point)
    point = hookpoint if point is None else point
    if isinstance(point, str) and point.isidentifier() and not point.startswith("on_"):
        point = f"on_{point}"
    if point is not None:
        _check(point)

    def decorate(function: Callable[P, R]) -> Callable[P, R]:
        return cast("Callable[P, R]", _guarded(function, point or f"on_{getattr(function, '__name__', 'call')}"))

    return decorate


@contextmanager
def guarding(point: str, callbacks: Any = None, **payload: Any) -> Iterator[GuardedBlock]:
    """Fire points around a block: `with guarding("on_load", callbacks, path=path) as block: block.result = ...`.

    >>> with guarding("on_load", LambdaCallback(on_load_end=lambda path: print("read", path)), path="x.csv"):
    ...     pass
    read x.csv
    """
    _check(point)
    declare(f"{point}_begin", f"{point}_end", f"{point}_error")
    if callbacks is None:
        yield GuardedBlock()
    else:
        with GuardedCall(compiled(callbacks), point, {"run": current_run(), **payload}, in_generator=True) as call:
            yield call


@dataclass(slots=True)
class GuardedBlock:
    """The object that `guarding` yields. Set `result` in the block to pass it to the end handlers.

    After the block, `result` is the value from a handler that returned `Replace(value)`, if any.
    """

    result: Any = None


class GuardedCall(GuardedBlock):
    """Fire the begin point on entry, and the end or error point on exit. An abandoned generator fires the end point."""

    __slots__ = ("_hooks", "_in_generator", "_payload", "_point")

    def __init__(self, hooks: Hooks, point: str, payload: dict[str, Any], *, in_generator: bool = False) -> None:
        self.result = None
        self._hooks, self._point, self._payload, self._in_generator = hooks, point, payload, in_generator

    def __enter__(self) -> GuardedCall:
        self._hooks.fire_payload(f"{self._point}_begin", self._payload)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: object) -> None:
        if error is None or (self._in_generator and kind is GeneratorExit):
            self.result = self._hooks.fire_payload(f"{self._point}_end", {**self._payload, "result": self.result})
            return
        # The function's own error is raised, so the handlers' errors are only logged.
        self._hooks.fire_payload(f"{self._point}_error", {**self._payload, "error": error}, on_failure=self._log)

    def _log(self, error: Exception) -> None:
        logger.error("a handler of %s_error failed", self._point, exc_info=error)


def compiled(callbacks: Any) -> Hooks:
    """Return the hooks for a callback, a list of callbacks or a pipeline. Hooks are returned unchanged.

    The hooks are cached in an attribute of the first callback.
    """
    if isinstance(callbacks, Hooks):
        return callbacks
    is_list = not isinstance(callbacks, Callback) and isinstance(callbacks, Iterable)
    callbacks = tuple(callbacks) if is_list else (callbacks,)
    owner = getattr(callbacks[0], "__dict__", None) if callbacks else None
    if not isinstance(owner, dict):
        return Hooks(callbacks)
    cache: dict[tuple[int, ...], Hooks] = owner.setdefault(HOOKS_CACHE, {})
    key = tuple(map(id, callbacks))
    hooks = cache.get(key)
    if hooks is None:
        if len(cache) >= CACHE_SIZE:
            cache.clear()
        hooks = cache[key] = Hooks(callbacks)
    return hooks


def install(obj: Any, method: str, point: str, callbacks: Any) -> Callable[[], None]:
    """Fire points around a method or function in code that you do not own. Return a function that undoes this.

    Undoing twice is harmless, and installations may be undone in any order.

    >>> class Reader:
    ...     def read(self): return "text"
    >>> reader = Reader()
    >>> undo = install(reader, "read", "on_read", [LambdaCallback(on_read_end=lambda result: print("read", result))])
    >>> reader.read(); undo(); reader.read()
    read text
    'text'
    'text'
    """
    _check(point)
    static = inspect.getattr_static(obj, method, None)
    if static is None or not callable(getattr(obj, method)):
        raise BadGuard(f"{obj!r} has no method {method!r}.", name="an existing method or function")
    is_own = method in getattr(obj, "__dict__", {})
    on_class = inspect.isclass(obj)
    function = getattr(static, "__func__", static) if on_class else getattr(obj, method)
    hooks = compiled(callbacks)
    state = {"on": True}
    wrapped = _wrap(function, point, lambda args, kwargs: hooks if state["on"] else None)
    if on_class and isinstance(static, staticmethod | classmethod):
        wrapped = type(static)(wrapped)
    try:
        setattr(obj, method, wrapped)
    except AttributeError as error:
        raise BadGuard(f"{obj!r}: {method!r} cannot be replaced.", install="the points on its class instead") from error

    def undo() -> None:
        state["on"] = False
        if inspect.getattr_static(obj, method, None) is wrapped:  # a later `install` may have replaced `wrapped`
            if is_own:
                setattr(obj, method, static)
            else:
                delattr(obj, method)

    return undo


def _check(point: str) -> None:
    if not isinstance(point, str) or not point.startswith("on_") or not point.isidentifier():
        raise BadGuard(f"{point!r} is not a valid point name.", write='a name such as "on_tokenize"')


def _guarded(function: Any, point: str) -> Any:
    if isinstance(function, staticmethod | classmethod):
        return type(function)(_guarded(function.__func__, point))
    parameters = inspect.signature(function).parameters
    if PARAMETER not in parameters:
        raise BadGuard(
            f"{getattr(function, '__qualname__', repr(function))} has no parameter 'callbacks'.",
            add=f"def {getattr(function, '__name__', 'f')}(..., *, callbacks=None)",
            hook="code that you do not own with hookpoint.install(obj, method, point, callbacks)",
        )
    parameter = parameters[PARAMETER]
    default = None if parameter.default is parameter.empty else parameter.default
    by_position = parameter.kind in (parameter.POSITIONAL_ONLY, parameter.POSITIONAL_OR_KEYWORD)
    position = list(parameters).index(PARAMETER) if by_position else None

    def callbacks_of(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if position is not None and len(args) > position:
            return args[position]
        return kwargs.get(PARAMETER, default)

    return _wrap(function, point, callbacks_of)


def _wrap(function: Any, point: str, callbacks_of: Callable[[tuple[Any, ...], dict[str, Any]], Any]) -> Any:
    declare(f"{point}_begin", f"{point}_end", f"{point}_error")
    try:
        signature = inspect.signature(function)
    except ValueError:  # some C functions have no signature: handlers receive only args and kwargs
        signature = inspect.signature(lambda *args, **kwargs: None)

    def guarded_call(callbacks: Any, args: Any, kwargs: dict[str, Any], in_generator: bool = False) -> GuardedCall:
        bound = signature.bind(*args, **kwargs)
        bound.apply_defaults()
        payload = {**bound.arguments, "args": args, "kwargs": kwargs, "run": current_run()}
        return GuardedCall(compiled(callbacks), point, payload, in_generator=in_generator)

    @functools.wraps(function)
    def plain(*args: Any, **kwargs: Any) -> Any:
        callbacks = callbacks_of(args, kwargs)
        if callbacks is None:
            return function(*args, **kwargs)
        with guarded_call(callbacks, args, kwargs) as call:
            call.result = function(*args, **kwargs)
        return call.result

    @functools.wraps(function)
    async def coroutine(*args: Any, **kwargs: Any) -> Any:
        callbacks = callbacks_of(args, kwargs)
        if callbacks is None:
            return await function(*args, **kwargs)
        with guarded_call(callbacks, args, kwargs) as call:
            call.result = await function(*args, **kwargs)
        return call.result

    @functools.wraps(function)
    def generator(*args: Any, **kwargs: Any) -> Generator[Any, Any, Any]:
        callbacks = callbacks_of(args, kwargs)
        if callbacks is None:
            return (yield from function(*args, **kwargs))
        with guarded_call(callbacks, args, kwargs, in_generator=True) as call:
            call.result = yield from function(*args, **kwargs)
        return call.result

    @functools.wraps(function)
    async def async_generator(*args: Any, **kwargs: Any) -> AsyncGenerator[Any, Any]:
        callbacks = callbacks_of(args, kwargs)
        with nullcontext() if callbacks is None else guarded_call(callbacks, args, kwargs, in_generator=True):
            inner = function(*args, **kwargs)
            step = inner.asend(None)
            while True:
                try:
                    item = await step
                except StopAsyncIteration:
                    break
                try:
                    step = inner.asend((yield item))
                except GeneratorExit:
                    await inner.aclose()
                    raise
                except BaseException as error:
                    step = inner.athrow(error)

    if inspect.isasyncgenfunction(function):
        return async_generator
    if inspect.isgeneratorfunction(function):
        return generator
    return coroutine if inspect.iscoroutinefunction(function) else plain
