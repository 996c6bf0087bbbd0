"""Hooks: a list of callbacks, compiled once into the calls for each point."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping
from copy import copy
from functools import partial
from typing import TYPE_CHECKING, Any

from hookpoint.core.callback.callback import Callback
from hookpoint.core.callback.callback_info import CallbackInfo, info_of, schedule_of
from hookpoint.core.callback.pipeline import CallbackPipeline
from hookpoint.core.callback.proxy_callback import ProxyCallback
from hookpoint.core.callback.watcher import Watcher
from hookpoint.core.errors import CompileError, StopRun
from hookpoint.core.hooks._asynchronous import check_asynchronous
from hookpoint.core.hooks._calls import calls_of, check_reads
from hookpoint.core.hooks._contexts import Contexts
from hookpoint.core.hooks._custom_points import CustomPoints
from hookpoint.core.hooks._explain import explain
from hookpoint.core.hooks._order import Order, warn_of_unknown_names
from hookpoint.core.hooks._overridden_run import overrides_run
from hookpoint.core.hooks.costs import IN_THE_STEP, Cost
from hookpoint.core.hooks.dispatch import Call, compile_dispatch
from hookpoint.core.hooks.entry import MAIN, MONITOR, Entry, entries_of, is_not_empty
from hookpoint.core.logger import logger
from hookpoint.core.points import BY_NAME
from hookpoint.core.run_view import Dispatch

if TYPE_CHECKING:
    from hookpoint.core.schedule.clocks import Clocks


class Hooks:
    """Compiled callbacks: validated, ordered, and resolved into one function per point.

    Compiling raises an error for misspelled points, unknown arguments, cycles in the order of callbacks, and classes passed
    instead of instances. The list is copied, never modified. Callbacks whose `ranks` excludes this rank are left out.

    >>> hooks = Hooks([LambdaCallback(on_epoch_end=lambda run: None)])
    >>> hooks.dispatch("on_iter_begin") is None      # no handlers, so the loop has no overhead
    True
    """

    def __init__(self, callbacks: Iterable[Any] = (), *, rank: int = 0, local_rank: int = 0, is_in_team: bool = False) -> None:
        self.all_entries = entries_of(callbacks, is_in_team=is_in_team)
        for entry in self.all_entries:
            check_asynchronous(entry)
        _reject_duplicates(self.all_entries)
        self.entries = [entry for entry in self.all_entries if entry.runs_on(rank, local_rank)]
        # Callbacks that read metrics receive means over all ranks. This set therefore also contains the metrics that only
        # callbacks on other ranks read.
        by_steps = [entry for entry in self.all_entries if entry.reads_by_steps]
        self.read_by_steps = frozenset(name for entry in by_steps for name in entry.declared("reads"))
        # The first watcher is the outermost one, so it is applied last.
        self._watchers = tuple(entry.subject for entry in reversed(self.entries) if isinstance(entry.subject, Watcher))
        for entry in self.entries:
            entry.watchers = self._watchers
        self._contexts = Contexts(self.entries)
        self.remarks: list[Callable[[], list[str]]] = []  # functions that return more lines for `explain`
        self.sources: dict[str, Callable[[], str]] = {}  # maps a title to a function that returns an iteration's source code
        self._logged_moves: set[str] = set()
        self._calls = self._ordered()
        if rank == 0:
            warn_of_unknown_names(self.all_entries)
        self._dispatches: dict[tuple[tuple[str, ...], str | None, bool, bool], Dispatch | None] = {}
        self._by_point: dict[str, Dispatch] = {
            name: partial(self._compile_and_fire, name)
            for name in BY_NAME
            if self._watchers or not all(call.train_only for call in self._calls.get(name, ()))
        }
        self._attached: list[tuple[CallbackInfo, Any, Any]] = []  # with this run and the run that was stored before
        self._unused_state: dict[str, Any] = {}
        self.custom_points = CustomPoints(self.entries, self._logged_moves)

    # Called during a run

    def fire(self, point: str, run: Any) -> None:
        """Call the handlers for a built-in point."""
        dispatch = self._by_point.get(point)
        if dispatch is not None:
            dispatch(run)

    def _compile_and_fire(self, point: str, run: Any) -> None:
        """Compile a point when it fires for the first time, then call its handlers. Points that never fire are not compiled."""
        self._by_point[point] = dispatch = self.dispatch(point, timed=True) or _do_nothing
        dispatch(run)

    def dispatch(self, *points: str, mode: str | None = None, timed: bool = False, sampled: bool = False) -> Dispatch | None:
        """Return one function that calls the handlers for these points in order, or None if there are no handlers.

        With `timed`, the function measures the time of each handler. With `sampled`, it does so only in sampled iterations.
        """
        key = (points, mode, timed, sampled)
        if key not in self._dispatches:
            calls = [call for point in points for call in self._calls.get(point, ()) if call.is_made_in(mode)]
            # Validation and prediction also fire on_iter_begin and on_iter_end. These calls are not timed, because the time at
            # these points is compared with the time of a training step.
            measured = {call.point for call in calls} - ({*IN_THE_STEP} if mode in ("val", "pred") else set())
            self._dispatches[key] = compile_dispatch(
                "_and_".join(points), calls, timed=measured if timed or sampled else (), only_samples=sampled
            )
            for watcher in self._watchers:
                self._dispatches[key] = watcher.around_points(points, self._dispatches[key])
        return self._dispatches[key]

    def forget_dispatches(self) -> None:
        """Compile the functions again when they are next requested, because an `IdleCallback` is no longer idle."""
        self._dispatches.clear()

    def contain(
        self,
        point: str,
        run: Any,
        *,
        monitors: bool | None = None,
        around: Callable[[str, Callable[[], object]], object] = lambda name, call: call(),
    ) -> list[Exception]:
        """Call the handlers for a point one by one. Return their errors instead of raising them.

        If `monitors` is True, call only monitors. If it is False, call all callbacks except monitors. Each handler is called
        through `around(name, call)`.
        """
        errors: list[Exception] = []
        for call in self._calls.get(point, ()):
            if monitors is None or (call.entry.kind == MONITOR) is monitors:
                single = compile_dispatch(point, [call], timed=(point,))
                assert single is not None
                try:
                    around(call.entry.name, partial(single, run))
                except StopRun:
                    pass
                except Exception as error:
                    errors.append(error)
        return errors

    def setup(self, component: Any, save_path: Any) -> None:
        """Call `setup` on every callback in the list. A pipeline that overrides `setup` forwards the call itself."""
        done: set[int] = set()
        for entry in self.entries:
            for callback in (*entry.path, entry.subject):
                forwards = getattr(type(callback), "setup", None) is CallbackPipeline.setup and not overrides_run(callback)
                setup = partial(Callback.setup, callback) if forwards else getattr(callback, "setup", None)
                if setup is not None and id(callback) not in done:
                    self._set_up(callback, partial(setup, component, save_path))
                done.add(id(callback))
                if not forwards:
                    break

    def _set_up(self, callback: Any, setup: Callable[[], object]) -> None:
        try:
            setup()
        except StopRun:
            raise
        except Exception as error:
            members = [entry for entry in self.entries if any(callback is one for one in (*entry.path, entry.subject))]
            if any(entry.on_error == "raise" for entry in members):
                raise
            for entry in members:
                entry.fail("setup", error)

    def attach(self, run: Any) -> None:
        """Store the run in each Callback, and call `__enter__` on the callbacks that define it.

        A Callback reads `self.trainer` (tensorpack) and `self.model` (Keras) from the stored run. If `run` is None, remove the
        stored run, and call any `__exit__` that has not been called yet. If this run is inside another run that uses the same
        callback, the outer run is stored again.
        """
        for entry in self.entries if run is not None else ():
            for callback in (entry.subject, *entry.path):
                if isinstance(callback, Callback):
                    info = info_of(callback)
                    self._attached.append((info, run, info.run))
                    info.run = run
        while run is None and self._attached:
            info, own, outer = self._attached.pop()
            if info.run is own:
                info.run = outer if outer is not None and outer.hooks.is_attached else None
        if run is not None:
            self._contexts.enter(run)
        elif problems := self._contexts.leave(sys.exception()):  # only needed if an exception prevented the call to `leave`
            logger.error("a callback failed at __exit__", exc_info=problems[0])
        for watcher in self._watchers if run is None else ():
            watcher.leave()

    @property
    def is_attached(self) -> bool:
        """Whether the callbacks store the run. True from the beginning to the end of the run."""
        return bool(self._attached)

    def leave(self, error: BaseException | None) -> list[Exception]:
        """Exit the callbacks' contexts with the run's exception, in reverse order. Return the errors that they raise.

        Then warn about each handler return value that has not been reported yet.
        """
        errors = self._contexts.leave(error)
        for entry in self.entries:
            for returned in entry.unreported:
                returned.report_dropped()
            entry.unreported.clear()
        return errors

    def start_schedules(self, clocks: Clocks) -> None:
        """Start every schedule at the run's current counters and elapsed time, so that no past tick is due."""
        self.custom_points.beginning = copy(clocks)
        for entry in self.entries:
            for armed in entry.armed.values():
                armed.start(clocks)

    def fire_payload(
        self, point: str, payload: Mapping[str, Any], *, on_failure: Callable[[Exception], None] | None = None
    ) -> Any:
        """Call the handlers for a custom point. Return the payload's "result", or the value of a handler's `Replace`.

        If a handler raises an error, raise it, or call `on_failure` with it and continue.
        """
        return self.custom_points.fire(point, payload, on_failure)

    # Reports

    def explain(self, *, step: bool = False) -> str:
        """Return a table of the callbacks at each point, in order.

        It shows when and on which ranks each callback runs, and the reason for its position.

        With `step`, the text also includes the source code that the run executes for each iteration. This code is generated
        when a pass begins, and omits every check whose result cannot change during the pass.
        """
        text = "\n".join([explain(self._calls, self.entries), *(line for lines in self.remarks for line in lines())])
        if not step:
            return text
        sources = [f"{title}:\n\n{source()}" for title, source in self.sources.items()]
        return "\n\n".join([text, *(sources or ["No pass has begun yet. The source is generated when a pass begins."])])

    def costs(self, *, of_users: bool = False) -> list[Cost]:
        """Return the time that each callback takes at each point, most expensive first. One iteration in 64 is sampled.

        With `of_users`, the list omits hookpoint's own callbacks. It still includes callbacks that call the user's functions,
        such as LambdaCallback.
        """
        calls = [call for calls in self._calls.values() for call in calls if not of_users or _is_of_user(call.entry.subject)]
        return sorted((call.cost for call in calls if call.cost.calls), key=lambda cost: -cost.seconds)

    def calls(self, point: str) -> tuple[Call, ...]:
        """Return the calls for a point, in order."""
        return self._calls.get(point, ())

    @property
    def is_watched(self) -> bool:
        """Whether a watcher observes the calls. If so, the default forward pass must also be called through the hooks."""
        return bool(self._watchers)

    @property
    def main(self) -> Any:
        """The MainCallback, or None."""
        return next((entry.subject for entry in self.entries if entry.kind == MAIN), None)

    # Checkpoints

    def state_dict(self) -> dict[str, Any]:
        """Return the state of all callbacks and their schedules, by callback name.

        This includes restored state of callbacks that are no longer in the list, because they may be added again later.
        """
        return {**self._unused_state, **{entry.name: entry.state() for entry in self.entries}}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the state that `state_dict` returned. Callbacks without an entry in it are unchanged."""
        names = {entry.name for entry in self.entries}
        self._unused_state = {name: saved for name, saved in state.items() if name not in names and is_not_empty(saved)}
        for entry in self.entries:
            if entry.name in state:
                entry.load_state(state[entry.name])
            else:
                for armed in entry.armed.values():
                    armed.join()

    def compared(self, state: Mapping[str, Any]) -> str:
        """Return a table that shows whether each callback was restored and, if not, why.

        Return "" if all callbacks were restored.
        """
        mine = {entry.name: is_not_empty(entry.state()) for entry in self.entries}
        lacking = {entry.name: entry.not_restored() for entry in self.entries if state.get(entry.name, {}).get("state")}
        for entry in self.entries:
            for key, when in state.get(entry.name, {}).get("when", {}).items():
                if key in entry.armed and when != entry.armed[key].when and not lacking.get(entry.name):
                    lacking[entry.name] = f"restored, but its schedule is now {entry.armed[key].when}, not {when}"
        rows = [(name, "restored") for name in mine if name in state and is_not_empty(state[name]) and not lacking.get(name)]
        others = [(name, "new, starts from scratch") for name, has_state in mine.items() if has_state and name not in state]
        others += [(name, "stored for later") for name, saved in state.items() if name not in mine and is_not_empty(saved)]
        others += [(name, what) for name, what in lacking.items() if what]
        width = max((len(name) for name, _ in rows + others), default=0)
        return "\n".join(f"  {name:<{width}}  {what}" for name, what in rows + others) if others else ""

    def _ordered(self) -> dict[str, tuple[Call, ...]]:
        by_point: dict[str, dict[Entry, list[Call]]] = {name: {} for name in BY_NAME}
        for entry in self.entries:
            for call in (call for handler in entry.called for call in calls_of(entry, handler)):
                by_point.setdefault(call.point, {}).setdefault(entry, []).append(call)
        ordered = {}
        for point, of_entry in by_point.items():
            order = Order(point, list(of_entry), self._logged_moves)
            calls = [call for entry in order.entries for call in of_entry[entry]]
            for call in calls:
                call.why = order.why[call.entry]
            check_reads(calls)
            if calls:
                ordered[point] = tuple(calls)
        return ordered


def _reject_duplicates(entries: Iterable[Entry]) -> None:
    """Raise CompileError if the list contains a callback twice.

    Wrappers, and pipelines with a schedule or a condition, may share a callback, because each may call it at different times.
    """
    first: dict[int, Entry] = {}
    for entry in entries:
        if not any(map(_changes_calls, entry.path)) and first.setdefault(id(entry.subject), entry) is not entry:
            name = first[id(entry.subject)].name
            raise CompileError(
                f"{name} is in the list of callbacks twice, so each of its handlers would be called twice.",
                keep="one of them, with a combined schedule: .when(a | b)",
                create="a second instance if each of them should keep its own state",
            )


def _changes_calls(pipeline: Any) -> bool:
    has_gate = getattr(pipeline, "gate", None) is not None
    return has_gate or schedule_of(pipeline) is not None or isinstance(pipeline, ProxyCallback) or overrides_run(pipeline)


def _is_of_user(subject: Any) -> bool:
    module = type(subject).__module__
    is_ours = module.startswith("hookpoint.") and not module.startswith("hookpoint.core.callback.")
    return not is_ours and not getattr(subject, "is_internal", False)


def _do_nothing(run: Any) -> None:
    """Do nothing. Used for a point without handlers or watchers."""
