"""Dispatch: compile all handler calls at a point into one function, so that nothing is looked up during a step.

The function for two handlers, the second with named arguments and a schedule, looks like this:

    def on_iter_end(run):
        try:
            if h0(run) is not None: r0()
            if run._clocks.step >= s1.due and s1.take(run, None, True):
                if h1(run._now.batch, run._now.loss) is not None: r1()
        except BaseException as error:
            blame(error, run)
            raise

A loop over a list of calls would take twice as long, because each call would need an extra function to pass named arguments.
The line number in a traceback identifies the call that failed.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from functools import partial
from time import perf_counter
from typing import TYPE_CHECKING, Any

from hookpoint.core.callback.current import CURRENT, CURRENT_CALL
from hookpoint.core.callback.handlers import Handler
from hookpoint.core.callback.idle_callback import IdleCallback
from hookpoint.core.errors import StopRun
from hookpoint.core.hooks._asynchronous import DIRECT, deferred
from hookpoint.core.hooks._returned import Returned, may_return
from hookpoint.core.hooks.costs import Cost
from hookpoint.core.hooks.entry import Entry
from hookpoint.core.points import BY_NAME, POINTS
from hookpoint.core.run_view import Dispatch
from hookpoint.core.schedule.armed_schedule import ArmedSchedule

if TYPE_CHECKING:
    from hookpoint.core.run_view import RunView

# The points at which ranks can agree on a skip, because all ranks reach them in every iteration.
SKIP_POINTS = ("on_iter_begin", "on_train_iter_begin", "on_backward_begin", "on_backward_end", "on_step_begin")

# The points that fire for each batch. At these points, checking the return value of a handler must not take extra time.
EACH_BATCH = {point.name for point in POINTS if point.modes and not point.name.endswith(("_epoch_begin", "_epoch_end"))} - {
    "on_epoch_begin",
    "on_epoch_end",
    "on_lr_adjust",
}

ARGUMENTS = {
    "run": "run",
    "logs": "run.logs",
    "epoch": "run._clocks.epoch",
    "batch": "run._now.batch",
    "batch_idx": "run._now.batch_idx",
    "outputs": "run._now.outputs",
    "loss": "run._now.loss",
    "error": "run._payload['error']",
    "path": "run._payload['path']",
    "info": "run._payload['info']",
    "tags": "run._payload['tags']",
}


@dataclass(slots=True, eq=False, repr=False)
class Call:
    """One handler at one point, with its schedule and its checks.

    `moment` tells where a trigger's schedule is checked: "iter" or "epoch". `needs` raises an error if a metric that the
    callback reads is missing.
    """

    point: str
    entry: Entry
    handler: Handler
    why: str = ""
    armed: ArmedSchedule | None = None
    when: str = ""
    moment: str | None = None
    train_only: bool = False
    complete_only: bool = False
    gates: tuple[ArmedSchedule, ...] = ()
    notes_run: bool = False
    needs: Callable[[RunView], None] | None = None
    cost: Cost = field(init=False)

    def __post_init__(self) -> None:
        is_trigger = self.handler.point == "on_trigger"
        self.cost = Cost(self.entry.name, self.point, is_trigger=is_trigger, in_run=self.handler.spelling == "run")

    def is_made_in(self, mode: str | None) -> bool:
        """Return whether the handler is called during a pass with this mode. If `mode` is None, no pass is open."""
        if mode is not None and isinstance(self.entry.subject, IdleCallback) and self.entry.subject.is_idle_at(self.point):
            return False
        return mode == "train" or not self.train_only

    @property
    def agrees(self) -> bool:
        """Whether the ranks must agree, after this call, on skipping the batch, the backward pass or the step."""
        return self.entry.may_skip and self.point in SKIP_POINTS

    @property
    def is_deferred(self) -> bool:
        """Whether the handler is called in the background."""
        return self.entry.is_asynchronous and self.point not in DIRECT

    @property
    def same_on_all_ranks(self) -> bool:
        """Whether every rank makes this call at the same step.

        If this is True, the ranks do not have to agree on a save that the handler requests.
        """
        schedule = self.handler.when if self.handler.when is not None else self.entry.schedule
        if self.gates or self.entry.reads_on_some_ranks or (schedule is not None and not schedule.same_on_all_ranks):
            return False
        if self.point == "on_epoch_end" and self.entry.declared("reads"):
            return False  # the metric may be logged on one rank only; the ranks exchange their requests here in any case
        if getattr(self.entry.subject, "same_on_all_ranks", False):
            return True
        by_clock = self.moment == "iter" and schedule is not None
        return by_clock and getattr(self.entry.subject, "saves", False) and not self.entry.declared("reads")


def compile_dispatch(
    label: str, calls: Sequence[Call], *, timed: Collection[str] = (), only_samples: bool = False
) -> Dispatch | None:
    """Return one function that makes the calls in order, or None if there are no calls.

    The function measures how long each handler takes at the points listed in `timed`. With `only_samples`, it measures
    these times only in sampled iterations.
    """
    if not calls:
        return None
    names: dict[str, Any] = {"clock": perf_counter}
    lines = [(line, call) for number, call in enumerate(calls) for line in _lines(call, number, names, call.point in timed)]
    if only_samples:
        plain = [(line, call) for number, call in enumerate(calls, len(calls)) for line in _lines(call, number, names, False)]
        indented = [[(f"    {line}", call) for line, call in branch] for branch in (lines, plain)]
        lines = [("if run._now.is_sampled:", calls[0]), *indented[0], ("else:", calls[0]), *indented[1]]
    head = [f"def {label}(run):", "    try:"]
    tail = ["    except BaseException as error:", "        blame(error, run)", "        raise"]
    names["blame"] = _blame([call for _, call in lines], first_line=len(head) + 1)
    body = [line for line, _ in lines]
    if any(call.agrees for call in calls):
        body.append("run._loop.agree_on_skips()")
    source = "\n".join([*head, *(f"        {line}" for line in body), *tail])
    exec(compile(source, f"<hookpoint {label}>", "exec"), names)
    dispatch: Dispatch = names[label]
    return dispatch


def _lines(call: Call, number: int, names: dict[str, Any], timed: bool) -> list[str]:
    handler, entry = call.handler, call.entry
    is_asynchronous = entry.is_asynchronous
    if is_asynchronous:
        names[f"h{number}"] = deferred(entry, handler, call.point)
    else:
        names[f"h{number}"] = entry.contained(handler.function, call.point)
    if entry.is_in_team and not is_asynchronous:
        names[f"h{number}"] = _caught(call, names[f"h{number}"])
    by_position, by_keyword = handler.bind(BY_NAME[call.point].offers if call.point in BY_NAME else ("run",))
    arguments = [ARGUMENTS[source] for source in by_position]
    arguments += [f"{name}={ARGUMENTS[source]}" for name, source in by_keyword.items()]
    statements = [f"h{number}({', '.join(arguments)})"]
    if may_return(handler.function) and not is_asynchronous:
        names[f"r{number}"] = returned = Returned(entry, handler, call.point, names, f"h{number}")
        if call.point in EACH_BATCH:
            statements = [f"if {statements[0]} is not None: r{number}()"]
        else:
            names[f"r{number}"] = returned.report
            statements = [f"if (answer := {statements[0]}) is not None: r{number}(answer)"]
    if entry.catches_stops and not entry.is_in_team:  # inline: a wrapper function would cost 0.5 us
        names["StopRun"] = StopRun
        statements = ["try:", f"    {statements[0]}", "except StopRun as stop:", "    run.stop(stop.reason)"]
    if timed:
        names[f"c{number}"] = call.cost
        statements = ["began = clock()", *statements, f"c{number}.add(clock() - began)"]
    if call.needs is not None:
        names[f"n{number}"] = call.needs
        statements.insert(0, f"n{number}(run)")
    if entry.meets:
        names[f"k{number}"] = call
        statements.insert(0, f"run._loop.meet(k{number})")
    if call.notes_run:
        names[f"e{number}"] = entry
        statements.append(f"e{number}.has_run = True")
    conditions = _conditions(call, number, names)
    if not conditions:
        return statements
    head = [f"if {' and '.join(conditions)}:"]
    asks_user = bool(call.gates) or (call.armed is not None and not call.armed.by_clock)
    if asks_user and entry.on_error != "raise":
        names["StopRun"], names[f"f{number}"] = StopRun, partial(entry.refuse, call.point)
        test = ["try:", f"    due = {' and '.join(conditions)}", "except StopRun:", "    raise"]
        head = [*test, "except Exception as problem:", f"    due = f{number}(problem)", "if due:"]
    return [*head, *(f"    {statement}" for statement in statements)]


def _caught(call: Call, function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that sets CURRENT_CALL during the call, and turns StopRun into a request to stop the run."""

    def called(*args: Any, **kwargs: Any) -> Any:
        outer = CURRENT_CALL.set(call)
        try:
            return function(*args, **kwargs)
        except StopRun as stop:
            run = CURRENT.get()
            if run is None:
                raise
            run.stop(stop.reason)
            return None
        finally:
            CURRENT_CALL.reset(outer)

    return called


def _conditions(call: Call, number: int, names: dict[str, Any]) -> list[str]:
    allowed = ["run.epoch_complete"] if call.complete_only else []
    for position, gate in enumerate(call.gates):
        names[f"g{number}_{position}"] = gate
        allowed.append(f"g{number}_{position}.ready(run, None)")
    if call.armed is None:
        return allowed
    names[f"s{number}"] = call.armed
    test = call.armed.quick_test(f"s{number}", call.moment)
    take = f"s{number}.take(run, {call.moment!r}, {' and '.join(allowed) or True})"
    return [f"({test})", take] if test else [take]


def _blame(calls: Sequence[Call], first_line: int) -> Callable[[BaseException, RunView], None]:
    """Return a function that adds a note to an exception. The note names the point and the callback that failed.

    The function finds the callback by the line number in the traceback.
    """

    def blame(error: BaseException, run: RunView) -> None:
        traceback = error.__traceback__
        assert traceback is not None
        call = calls[min(traceback.tb_lineno - first_line, len(calls) - 1)]
        where = f"in callback {call.entry.name} at {call.point} (step {run.step}, rank {run.rank})"
        if isinstance(error, StopIteration):  # a `for` loop would treat StopIteration as the end of the data
            raise RuntimeError(f"StopIteration was raised {where}") from error
        error.add_note(where)

    return blame
