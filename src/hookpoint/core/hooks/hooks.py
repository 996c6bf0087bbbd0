"""Hooks: a list of callbacks, compiled once into ready calls per point."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

from hookpoint.core.callback.callback import Callback
from hookpoint.core.callback.current import CURRENT
from hookpoint.core.callback.handlers import Handler, answering
from hookpoint.core.callback.kept import kept_of
from hookpoint.core.callback.replace import Replace
from hookpoint.core.callback.watcher import Watcher
from hookpoint.core.errors import OutsideRun, StopRun
from hookpoint.core.hooks._calls import calls_of, check_reads, gates_of, schedule_key
from hookpoint.core.hooks._explain import explain
from hookpoint.core.hooks._order import Order
from hookpoint.core.hooks.costs import Cost
from hookpoint.core.hooks.dispatch import Call, compile_dispatch
from hookpoint.core.hooks.entry import MAIN, MONITOR, Entry, call_run, entries_of, is_anything
from hookpoint.core.points import BY_NAME
from hookpoint.core.run_view import Dispatch
from hookpoint.core.schedule.armed_schedule import ArmedSchedule

if TYPE_CHECKING:
    from hookpoint.core.schedule.clocks import Clocks

logger = logging.getLogger("hookpoint")


def _made(name: str, call: Callable[[], object]) -> object:
    return call()


class Hooks:
    """Callbacks made ready: validated, ordered, and resolved into one function per point.

    Compiling finds every mistake it can: near misses of points, unknown arguments, cycles, a class where an
    instance belongs. The list is copied, never edited. Callbacks whose `ranks` leave this rank out are left out here.

    >>> hooks = Hooks([LambdaCallback(on_epoch_end=lambda run: None)])
    >>> hooks.dispatch("on_iter_begin") is None      # nobody listens: a loop tests this once and pays nothing
    True
    """

    def __init__(self, callbacks: Iterable[Any] = (), *, rank: int = 0, local_rank: int = 0, is_in_team: bool = False) -> None:
        self.of_all_ranks = entries_of(callbacks, is_in_team=is_in_team)
        self.entries = [entry for entry in self.of_all_ranks if entry.belongs_on(rank, local_rank)]
        # All ranks have to know what any of them reads: the mean over all of them is what it gets.
        by_steps = [entry for entry in self.of_all_ranks if entry.reads_by_steps]
        self.read_by_steps = frozenset(name for entry in by_steps for name in entry.declared("reads"))
        # The first of them is to be around the others, and is asked last.
        self._watchers = tuple(entry.subject for entry in reversed(self.entries) if isinstance(entry.subject, Watcher))
        for entry in self.entries:
            entry.watchers = self._watchers
        self._moves_said: set[str] = set()
        self._calls = self._ordered(calls_of(self.entries))
        self._tables: dict[tuple[tuple[str, ...], str | None, bool], Dispatch | None] = {}
        self._by_point: dict[str, Dispatch] = {
            name: partial(self._first, name)
            for name in BY_NAME
            if self._watchers or not all(call.train_only for call in self._calls.get(name, ()))
        }
        self._for_later: dict[str, Any] = {}
        self._own: dict[str, list[tuple[Entry, Handler, tuple[ArmedSchedule, ...]]]] = {}

    # In a run

    def fire(self, point: str, run: Any) -> None:
        """Make the calls of a built-in point."""
        dispatch = self._by_point.get(point)
        if dispatch is not None:
            dispatch(run)

    def _first(self, point: str, run: Any) -> None:
        """Compile a point when it is fired for the first time; hooks of a guard never need most of them."""
        self._by_point[point] = dispatch = self.dispatch(point, timed=True) or _nothing
        dispatch(run)

    def dispatch(self, *points: str, mode: str | None = None, timed: bool = False) -> Dispatch | None:
        """Return one function that makes the calls of these points one after the other, or None where nobody listens."""
        key = (points, mode, timed)
        if key not in self._tables:
            calls = [call for point in points for call in self._calls.get(point, ()) if mode == "train" or not call.train_only]
            self._tables[key] = compile_dispatch("_and_".join(points), calls, timed=timed)
            for watcher in self._watchers:
                self._tables[key] = watcher.around_points(points, self._tables[key])
        return self._tables[key]

    def contain(
        self,
        point: str,
        run: Any,
        *,
        monitors: bool | None = None,
        around: Callable[[str, Callable[[], object]], object] = _made,
    ) -> list[Exception]:
        """Make the calls of a point one by one, of monitors or of the others only; return the errors, raise none.

        `around` gets the name of each callback and its call, and makes it.
        """
        errors: list[Exception] = []
        for call in self._calls.get(point, ()):
            if monitors is None or (call.entry.kind == MONITOR) is monitors:
                single = compile_dispatch(point, [call], timed=True)
                assert single is not None
                try:
                    around(call.entry.name, partial(single, run))
                except StopRun:
                    pass
                except Exception as error:
                    errors.append(error)
        return errors

    def setup(self, component: Any, save_path: Any) -> None:
        """Call `setup` of every callback of the list; a pipeline calls that of its own."""
        tops = [entry.path[0] if entry.path else entry.subject for entry in self.entries]
        for subject in {id(top): top for top in tops}.values():
            if hasattr(subject, "setup"):
                subject.setup(component, save_path)

    def attach(self, run: Any) -> None:
        """Tell callbacks what run they are in: methods of tensorpack's and Keras's kind ask `self.trainer` and `self.model`."""
        for entry in self.entries:
            if isinstance(entry.subject, Callback):
                kept_of(entry.subject).run = run
        for watcher in self._watchers if run is None else ():
            watcher.leave()

    def start_schedules(self, clocks: Clocks) -> None:
        """Let every schedule count from where the clocks stand."""
        for entry in self.entries:
            for armed in entry.armed.values():
                armed.start(clocks)

    # Points of one's own

    def fire_payload(self, point: str, payload: Mapping[str, Any]) -> Any:
        """Make the calls of a point of one's own with what it offers; return the payload's result, as replaced by a handler."""
        if point not in self._own:
            self._own[point] = list(self._answering(point))
        result = payload.get("result")
        for entry, handler, gates in self._own[point]:
            armed = entry.armed.get(schedule_key(handler))
            allowed = all(gate.ready(_run_of(payload, handler), None) for gate in gates)
            if allowed if armed is None else armed.take(_run_of(payload, handler), None, allowed):
                answer = _answer(entry, handler, point, payload)
                if isinstance(answer, Replace):
                    result = answer.value
                    payload = {**payload, "result": result}
        return result

    def _answering(self, point: str) -> Iterator[tuple[Entry, Handler, tuple[ArmedSchedule, ...]]]:
        entries = Order(point, [entry for entry in self.entries if _answers(entry, point)], self._moves_said).entries
        for entry in entries:
            overrides_run = [handler for handler in entry.called if handler.spelling == "run"]
            for handler in overrides_run[:1] or answering(entry.called, point):
                yield entry, handler, gates_of(entry, point)

    # What the user may ask

    def explain(self) -> str:
        """Return a table: each point's callbacks in order, when and where they run, and why they stand where they stand."""
        return explain(self._calls, self.entries)

    def costs(self, *, of_users: bool = False) -> list[Cost]:
        """Return what each callback took at each point, the most expensive first; iterations are sampled, one in 64.

        Where only those of users count, the callbacks of hookpoint are left out, but for those made of functions.
        """
        calls = [call for calls in self._calls.values() for call in calls if call.cost and call.cost.calls]
        if of_users:
            calls = [call for call in calls if _is_of_user(call.entry.subject)]
        costs = {id(call.cost): call.cost for call in calls if call.cost is not None}
        return sorted(costs.values(), key=lambda cost: -cost.seconds)

    def calls(self, point: str) -> tuple[Call, ...]:
        """Return the calls of a point, in order."""
        return self._calls.get(point, ())

    @property
    def main(self) -> Any:
        """The MainCallback, or None."""
        return next((entry.subject for entry in self.entries if entry.kind == MAIN), None)

    # What a checkpoint keeps

    def state_dict(self) -> dict[str, Any]:
        """Return the state of callbacks and of their schedules, under the callbacks' names.

        A state that was loaded and that no callback has taken is in it too: its callback may come back later.
        """
        return {**self._for_later, **{entry.name: entry.state() for entry in self.entries}}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take back what `state_dict` returned. Callbacks it does not know keep what they have."""
        names = {entry.name for entry in self.entries}
        self._for_later = {name: kept for name, kept in state.items() if name not in names and is_anything(kept)}
        for entry in self.entries:
            if entry.name in state:
                entry.load_state(state[entry.name])

    def compared(self, state: Mapping[str, Any]) -> str:
        """Return a table of the callbacks with a state: restored, new, or kept for later; empty where all are restored."""
        mine = {entry.name: is_anything(entry.state()) for entry in self.entries}
        lacking = {entry.name: entry.not_restored() for entry in self.entries if state.get(entry.name, {}).get("state")}
        rows = [(name, "restored") for name in mine if name in state and is_anything(state[name]) and not lacking.get(name)]
        others = [(name, "new, starts afresh") for name, has_state in mine.items() if has_state and name not in state]
        others += [(name, "kept for later") for name, kept in state.items() if name not in mine and is_anything(kept)]
        others += [(name, what) for name, what in lacking.items() if what]
        width = max((len(name) for name, _ in rows + others), default=0)
        return "\n".join(f"  {name:<{width}}  {what}" for name, what in rows + others) if others else ""

    def _ordered(self, calls: list[Call]) -> dict[str, tuple[Call, ...]]:
        by_point: dict[str, list[Call]] = {name: [] for name in BY_NAME}
        for call in calls:
            by_point.setdefault(call.point, []).append(call)
        ordered = {}
        for point, found in by_point.items():
            entries = list(dict.fromkeys(call.entry for call in found))
            order = Order(point, entries, self._moves_said)
            for call in found:
                call.why = order.why[call.entry]
            of_entry: dict[Entry, list[Call]] = {}
            for call in found:
                of_entry.setdefault(call.entry, []).append(call)
            in_order = [call for entry in order.entries for call in of_entry[entry]]
            check_reads(in_order)
            if in_order:
                ordered[point] = tuple(in_order)
        return ordered


def _is_of_user(subject: Any) -> bool:
    module = type(subject).__module__
    is_ours = module.startswith("hookpoint.") and not module.startswith("hookpoint.core.callback.")
    return not is_ours and not getattr(subject, "is_internal", False)


def _nothing(run: Any) -> None:
    """Nobody but a watcher would have listened, and it does not want to either."""


def _answers(entry: Entry, point: str) -> bool:
    return any(handler.spelling == "run" or handler.answers_to(point) for handler in entry.called)


def _answer(entry: Entry, handler: Handler, point: str, payload: Mapping[str, Any]) -> Any:
    call = partial(call_run, entry.subject, point) if handler.spelling == "run" else handler.call
    try:
        return entry.contained(call, point)(payload)
    except BaseException as error:
        run = CURRENT.get()
        where = f" (step {run.step}, rank {run.rank})" if run is not None else ""
        error.add_note(f"in callback {entry.name} at {point}{where}")
        raise


def _run_of(payload: Mapping[str, Any], handler: Handler) -> Any:
    if payload.get("run") is None:
        raise OutsideRun(
            f"{handler.owner}.{handler.spelling} has a schedule, and no run is going on whose clocks it could ask."
        )
    return payload["run"]
