"""Entry: a callback in the compiled list, with its handlers, validated options and unique name."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from os import PathLike
from typing import TYPE_CHECKING, Any

from hookpoint.core.callback.callback import Callback
from hookpoint.core.callback.callback_info import identity_of, schedule_of
from hookpoint.core.callback.foreign import adopted, check_library
from hookpoint.core.callback.handlers import Handler, find_handlers, scheduled_handlers
from hookpoint.core.callback.knob import check_knobs
from hookpoint.core.callback.main_callback import MainCallback
from hookpoint.core.callback.on import marks
from hookpoint.core.callback.pipeline import CallbackPipeline
from hookpoint.core.callback.proxy_callback import ProxyCallback, holder_of_state, through_proxies
from hookpoint.core.errors import CompileError, MainPointTaken, NotACallback, NoTrigger, StopRun
from hookpoint.core.hooks._entry_options import (
    has_own,
    marked_options,
    names_in,
    option_of,
    reject_ineffective,
    reject_unsaved_state,
    setter,
)
from hookpoint.core.hooks._idle_class import fetches_in_step, fetches_of, reject_idle_class
from hookpoint.core.hooks._overridden_run import (
    BESIDE_RUN,
    handlers_of,
    is_custom_pipeline,
    overrides_run,
    reject_schedules,
    through_pipeline,
)
from hookpoint.core.logger import logger
from hookpoint.core.points import POINTS
from hookpoint.core.schedule.armed_schedule import ArmedSchedule
from hookpoint.core.schedule.when import When, armed_with_text

if TYPE_CHECKING:
    from hookpoint.core.callback.watcher import Watcher
    from hookpoint.core.hooks._background_protocol import Background


POLICIES = ("raise", "warn", "disable")
RANKS = ("all", "chief", "local_chief")
FAILURES_IN_A_ROW = 3
MAIN, PLAIN, MONITOR = 0, 1, 2


@dataclass(slots=True, eq=False, repr=False)
class Entry:
    """A callback in the list. `path` contains the pipelines around it, outermost first.

    If a pipeline overrides `run`, most handlers of its callbacks are called through that method. `called` excludes these
    handlers.
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
    is_blocked: bool = False  # set while a monitor or an asynchronous callback is blocked in a call
    has_run: bool = False
    failures: int = 0
    reported: set[tuple[str, str]] = field(default_factory=set)  # points and methods whose return values were reported
    unreported: list[Any] = field(default_factory=list)  # return values that were dropped before they could be reported
    watchers: tuple[Watcher, ...] = ()
    is_in_team: bool = False
    reads_on_some_ranks: bool = False  # whether a metric that the callback reads is logged on some ranks only
    catches_stops: bool = False  # convert StopRun to a stop request, because another trainer would not catch it
    background: Background | None = None  # calls the handlers of an asynchronous callback; None outside a run
    carried: Mapping[str, Any] = field(default_factory=dict)  # saved state that the class cannot load

    @property
    def called(self) -> list[Handler]:
        """The handlers that are called directly, not through a pipeline's `run` method."""
        if not any(map(overrides_run, self.path)):
            return self.handlers
        return [handler for handler in self.handlers if handler.point in BESIDE_RUN]

    def gates(self) -> tuple[ArmedSchedule, ...]:
        """Return the conditions under which the handlers are called. The pipelines around the callback set them."""
        gates = [getattr(pipeline, "gate", None) for pipeline in self.path]
        return tuple(gate.arm() for gate in gates if gate is not None)

    @property
    def meets(self) -> bool:
        """Whether all ranks must reach a handler before it is called, because it communicates with other ranks."""
        return self.is_in_team and bool(getattr(self.subject, "collective", False))

    @property
    def may_skip(self) -> bool:
        """Whether the callback may skip work that all ranks of a team must do together."""
        return self.is_in_team and bool(getattr(self.subject, "may_skip", False))

    @property
    def is_asynchronous(self) -> bool:
        """Whether handlers are called in the background, with copies of the values that they read."""
        return bool(getattr(self.subject, "asynchronous", False))

    @property
    def has_own_state(self) -> bool:
        """Whether the callback, or a wrapper around it, saves state."""
        return has_own(holder_of_state(self.subject, proxies_of(self.path)), "state_dict")

    @property
    def reads_by_steps(self) -> bool:
        """Whether the callback reads metrics during a pass.

        This requires that the callback sets `reads_windows`, and that its schedule is checked at each iteration.
        """
        can = getattr(self.subject, "reads_windows", False)
        return can and self.schedule is not None and "iter" in self.schedule.moments()

    def runs_on(self, rank: int, local_rank: int) -> bool:
        """Return whether the callback runs on this rank."""
        return self.ranks == "all" or (rank if self.ranks == "chief" else local_rank) == 0

    def declared(self, option: str) -> tuple[str, ...]:
        """Return what the callback and its wrappers declare in an option such as `after`, `reads` or `optional_points`."""
        values: tuple[str, ...] = ()
        for owner in (self.subject, *proxies_of(self.path)):
            values += names_in(getattr(owner, option, ()), option, self.name)
        return values

    def names(self, inside: Sequence[Any] = ()) -> set[str]:
        """Return the names that `after` and `before` accept: the names of the callback, its class and its base classes.

        The names of the pipelines around the callback are accepted too, except in callbacks of the same pipeline. `inside`
        contains the pipelines to leave out.
        """
        pipelines = [pipeline for pipeline in self.path if not any(pipeline is other for other in inside)]
        classes = {cls.__name__ for named in (self.subject, *pipelines) for cls in type(named).__mro__}
        return {self.name, *classes, *filter(None, map(identity_of, pipelines))}

    def arm(self, key: str, schedule: When) -> ArmedSchedule:
        """Arm a schedule, and store it under a unique key for the checkpoint."""
        while key in self.armed:
            key += "+"
        self.armed[key] = armed = armed_with_text(schedule)
        return armed

    def contained(self, function: Callable[..., Any], point: str) -> Callable[..., Any]:
        """Wrap a function: watchers observe its calls, and `on_error` determines how its errors are handled."""
        for watcher in self.watchers:
            function = watcher.around_call(self.name, point, function)
        if self.on_error == "raise":
            return function

        def call(*args: Any, **kwargs: Any) -> Any:
            if self.disabled and point != "on_run_end":  # a disabled callback can still undo its changes at on_run_end
                return None
            try:
                result = function(*args, **kwargs)
            except StopRun:
                raise
            except Exception as error:
                self.fail(point, error)
                return None
            if point != "state_dict":  # a checkpoint between two failures does not reset the count
                self.failures = 0
            return result

        return call

    def decided(self, point: str, decide: Callable[[], bool]) -> bool:
        """Return whether to call a handler. If `decide` raises an error that does not end the run, return False."""
        try:
            return decide()
        except StopRun:
            raise
        except Exception as error:
            if self.on_error == "raise":
                raise
            return self.refuse(point, error)

    def refuse(self, point: str, error: Exception) -> bool:
        """Count and log an error in a function that decides whether to call a handler. Return False: it is not called."""
        if not self.disabled:
            self.fail(point, error)
        return False

    def state(self) -> dict[str, Any]:
        """Return the state of the callback and its schedules, to save in a checkpoint."""
        holder = holder_of_state(self.subject, proxies_of(self.path))
        has_state = hasattr(holder, "state_dict") and not self.is_blocked
        state = self.contained(holder.state_dict, "state_dict")() if has_state else {}
        schedules = {key: armed.state() for key, armed in self.armed.items()}
        when = {"when": {key: armed.when for key, armed in self.armed.items()}} if schedules else {}
        return {"state": state or self.carried, "schedules": schedules, **when}

    def load_state(self, saved: Mapping[str, Any]) -> None:
        """Restore the state that `state` returned. State that the class cannot load is copied into later checkpoints."""
        self.carried = saved["state"] if self.not_restored() else {}
        holder = holder_of_state(self.subject, proxies_of(self.path))
        if saved["state"] and hasattr(holder, "load_state_dict"):
            try:
                self.contained(holder.load_state_dict, "load_state_dict")(saved["state"])
            except Exception as error:
                error.add_note(f"while restoring {self.name} from a checkpoint")
                raise
        for key, armed in self.armed.items():
            when = saved.get("when", {}).get(key) if key in saved["schedules"] else "none"
            armed.restore(saved["schedules"].get(key), when)

    def not_restored(self) -> str:
        """Return a phrase that says what happens to saved state, or "" if the class has `load_state_dict`."""
        if has_own(holder_of_state(self.subject, proxies_of(self.path)), "load_state_dict"):
            return ""
        return f"{'not restored' if self.has_own_state else 'stored for later'}: its class has no load_state_dict"

    def fail(self, point: str, error: Exception) -> None:
        """Count and log a failure. Disable the callback if its error policy requires it."""
        self.failures += 1
        limit = 1 if self.on_error == "disable" else FAILURES_IN_A_ROW
        self.disabled |= self.failures >= limit
        times = f" ({limit} times in a row)" if self.disabled and limit > 1 else ""
        outcome = "it is disabled for the rest of the run" if self.disabled else "the run continues"
        what = f"{self.name} failed at {point}: {type(error).__name__}: {error}"
        logger.warning("%s%s; %s", what, times, outcome, exc_info=error)


def proxies_of(path: tuple[Callback, ...]) -> tuple[ProxyCallback, ...]:
    """Return the wrappers directly around a callback, outermost first."""
    return tuple(callback for callback in path if isinstance(callback, ProxyCallback))


def is_not_empty(saved: Mapping[str, Any]) -> bool:
    """Return whether the saved state of a callback or of its schedules is not empty."""
    return bool(saved["state"]) or bool(saved["schedules"])


def entries_of(callbacks: Iterable[Any], *, is_in_team: bool = False) -> list[Entry]:
    """Return an entry with a unique name for each callback, including callbacks in pipelines or for other ranks."""
    entries: list[Entry] = []
    names: dict[str, int] = {}
    for subject, path in _leaves(callbacks, ()):
        entry = _entry(subject, path)
        entry.name = _unique(entry.name, names)
        if isinstance(subject, Callback):
            check_knobs(entry.name, type(subject), subject)
        entry.is_in_team = is_in_team
        if is_in_team and entry.ranks != "all" and (entry.kind == MAIN or getattr(subject, "changes_weights", False)):
            what = f"{entry.name} changes the model's weights, but runs on the {entry.ranks} only."
            raise CompileError(f"{what} The ranks would have different weights.", set='ranks = "all"')
        entries.append(entry)
    _check_schedules(entries)
    everywhere = {name for entry in entries if entry.ranks == "all" for name in entry.declared("writes")}
    elsewhere = {name for entry in entries for name in entry.declared("writes")} - everywhere
    for entry in entries if elsewhere else ():
        entry.reads_on_some_ranks = not elsewhere.isdisjoint(entry.declared("reads"))
    mains = [entry for entry in entries if entry.kind == MAIN]
    if len(mains) > 1:
        raise MainPointTaken(
            f"two MainCallbacks: {mains[0].name} and {mains[1].name}; a run has only one.",
            keep="one of them, or derive the other from Callback",
        )
    return entries


def _unique(name: str, last_number: dict[str, int]) -> str:
    """Return the name, with a number appended if it is taken. `last_number` maps each name to its last number."""
    unique, number = name, last_number.get(name, 1)
    while unique in last_number:
        number += 1
        unique = f"{name}#{number}"
    last_number[name], last_number[unique] = number, last_number.get(unique, 1)
    return unique


def _leaves(callbacks: Iterable[Any], path: tuple[Callback, ...]) -> Iterator[tuple[Any, tuple[Callback, ...]]]:
    if isinstance(callbacks, Callback | str | Mapping) or not isinstance(callbacks, Iterable):
        callbacks = [callbacks]
    for callback in callbacks:
        if isinstance(callback, CallbackPipeline) and not overrides_run(callback):
            for handler in find_handlers(callback) if not isinstance(callback, ProxyCallback) else ():
                name = type(callback).__name__
                raise NotACallback(
                    f"{name}.{handler.spelling} would never be called: a pipeline only runs its callbacks.",
                    move=f"{handler.spelling} into one of the pipeline's callbacks",
                    override="run(self, hookpoint=None, logs=None) instead: it receives every point",
                )
            reject_ineffective(callback)
            yield from _leaves(callback.get_pipeline(), (*path, callback))
        else:
            yield adopted(callback), path
            if fetches_in_step(callback):
                yield fetches_of(callback), path
            if is_custom_pipeline(callback):  # the pipeline's own `run` handles items that are not callbacks
                items = list(callback.get_pipeline())
                for item in items:
                    if not isinstance(item, Callback):
                        reject_schedules(callback, scheduled_handlers(item))
                yield from _leaves((item for item in items if isinstance(item, Callback)), (*path, callback))


def _entry(subject: Any, path: tuple[Callback, ...]) -> Entry:
    if inspect.isclass(subject):
        raise NotACallback.a_class(subject)
    if inspect.isfunction(subject) and not marks(subject):
        name = subject.__name__
        raise NotACallback(f"the function {name} has no point.", write=f'@on("on_epoch_end") above def {name}')
    try:
        handlers = handlers_of(subject)
    except CompileError:
        check_library(subject)
        raise
    if not handlers:
        if isinstance(subject, str | Mapping | PathLike):
            raise NotACallback.a_configuration(subject)
        if isinstance(subject, list | tuple):
            raise NotACallback("a list inside a list of callbacks.", write="*callbacks, or CallbackPipeline(...)")
        if not isinstance(subject, Callback):
            check_library(subject)
            write = "a class with a method such as on_epoch_end(self, run)"
            if all(hasattr(subject, name) for name in ("names", "reset", "update", "results")):
                write = f"InferenceRunner(data, {type(subject).__name__}(...))"
            raise NotACallback(f"{subject!r} is not a callback: it has no method named after a point.", write=write)
        reject_idle_class(subject, Callback)
    proxies = proxies_of(path)
    reject_unsaved_state(holder_of_state(subject, proxies))
    handlers = through_proxies(handlers, proxies)
    name = next(filter(None, map(_own_name, (*proxies, subject))), type(subject).__name__)
    is_main = isinstance(subject, MainCallback)
    has = {handler.point for handler in handlers}
    if not is_main:
        for point in sorted(has & {point.name for point in POINTS if point.main_only}):
            raise MainPointTaken(
                f"{handlers[0].owner}.{point} is reserved for the MainCallback.",
                derive=f"class {handlers[0].owner}(MainCallback), or use another point",
            )
    options = marked_options(subject) if inspect.isfunction(subject) else subject
    is_monitor = "on_records" in has  # by default, a monitor runs only on the chief, and its errors do not end the run
    place = setter(path, ("ranks", "chief_only"), options)
    is_of_chief = getattr(place, "chief_only", is_monitor) is True
    ranks = option_of(name, "ranks", place, RANKS, default="chief" if is_of_chief else "all")
    if getattr(subject, "saves", False):  # all ranks take part in a save
        ranks = "all"
    for flag in ("collective", "may_skip") if ranks != "all" else ():
        if getattr(subject, flag, False):
            where = "" if place is options else f" on {type(place).__name__}, or move {name} out of it"
            raise CompileError(f"{name} has {flag} = True but runs on the {ranks} only.", set=f'ranks = "all"{where}')
    policy = setter(path, ("on_error",), options)
    on_error = option_of(name, "on_error", policy, POLICIES, default="warn" if is_monitor else "raise")
    outer = next(filter(overrides_run, path), None)
    return Entry(
        subject,
        name,
        path,
        handlers if outer is None else [through_pipeline(outer, subject, handler) for handler in handlers],
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
    if own is not None and not triggers and not is_custom_pipeline(subject):
        raise NoTrigger(name, own)
    outer = [schedule_of(pipeline) for pipeline in path if getattr(pipeline, "replaces_schedules", False)]
    schedules = (*outer, own, *map(schedule_of, reversed(path)))
    return next((schedule for schedule in schedules if schedule is not None), None)


def _check_schedules(entries: list[Entry]) -> None:
    first: dict[int, Entry] = {}  # maps a pipeline's id to its first entry, in list order
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
