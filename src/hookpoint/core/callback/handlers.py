"""Handlers: find an object's methods that are named after points, and pass each method the arguments in its signature."""

from __future__ import annotations

import inspect
import re
import warnings
from collections.abc import Callable, Container, Iterable, Iterator, Mapping
from contextvars import ContextVar
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from hookpoint.core.callback.callback_info import CallbackInfo, info_of
from hookpoint.core.callback.fetching import FETCHING, takes_fetches
from hookpoint.core.callback.on import Mark, marks
from hookpoint.core.errors import BadArgument, CompileError, HookpointWarning, TwoSpellings, UnknownArgument, UnknownPoint
from hookpoint.core.points import BY_NAME, FOREIGN, POINTS, RUN_NAMES, SPELLINGS, Point, Spelling, declared
from hookpoint.core.text.spelling import near_miss

if TYPE_CHECKING:
    from hookpoint.core.schedule.when import When

AnyFunction = TypeVar("AnyFunction", bound=Callable[..., Any])
# The names of on_trigger, with the parameters that a method must have, or None if it may have any.
TRIGGERS = {"on_trigger": None, **{spelling.name: spelling.only_with for spelling in BY_NAME["on_trigger"].spellings}}
DECLARED_ONLY = "__hookpoint_declared__"
# While a pipeline's `run` method triggers one of its callbacks, DUE is this callback. The other callbacks are not triggered.
DUE: ContextVar[Any] = ContextVar("hookpoint_due", default=None)
TABLE_NAMES = [(point.name, name) for point in POINTS for name in (point.name, *(also.name for also in point.spellings))]
TABLE_ORDER = {names: position for position, names in enumerate(TABLE_NAMES)}


def declared_only(function: AnyFunction) -> AnyFunction:
    """Mark a method that only declares a point. A class that does not override the method has no handler for the point."""
    setattr(function, DECLARED_ONLY, True)
    return function


class Parameter(NamedTuple):
    """One parameter of a handler. `source` is the name of the point's argument that is passed for this parameter."""

    name: str
    source: str
    required: bool
    keyword_only: bool


@dataclass(slots=True, eq=False, repr=False)
class Handler:
    """A function to call at a point. It receives only the arguments in its signature."""

    owner: str
    point: str
    spelling: str
    function: Callable[..., Any]
    parameters: tuple[Parameter, ...]
    when: When | None = None
    system: str = ""
    second: bool = False
    marked: bool = False

    def handles(self, point: str) -> bool:
        """Return whether the handler is called when a point fires under this name.

        A point can fire under its own name, or under another library's name for it.
        """
        return point in (self.point, self.spelling)

    def bind(self, offered: Container[str]) -> tuple[list[str], dict[str, str]]:
        """Split the names into positional and keyword arguments. Every argument after an omitted one is passed by keyword."""
        by_position: list[str] = []
        by_keyword: dict[str, str] = {}
        gap = False
        for parameter in self.parameters:
            if parameter.source in offered:
                if parameter.keyword_only or gap:
                    by_keyword[parameter.name] = parameter.source
                else:
                    by_position.append(parameter.source)
            elif parameter.required:
                names = sorted(offered) if isinstance(offered, Iterable) else ()
                meant = near_miss(parameter.name, names)
                raise UnknownArgument(self.owner, self.spelling, parameter.name, names, meant)
            else:
                gap = True
        return by_position, by_keyword

    def call(self, payload: Mapping[str, Any]) -> Any:
        """Call the function with the arguments in its signature.

        If the payload has no `logs`, pass the payload itself as `logs`.
        """
        if "logs" not in payload:
            payload = {**payload, "logs": payload}
        by_position, by_keyword = self.bind(payload)
        return self.function(
            *(payload[source] for source in by_position), **{name: payload[source] for name, source in by_keyword.items()}
        )


def find_handlers(subject: Any) -> list[Handler]:
    """Return an object's handlers in point-table order, with custom points last. Raise an error for misspelled points."""
    handlers = in_table_order(_scan(subject))
    _check_two_spellings(handlers)
    return handlers


def scheduled_handlers(subject: Any) -> list[Handler]:
    """Return the handlers of on_trigger and the handlers with a schedule. Do not check the names and arguments of methods."""
    is_function = inspect.isfunction(subject)
    owner, found = subject.__name__ if is_function else type(subject).__name__, []
    for name, marked in [("", marks(subject))] if is_function else _methods(subject):
        scheduled = [mark for mark in marked if mark.when is not None or mark.point in TRIGGERS]
        if scheduled or (not marked and name in TRIGGERS):
            function = subject if is_function else getattr(subject, name)
            found += [Handler(owner, mark.point, mark.point, function, (), mark.when) for mark in scheduled]
            if not marked and TRIGGERS[name] in (None, tuple(inspect.signature(function).parameters)):
                found.append(Handler(owner, "on_trigger", name, function, ()))
    return found


def in_table_order(handlers: Iterable[Handler]) -> list[Handler]:
    return sorted(handlers, key=lambda handler: TABLE_ORDER.get((handler.point, handler.spelling), len(TABLE_ORDER)))


def handlers_for(handlers: Iterable[Handler], point: str) -> list[Handler]:
    """Return the handlers to call when a point fires under this name. A method that handles multiple points appears once."""
    matching: list[Handler] = []
    for handler in handlers:
        repeated = any(other.function == handler.function and other.point != handler.point for other in matching)
        if handler.handles(point) and not repeated:
            matching.append(handler)
    return matching


def call_directly(subject: Any, hookpoint: str | None, logs: Mapping[str, Any] | None) -> None:
    """Call an object's handlers for a point without compiling hooks. `logs` maps argument names to values."""
    if not isinstance(hookpoint, str):
        raise BadArgument(f"run(): hookpoint must be the name of a point, got {hookpoint!r}.", write='run("on_epoch_end")')
    info = info_of(subject) if hasattr(subject, "__dict__") else CallbackInfo()
    if info.handlers is None:
        info.handlers = find_handlers(subject)
    payload = logs if logs is not None else {}
    due = DUE.get()
    if hookpoint == "on_trigger" and due is not None and due is not subject:
        return  # the trigger is for another callback in the same pipeline
    token = DUE.set(None)
    try:
        for handler in handlers_for(info.handlers, hookpoint):
            handler.call(payload)
    finally:
        DUE.reset(token)


def call_with_named(function: Callable[..., Any], payload: Mapping[str, Any]) -> Any:
    """Call a function with only the payload items in its signature.

    Raise UnknownArgument if the function requires any other argument.
    """
    owner, name = type(getattr(function, "__self__", None)).__name__, getattr(function, "__name__", "function")
    return Handler(owner, name, name, function, tuple(_parameters(function, {}))).call(payload)


def _scan(subject: Any) -> Iterator[Handler]:
    owner = subject.__name__ if inspect.isfunction(subject) else type(subject).__name__
    if inspect.isfunction(subject):
        for mark in marks(subject):
            yield from _marked(owner, mark, subject, _own_points(subject))
        return
    for name, marked in _methods(subject):
        if marked:
            for mark in marked:
                yield from _marked(owner, mark, getattr(subject, name), _own_points(subject))
        else:
            yield from _named(owner, name, subject)


def _methods(subject: Any) -> Iterator[tuple[str, tuple[Mark, ...]]]:
    """Yield the name and the marks of each method that may be a handler."""
    attributes = _static_attributes(subject)
    for name in dir(subject):
        if name.startswith("__") or name == "on_knob":  # on_knob is not a point: live control calls it
            continue
        static = attributes.get(name)
        function = getattr(static, "__func__", static)  # unwrap a staticmethod or classmethod
        if callable(function) and not inspect.isclass(function) and not getattr(function, DECLARED_ONLY, False):
            yield name, marks(function)


def _static_attributes(subject: Any) -> dict[str, Any]:
    """Return the same attributes as inspect.getattr_static, but search the classes only once for all names."""
    attributes: dict[str, Any] = {}
    for cls in reversed(type(subject).__mro__):
        attributes.update(vars(cls))
    if isinstance(subject, type):
        for cls in reversed(subject.__mro__):
            attributes.update(vars(cls))
    else:
        for name, value in getattr(subject, "__dict__", {}).items():
            if not inspect.isdatadescriptor(attributes.get(name)):  # a data descriptor of the class takes precedence
                attributes[name] = value
    return attributes


def _named(owner: str, name: str, subject: Any) -> Iterator[Handler]:
    own = _own_points(subject)
    if name in BY_NAME:
        yield _handler(owner, name, name, getattr(subject, name))
    elif name in SPELLINGS and name not in own:
        function, spelled = getattr(subject, name), _once_per_point(SPELLINGS[name])
        is_restricted = any(spelling.only_with is not None for _, spelling in spelled)
        parameters = tuple(inspect.signature(function).parameters) if is_restricted else ()
        fitting = [(point, spelling) for point, spelling in spelled if spelling.only_with in (None, parameters)]
        for point, spelling in fitting:
            yield _handler(owner, point.name, name, function, spelling)
        is_misfit = parameters and not fitting and not takes_fetches(name, getattr(type(subject), name, None))
        if is_misfit and (name in FETCHING or all(arg in RUN_NAMES or arg in spelled[0][0].offers for arg in parameters)):
            _warn_of_lookalike(owner, name, parameters, *spelled[0])
    elif name.startswith(("on_", "before_", "after_")) or name in FOREIGN:
        if name not in own:
            _check_spelling(owner, name)
        if name.startswith("on_"):
            yield _handler(owner, name, name, getattr(subject, name))


def _warn_of_lookalike(owner: str, name: str, parameters: tuple[str, ...], point: Point, spelling: Spelling) -> None:
    forms = [spelling.only_with or (), *([FETCHING[name][1]] if name in FETCHING else [])]
    own, *expected = (", ".join(("self", *names)) for names in (parameters, *forms))
    theirs = " and ".join(f"{name}({form})" for form in expected)
    warnings.warn(
        f"{owner}.{name}({own}) is never called: {spelling.system} has {theirs}. Rename it to {point.name}({own})"
        f" to have it called, or to another name if it is your own method.",
        HookpointWarning,
        stacklevel=2,
    )


def _marked(owner: str, mark: Mark, function: Callable[..., Any], own: tuple[str, ...]) -> Iterator[Handler]:
    spelled = _once_per_point(SPELLINGS.get(mark.point, []))
    if mark.point in BY_NAME or mark.point in own or not spelled:
        if mark.point not in BY_NAME and mark.point not in own:
            _check_spelling(owner, mark.point)
        yield _handler(owner, mark.point, mark.point, function, when=mark.when, marked=True)
    else:
        for point, spelling in spelled:
            yield _handler(owner, point.name, mark.point, function, spelling, mark.when, marked=True)


def _own_points(subject: Any) -> tuple[str, ...]:
    return tuple(getattr(subject, "points", ()) or ())


def _once_per_point(spelled: list[tuple[Point, Spelling]]) -> list[tuple[Point, Spelling]]:
    return list({point.name: (point, spelling) for point, spelling in reversed(spelled)}.values())


def _check_spelling(owner: str, name: str) -> None:
    if name in declared():
        return
    if name in FOREIGN:
        raise UnknownPoint(owner, name, FOREIGN[name], foreign=True)
    prefix = name.split("_")[0]
    known = (*BY_NAME, *(spelling for spelling in SPELLINGS if spelling.startswith(prefix)), *sorted(declared()))
    joined = re.sub(r"\W+", "_", re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name)).lower()  # of onEpochEnd or on-epoch-end
    first = re.split(r"[\s,|]+", name)[0]  # of several names in one string
    written = (f"on_{first}", joined, f"on_{joined}", first)
    meant = next((point for point in written if point in BY_NAME), None) or near_miss(name, known)
    if meant is not None:
        raise UnknownPoint(owner, name, meant)


def _check_two_spellings(handlers: list[Handler]) -> None:
    named = [handler for handler in handlers if not handler.marked]
    for first, second in pairwise(named):
        two_moments = first.system == second.system and (first.second or second.second)
        if first.point == second.point and not two_moments:
            raise TwoSpellings(first.owner, first.point, first.spelling, second.spelling)


def _handler(
    owner: str,
    point: str,
    name: str,
    function: Callable[..., Any],
    spelling: Spelling | None = None,
    when: When | None = None,
    marked: bool = False,
) -> Handler:
    system, second, renames = (spelling.system, spelling.second, dict(spelling.renames)) if spelling else ("", False, {})
    handler = Handler(owner, point, name, function, tuple(_parameters(function, renames)), when, system, second, marked)
    if point in BY_NAME:
        _check_runs(handler)
        handler.bind(BY_NAME[point].offers)
    return handler


def _check_runs(handler: Handler) -> None:
    """Raise CompileError if calling the handler would not run its body."""
    kinds = {"async": inspect.iscoroutinefunction, "yield": inspect.isgeneratorfunction, "async ": inspect.isasyncgenfunction}
    word = next((word.strip() for word, is_kind in kinds.items() if is_kind(handler.function)), None)
    if word is not None:
        what = f"{handler.owner}.{handler.spelling} uses '{word}', so its body would never run."
        raise CompileError(what, write=f"def {handler.spelling}(...) without '{word}'")


def _parameters(function: Callable[..., Any], renames: Mapping[str, str]) -> Iterator[Parameter]:
    try:
        signature = inspect.signature(function)
    except ValueError:  # some C functions have no signature: pass only the run
        yield Parameter("run", "run", required=True, keyword_only=False)
        return
    for parameter in signature.parameters.values():
        if parameter.kind not in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            source = "run" if parameter.name in RUN_NAMES else renames.get(parameter.name, parameter.name)
            required = parameter.default is parameter.empty
            yield Parameter(parameter.name, source, required, parameter.kind is parameter.KEYWORD_ONLY)
