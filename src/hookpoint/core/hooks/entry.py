"""Entry: one callback as the compiler knows it, its handlers found, its options checked, its name unique."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from hookpoint.core.callback.callback import Callback
from hookpoint.core.callback.handlers import DUE, Handler, Parameter, find_handlers
from hookpoint.core.callback.kept import identity_of, run_of, schedule_of
from hookpoint.core.callback.main_callback import MainCallback
from hookpoint.core.callback.on import Mark, marks
from hookpoint.core.callback.pipeline import CallbackPipeline
from hookpoint.core.errors import BadOption, CompileError, MainPointTaken, NotACallback, NoTrigger, StopRun
from hookpoint.core.hooks._idle_class import refuse_idle_class
from hookpoint.core.points import BY_NAME, POINTS
from hookpoint.core.schedule.armed_schedule import ArmedSchedule

if TYPE_CHECKING:
    from hookpoint.core.callback.watcher import Watcher
    from hookpoint.core.run_view import RunView
    from hookpoint.core.schedule.when import When

logger = logging.getLogger("hookpoint")

POLICIES = ("raise", "warn", "disable")
RANKS = ("all", "chief", "local_chief")
FAILURES_IN_A_ROW = 3
MAIN, PLAIN, MONITOR = 0, 1, 2
# Points that a class which overrides `run` does not get through it: a schedule, a thread or a worker calls them, or the step.
BESIDE_RUN = {"on_trigger", "on_records", *(point.name for point in POINTS if point.main_only or point.in_data)}


@dataclass(slots=True, eq=False)
class Entry:
    """A callback of the list, outside of any pipeline or inside of the pipelines in `path`.

    Inside of a pipeline that overrides `run`, most points reach it through that; `called` leaves their handlers out.
    """

    subject: Any
    name: str
    path: tuple[Callback, ...]
    handlers: list[Handler]
    kind: int
    on_error: str
    ranks: str
    schedule: When | None
    armed: dict[str, ArmedSchedule] = field(default_factory=dict)
    disabled: bool = False
    is_blocked: bool = False  # a monitor whose thread does not return: whatever waits for that would wait, too
    has_run: bool = False
    failures: int = 0
    watchers: tuple[Watcher, ...] = ()
    is_in_team: bool = False
    catches_stops: bool = False  # a StopRun becomes a request: other processes, or a host, must not see it raised
    carried: Mapping[str, Any] = field(default_factory=dict)  # saved state that the class does not take back, or not save again

    @property
    def called(self) -> list[Handler]:
        """The handlers that hooks call, and not the `run` of a pipeline around it."""
        if not any(map(_overrides_run, self.path)):
            return self.handlers
        return [handler for handler in self.handlers if handler.point in BESIDE_RUN]

    def gates(self) -> tuple[ArmedSchedule, ...]:
        """Return the conditions of the wrappers around it."""
        found = [getattr(pipeline, "gate", None) for pipeline in self.path]
        return tuple(gate.arm() for gate in found if gate is not None)

    @property
    def meets(self) -> bool:
        """Whether all processes are to be at a handler before it is called: it talks to the others."""
        return self.is_in_team and bool(getattr(self.subject, "collective", False))

    @property
    def may_skip(self) -> bool:
        """Whether it may skip what all processes of a team do."""
        return self.is_in_team and bool(getattr(self.subject, "may_skip", False))

    @property
    def reads_by_steps(self) -> bool:
        """Whether it looks at values within passes, since it last looked: it can, and has a schedule that is asked there."""
        can = getattr(self.subject, "reads_windows", False)
        return can and self.schedule is not None and "iter" in self.schedule.moments()

    def belongs_on(self, rank: int, local_rank: int) -> bool:
        """Say whether this rank has it."""
        return self.ranks == "all" or (rank if self.ranks == "chief" else local_rank) == 0

    def declared(self, option: str) -> tuple[str, ...]:
        """Return what the callback declares as after, before, reads, writes or may_write."""
        value = getattr(self.subject, option, ())
        several = (value,) if isinstance(value, str | type) else tuple(value or ())
        return tuple(one.__name__ if isinstance(one, type) else one for one in several)

    def names(self) -> set[str]:
        """Return what `after` and `before` may call this callback: its name, its class and the bases of that."""
        return {self.name, *(cls.__name__ for cls in type(self.subject).__mro__)}

    def is_called(self, name: str) -> bool:
        """Say whether `after` or `before` means this callback."""
        return name in self.names()

    def arm(self, key: str, schedule: When) -> ArmedSchedule:
        """Return the counting part of a schedule, kept under a key of its own for the checkpoint."""
        while key in self.armed:
            key += "+"
        self.armed[key] = armed = schedule.arm()
        return armed

    def contained(self, function: Callable[..., Any], point: str) -> Callable[..., Any]:
        """Return the function with failures handled by this callback's policy, and seen by those who watch."""
        for watcher in self.watchers:
            function = watcher.around_call(self.name, point, function)
        if self.on_error == "raise":
            return function

        def call(*args: Any, **kwargs: Any) -> Any:
            if self.disabled and point != "on_run_end":  # there it puts back what it changed
                return None
            try:
                result = function(*args, **kwargs)
            except StopRun:
                raise
            except Exception as error:
                self.fail(point, error)
                return None
            if point != "state_dict":  # a save between two failures makes them no less failures in a row
                self.failures = 0
            return result

        return call

    def state(self) -> dict[str, Any]:
        """Return what a checkpoint keeps of the callback and of its schedules."""
        is_asked = hasattr(self.subject, "state_dict") and not self.is_blocked
        state = self.contained(self.subject.state_dict, "state_dict")() if is_asked else {}
        return {"state": state or self.carried, "schedules": {key: armed.state() for key, armed in self.armed.items()}}

    def load_state(self, kept: Mapping[str, Any]) -> None:
        """Take back what `state` returned; what the class has no methods for is carried into later checkpoints."""
        self.carried = kept["state"] if self.not_restored() else {}
        if kept["state"] and hasattr(self.subject, "load_state_dict"):
            try:
                self.contained(self.subject.load_state_dict, "load_state_dict")(kept["state"])
            except Exception as error:
                error.add_note(f"while {self.name} took its state back from a checkpoint")
                raise
        for key, armed in self.armed.items():
            if key in kept["schedules"]:
                armed.load_state(kept["schedules"][key])

    def not_restored(self) -> str:
        """Return what happens to saved state for which the class lacks a method; empty if it has both."""
        keeps, loads = (_has_own(self.subject, method) for method in ("state_dict", "load_state_dict"))
        if loads:
            return "" if keeps else "restored, and kept as it was: its class has no state_dict"
        return f"{'not restored' if keeps else 'kept for later'}: its class has no load_state_dict"

    def fail(self, point: str, error: Exception) -> None:
        """Count a failure and say it; give the callback up when its policy says so."""
        self.failures += 1
        limit = 1 if self.on_error == "disable" else FAILURES_IN_A_ROW
        what = f"{self.name} failed at {point}: {type(error).__name__}: {error}"
        if self.failures >= limit:
            self.disabled = True
            again = "" if limit == 1 else f" ({limit} times in a row)"
            logger.warning("%s%s; it is disabled for the rest of the run", what, again, exc_info=error)
        else:
            logger.warning("%s; the run goes on", what, exc_info=error)


def _has_own(subject: Any, method: str) -> bool:
    found = getattr(subject, method, None)
    return found is not None and getattr(found, "__func__", None) is not getattr(Callback, method)


def is_anything(kept: Mapping[str, Any]) -> bool:
    """Say whether there is anything in what a checkpoint keeps of a callback."""
    return bool(kept["state"]) or bool(kept["schedules"])


def entries_of(callbacks: Iterable[Any], *, is_in_team: bool = False) -> list[Entry]:
    """Return an entry for each callback, also of other ranks, pipelines opened, names made unique."""
    entries: list[Entry] = []
    names: dict[str, int] = {}
    for subject, path in _leaves(callbacks, ()):
        entry = _entry(subject, path)
        entry.name = _unique(entry.name, names)
        entry.is_in_team = is_in_team
        entries.append(entry)
    _refuse_idle_schedules(entries)
    mains = [entry for entry in entries if entry.kind == MAIN]
    if len(mains) > 1:
        raise MainPointTaken.two(mains[0].name, mains[1].name)
    return entries


def _unique(name: str, taken: dict[str, int]) -> str:
    """Return the name, with a number behind it if it is taken, and take it; `taken` has the last number of each."""
    unique, number = name, taken.get(name, 1)
    while unique in taken:
        number += 1
        unique = f"{name}#{number}"
    taken[name], taken[unique] = number, taken.get(unique, 1)
    return unique


def _leaves(callbacks: Iterable[Any], path: tuple[Callback, ...]) -> Iterator[tuple[Any, tuple[Callback, ...]]]:
    if isinstance(callbacks, Callback) or not isinstance(callbacks, Iterable):
        callbacks = [callbacks]
    for callback in callbacks:
        if isinstance(callback, CallbackPipeline) and not _overrides_run(callback):
            for handler in find_handlers(callback):
                raise NotACallback.a_pipeline(type(callback).__name__, handler.spelling)
            yield from _leaves(callback.get_pipeline(), (*path, callback))
        else:
            yield callback, path
            if _is_custom_pipeline(callback):  # whatever else is in it is its own business
                yield from _leaves((one for one in callback.get_pipeline() if isinstance(one, Callback)), (*path, callback))


def _entry(subject: Any, path: tuple[Callback, ...]) -> Entry:
    if inspect.isclass(subject):
        raise NotACallback.a_class(subject)
    if inspect.isfunction(subject) and not marks(subject):
        raise NotACallback.a_function(subject.__name__)
    handlers = _handlers(subject)
    if not handlers:
        if not isinstance(subject, Callback):
            raise NotACallback.a_thing(subject)
        refuse_idle_class(subject, Callback)
    name = _own_name(subject) or type(subject).__name__
    is_main = isinstance(subject, MainCallback)
    has = {handler.point for handler in handlers}
    if not is_main:
        for point in sorted(has & {point.name for point in POINTS if point.main_only}):
            raise MainPointTaken.outsider(handlers[0].owner, point)
    options = _said_by_marks(subject) if inspect.isfunction(subject) else subject
    is_monitor = "on_records" in has  # unless told otherwise, a monitor never ends a run, and only the chief has it
    is_of_chief = getattr(subject, "chief_only", is_monitor)  # tensorpack's word
    ranks = _option(name, "ranks", options, RANKS, default="chief" if is_of_chief is True else "all")
    for claim in ("collective", "may_skip") if ranks != "all" else ():
        if getattr(subject, claim, False):
            raise CompileError(f"{name} has {claim} = True and runs on the {ranks} only.", set='ranks = "all"')
    on_error = _option(name, "on_error", options, POLICIES, default="warn" if is_monitor else "raise")
    outer = next(filter(_overrides_run, path), None)
    return Entry(
        subject,
        name,
        path,
        handlers if outer is None else [_triggered_by(outer, subject, handler) for handler in handlers],
        kind=MAIN if is_main else MONITOR if is_monitor else PLAIN,
        on_error="raise" if is_main or getattr(subject, "collective", False) else on_error,
        ranks=ranks,
        schedule=_schedule(subject, name, path, "on_trigger" in has),
    )


def _own_name(subject: Any) -> str | None:
    if isinstance(subject, Callback):
        return identity_of(subject)
    name = getattr(subject, "__name__" if inspect.isfunction(subject) else "name", None)
    return name if isinstance(name, str) else None


def _schedule(subject: Any, name: str, path: tuple[Callback, ...], triggers: bool) -> When | None:
    own: When | None = schedule_of(subject) if isinstance(subject, Callback) else None
    if own is not None and not triggers and not _is_custom_pipeline(subject):
        raise NoTrigger(name, own)
    inherited = map(schedule_of, reversed(path))
    return own if own is not None else next((one for one in inherited if one is not None), None)


def _refuse_idle_schedules(entries: list[Entry]) -> None:
    first: dict[int, Entry] = {}  # by pipeline, in the order of the list
    triggering = set()
    for entry in entries:
        triggers = any(handler.point == "on_trigger" for handler in entry.handlers)
        for pipeline in entry.path:
            first.setdefault(id(pipeline), entry)
            if triggers:
                triggering.add(id(pipeline))
    for entry in entries:
        for pipeline in entry.path:
            schedule = schedule_of(pipeline)
            if schedule is not None and id(pipeline) not in triggering:
                raise NoTrigger(first[id(pipeline)].name, schedule)


def _said_by_marks(function: Any) -> Mark:
    found = marks(function)  # one callback has one policy: where several marks name one, the innermost counts
    on_error = next((mark.on_error for mark in found if mark.on_error is not None), None)
    ranks = next((mark.ranks for mark in found if mark.ranks is not None), None)
    return Mark(found[0].point, on_error=on_error, ranks=ranks)


def _option(name: str, option: str, options: Any, known: tuple[str, ...], *, default: str) -> str:
    value: str | None = getattr(options, option, None)
    if value is None or (value is getattr(Callback, option) and not _says(options, option)):
        value = default
    if value not in known:
        raise BadOption(name, option, value, known)
    return value


def _says(options: Any, option: str) -> bool:
    """Say whether an option was set by the callback or a class of its own, not only by our base class."""
    classes = [cls for cls in type(options).__mro__ if cls is not Callback]
    return option in getattr(options, "__dict__", {}) or any(option in vars(cls) for cls in classes)


def _handlers(subject: Any) -> list[Handler]:
    if not _overrides_run(subject):
        return find_handlers(subject)
    owner = type(subject).__name__  # it overrides run: every point goes through that
    taken = (Parameter("run", "run", required=True, keyword_only=False),)
    points = [point.name for point in POINTS if point.name not in BESIDE_RUN]
    return [Handler(owner, point, "run", partial(_through_run, subject, point), taken) for point in points]


def _overrides_run(subject: Any) -> bool:
    own = type(subject).run if isinstance(subject, Callback) and run_of(subject) is not None else Callback.run
    return own not in (Callback.run, CallbackPipeline.run)


def _is_custom_pipeline(subject: Any) -> bool:
    return _overrides_run(subject) and callable(getattr(subject, "get_pipeline", None))


def _triggered_by(pipeline: Any, subject: Any, handler: Handler) -> Handler:
    """Return the handler as a pipeline that overrides `run` calls it: when it is due, `run` is called, and it alone answers."""
    if handler.point != "on_trigger":
        return handler
    taken = (Parameter("run", "run", required=True, keyword_only=False),)
    return replace(handler, function=partial(_trigger_through_run, pipeline, subject), parameters=taken)


def _trigger_through_run(pipeline: Any, subject: Any, run: RunView) -> None:
    token = DUE.set(subject)
    try:
        _through_run(pipeline, "on_trigger", run)
    finally:
        DUE.reset(token)


def _through_run(callback: Callback, point: str, run: RunView) -> None:
    call_run(callback, point, run.offered(BY_NAME[point].offers))


def call_run(callback: Any, point: str, payload: Mapping[str, Any]) -> None:
    """Call the `run` of a class that overrides it, as cinnamon does."""
    own_run = run_of(callback)
    assert own_run is not None
    own_run(hookpoint=point, logs=payload)
