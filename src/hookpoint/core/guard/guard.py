"""Guard: points around any function, method, coroutine or generator."""

from __future__ import annotations

import functools
import inspect
from collections.abc import AsyncGenerator, Callable, Generator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, ParamSpec, TypeVar, cast, overload

from hookpoint.core.errors import BadGuard
from hookpoint.core.guard._guarded_call import GuardedCall
from hookpoint.core.guard._hooks_cache import compiled
from hookpoint.core.points import declare
from hookpoint.core.run.current_run import current_run

P = ParamSpec("P")
R = TypeVar("R")

PARAMETER = "callbacks"


@overload
def guard(point: Callable[P, R]) -> Callable[P, R]: ...
@overload
def guard(point: str | None = None, *, hookpoint: str | None = None) -> Callable[[Callable[P, R]], Callable[P, R]]: ...
def guard(point: Any = None, *, hookpoint: str | None = None) -> Any:
    """Fire `<point>_begin` before a call of the function, and `<point>_end` or `<point>_error` after it.

    The function has a parameter `callbacks`: one callback, several, a pipeline, `Hooks` or None, by keyword or position. A
    handler takes what it names of the function's own parameters, `args`, `kwargs`, and `result` or `error`. An end handler
    that returns `Replace(value)` changes the result. Without callbacks, a call costs one test more. The point is named after
    the function where no name is given; `guard("fit")` and cinnamon's `guard(hookpoint="fit")` fire on_fit_begin and
    on_fit_end. A generator fires when it starts and when it ends or is abandoned.

    >>> @guard("on_tokenize")
    ... def tokenize(text, *, callbacks=None):
    ...     return text.split()
    >>> tokenize("a b", callbacks=LambdaCallback(on_tokenize_end=lambda text, result: print(text, result)))
    a b ['a', 'b']
    ['a', 'b']
    """
    if callable(point):
        return guard()(point)
    point = hookpoint if point is None else point
    if isinstance(point, str) and point.isidentifier() and not point.startswith("on_"):
        point = f"on_{point}"
    if point is not None:
        _check(point)

    def decorate(function: Callable[P, R]) -> Callable[P, R]:
        return _guarded(function, point or f"on_{getattr(function, '__name__', 'call')}")

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
    block = GuardedBlock()
    if callbacks is None:
        yield block
        return
    call = GuardedCall(compiled(callbacks), point, {"run": current_run(), **payload})
    call.begin()
    try:
        yield block
    except GeneratorExit:  # the block is in a generator that was abandoned
        call.end(block.result)
        raise
    except BaseException as error:
        call.fail(error)
        raise
    block.result = call.end(block.result)


@dataclass(slots=True)
class GuardedBlock:
    """What `guarding` gives: set `result` to show it to the end handlers; afterwards it is what they made of it."""

    result: Any = None


def install(obj: Any, method: str, point: str, callbacks: Any) -> Callable[[], None]:
    """Put points around a method, or a function of a module, that one does not own; return what takes them off again.

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
        raise BadGuard(f"{obj!r} has no method {method!r}.", name="a method or function that is there")
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
        raise BadGuard(f"{obj!r} does not let {method!r} be replaced.", install="it on the class instead") from error

    def undo() -> None:
        state["on"] = False
        if inspect.getattr_static(obj, method, None) is wrapped:  # else another installation stands above; it stays whole
            if is_own:
                setattr(obj, method, static)
            else:
                delattr(obj, method)

    return undo


def _check(point: str) -> None:
    if not isinstance(point, str) or not point.startswith("on_") or not point.isidentifier():
        raise BadGuard(f"{point!r} cannot name a point.", write='a name such as "on_tokenize"')


def _guarded(function: Callable[P, R], point: str) -> Callable[P, R]:
    parameters = inspect.signature(function).parameters
    if PARAMETER not in parameters:
        name = getattr(function, "__qualname__", repr(function))
        raise BadGuard(
            f"{name} has no parameter 'callbacks' for the guard to look at.",
            add=f"def {getattr(function, '__name__', 'f')}(..., *, callbacks=None)",
            hook="code that is not yours: hookpoint.install(obj, method, point, callbacks)",
        )
    parameter = parameters[PARAMETER]
    default = None if parameter.default is parameter.empty else parameter.default
    by_position = parameter.kind in (parameter.POSITIONAL_ONLY, parameter.POSITIONAL_OR_KEYWORD)
    position = list(parameters).index(PARAMETER) if by_position else None

    def callbacks_of(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if position is not None and len(args) > position:
            return args[position]
        return kwargs.get(PARAMETER, default)

    return cast("Callable[P, R]", _wrap(function, point, callbacks_of))


def _wrap(function: Any, point: str, callbacks_of: Callable[[tuple[Any, ...], dict[str, Any]], Any]) -> Any:
    declare(f"{point}_begin", f"{point}_end", f"{point}_error")
    try:
        signature = inspect.signature(function)
    except ValueError:  # some functions written in C have none; handlers get args and kwargs
        signature = inspect.signature(lambda *args, **kwargs: None)

    def started(callbacks: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> GuardedCall:
        bound = signature.bind(*args, **kwargs)
        bound.apply_defaults()
        own = {"args": args, "kwargs": kwargs, "run": current_run()}
        call = GuardedCall(compiled(callbacks), point, {**bound.arguments, **own})
        call.begin()
        return call

    @functools.wraps(function)
    def plain(*args: Any, **kwargs: Any) -> Any:
        callbacks = callbacks_of(args, kwargs)
        if callbacks is None:
            return function(*args, **kwargs)
        call = started(callbacks, args, kwargs)
        try:
            result = function(*args, **kwargs)
        except BaseException as error:
            call.fail(error)
            raise
        return call.end(result)

    @functools.wraps(function)
    async def coroutine(*args: Any, **kwargs: Any) -> Any:
        callbacks = callbacks_of(args, kwargs)
        if callbacks is None:
            return await function(*args, **kwargs)
        call = started(callbacks, args, kwargs)
        try:
            result = await function(*args, **kwargs)
        except BaseException as error:
            call.fail(error)
            raise
        return call.end(result)

    @functools.wraps(function)
    def generator(*args: Any, **kwargs: Any) -> Generator[Any, Any, Any]:
        callbacks = callbacks_of(args, kwargs)
        if callbacks is None:
            return (yield from function(*args, **kwargs))
        call = started(callbacks, args, kwargs)
        try:
            result = yield from function(*args, **kwargs)
        except GeneratorExit:
            call.end(None)
            raise
        except BaseException as error:
            call.fail(error)
            raise
        return call.end(result)

    @functools.wraps(function)
    async def async_generator(*args: Any, **kwargs: Any) -> AsyncGenerator[Any, Any]:
        callbacks = callbacks_of(args, kwargs)
        call = started(callbacks, args, kwargs) if callbacks is not None else None
        inner = function(*args, **kwargs)
        try:
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
        except GeneratorExit:
            if call is not None:
                call.end(None)
            raise
        except BaseException as error:
            if call is not None:
                call.fail(error)
            raise
        if call is not None:
            call.end(None)

    if inspect.isasyncgenfunction(function):
        return async_generator
    if inspect.isgeneratorfunction(function):
        return generator
    return coroutine if inspect.iscoroutinefunction(function) else plain
