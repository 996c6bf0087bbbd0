"""Loop: the iteration skeleton that fires the points. The user's own `for` loops run inside it.

with Loop(callbacks) as run:                 on_setup, on_run_begin
    for epoch in run.epochs(10):             on_epoch_begin            (epochs.py)
        for batch in run.batches(data):      the points of a pass      (passes.py)
            ...
                                             on_epoch_end
                                             on_exception, if one escaped; on_run_end, always
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from types import TracebackType
from typing import Any

from hookpoint.core.account import Account, config_of
from hookpoint.core.clocks import Clocks
from hookpoint.core.costs import StepShare
from hookpoint.core.current import CURRENT
from hookpoint.core.data_points import check_pass
from hookpoint.core.epochs import Epochs
from hookpoint.core.errors import BadLoop, OutsideRun, StopRun, text
from hookpoint.core.hooks import Hooks
from hookpoint.core.iteration import NO_ITERATION
from hookpoint.core.leaving import Leaving
from hookpoint.core.logbook import Logbook
from hookpoint.core.metrics import Floats, floats_one_by_one
from hookpoint.core.monitors import Monitors
from hookpoint.core.parts import own_parts
from hookpoint.core.passes import MODES, Batches, Pass
from hookpoint.core.positions import PlainPositions, Positions
from hookpoint.core.randomness import HostRandomness, Randomness
from hookpoint.core.resuming import Resuming
from hookpoint.core.run import Mode, Run, set_now
from hookpoint.core.saving import Saving
from hookpoint.core.secrets import masked
from hookpoint.core.signals import Signals
from hookpoint.core.step_hooks import StepHooks
from hookpoint.core.stepper import Stepper
from hookpoint.core.store import Resume, Store

logger = logging.getLogger("hookpoint")

KEPT = ("model", "optimizer", "criterion", "lr_scheduler")  # of what a loop is given, in each checkpoint
EVERYWHERE: list[Any] = []  # callbacks that are in every loop of this process, last of all


class Loop:
    """The loop without the default callbacks; `hookpoint.Loop` adds them, and its docstring says how to use it."""

    def __init__(
        self,
        callbacks: Iterable[Any] = (),
        *,
        model: Any = None,
        optimizer: Any = None,
        criterion: Any = None,
        lr_scheduler: Any = None,
        device: Any = None,
        workdir: str | os.PathLike[str] | None = None,
        name: str = "run",
        log_every: int = 50,
        max_retries: int = 3,
        config: Any = None,
        store: Store | None = None,
        resume: Resume = "auto",
        state: Mapping[str, Any] | None = None,
        identity: Callable[[], Mapping[str, Any]] = dict,
        randomness: Randomness | None = None,
        positions: Callable[[Randomness], Positions] = PlainPositions,
        after_load: Callable[[Run], None] | None = None,
        may_wait: Callable[[], AbstractContextManager[None]] = nullcontext,
        stepper: Stepper | None = None,
        floats: Floats = floats_one_by_one,
        prepare: Callable[[Any], Any] | None = None,
        begin: Callable[[Run], None] | None = None,
        run_points: bool = True,
    ) -> None:
        if log_every < 0 or max_retries < 0:
            raise BadLoop(text("log_every and max_retries are 0 or more.", got=f"{log_every} and {max_retries}"))
        rank, local_rank = int(os.environ.get("RANK", "0")), int(os.environ.get("LOCAL_RANK", "0"))
        self._given = {
            "name": name,
            "model": model,
            "optimizer": optimizer,
            "criterion": criterion,
            "lr_scheduler": lr_scheduler,
            "device": device,
            "workdir": workdir,
            "config": config_of(config),
            "rank": rank,
            "local_rank": local_rank,
            "world_size": int(os.environ.get("WORLD_SIZE", "1")),
        }
        self._compile = partial(Hooks, _completed(callbacks), rank=rank, local_rank=local_rank)
        self.hooks = self._compile()
        self.log_every = log_every
        self.max_retries = max_retries
        self._store = store if run_points else None
        self._resume = resume
        self._state = {name: self._given[name] for name in KEPT} | own_parts(state)
        self._identity = identity
        self.randomness = HostRandomness() if randomness is None else randomness
        self._make_positions = positions
        self.after_load = after_load
        self.may_wait = may_wait
        self._stepper = stepper
        self._floats = floats
        self.prepare = prepare
        self._begin = begin
        self._run_points = run_points
        self._run: Run | None = None
        self._was_entered = False

    # Entering and leaving

    def __enter__(self) -> Run:
        if self._run is not None:
            raise OutsideRun(text("this loop is running already.", make="a second Loop for a run inside a run"))
        self._prepare()
        run = self.running()
        try:
            if self._run_points:
                self.saving.refuse_without_store()
                self.resuming.open(self._resume, self._identity)
        except BaseException:
            self._clean_up()
            raise
        try:
            if self._begin is not None:
                self._begin(run)
            self.account.begin(self.resuming.identity)
            self.signals.install()
            self.hooks.setup(run.model, run.workdir)
            self.hooks.attach(run)
            self._fire_or_stop("on_setup")
            self.step_hooks.install()
            self.hooks.start_schedules(self.clocks)
            self.clocks.start()
            self._fire_or_stop("on_run_begin")
            self.saving.body_begins()
            self.resuming.put_back()
            self.saving.check()
        except BaseException as error:
            self._leave(error)
            raise
        return run

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> bool:
        return self._leave(error)

    def _fire_or_stop(self, point: str) -> None:
        """Fire a point of the run, where there are any; a stop that is raised there keeps no state from being put back."""
        if self._run_points:
            try:
                self.hooks.fire(point, self.running())
            except StopRun as stop:
                self.running().stop(stop.reason)

    def _prepare(self) -> None:
        if self._was_entered:
            self.hooks = self._compile()  # with schedules that count from the start
        self._was_entered = True
        self.clocks = Clocks()
        self.logbook = Logbook(self.clocks, log_every=self.log_every, floats=self._floats)
        self._run = run = Run(self, self.hooks, self.clocks, self.logbook, **self._given)
        run.monitors = self.logbook.monitors = Monitors(self.hooks, run, self.logbook.metrics, self.clocks)
        if self._stepper is not None:
            run._stepper = self._stepper
        self.passes: list[Pass] = []
        self.passes_opened = 0
        self.leaving = Leaving()
        self.epoch_is_open = self.cut_short = self.abandoned = self.epochs_abandoned = False
        self.share = StepShare()
        self.positions = self._make_positions(self.randomness)
        self.positions.remembers = self._store is not None
        self.saving = Saving(self, run, self._store, self._state)
        self.resuming = Resuming(self, run, self._state)
        self.account = Account(run, self.saving.resumable)
        self.signals = Signals(run._verdicts.ask_stop, self.saving.ask_by_signal if self.saving.store is not None else None)
        self.step_hooks = StepHooks(run)
        self._outer = CURRENT.get()
        CURRENT.set(run)

    def _leave(self, error: BaseException | None) -> bool:
        """Close what is open, end the run, and say whether the exception that ended it, if any, is dealt with."""
        failure = self._close_levels(error)
        try:
            problems = self._end(failure)
            self.account.end(failure or next(iter(problems), None))
        finally:
            self._clean_up()
        if failure is not None:
            for problem in problems:
                failure.add_note(f"on_run_end failed too: {type(problem).__name__}: {problem}")
            if failure is not error:
                raise failure
            return False
        ending = self.signals.ending()
        if ending is not None:
            for problem in problems:
                ending.add_note(f"on_run_end failed: {type(problem).__name__}: {problem}")
            raise ending
        if problems:
            raise problems[0] if len(problems) == 1 else ExceptionGroup("callbacks failed at on_run_end", problems)
        return isinstance(error, StopRun)

    def _close_levels(self, error: BaseException | None) -> BaseException | None:
        """Close passes and the epoch as a `break` would, or drop them after an exception; return what failed, if anything."""
        run = self.running()
        while error is None or isinstance(error, StopRun):
            try:
                if error is not None:
                    run.stop(error.reason)
                self.close_open_epoch(cut_short=True)
                self.resuming.enter_epoch()
                self.logbook.flush()
                run.monitors.raise_errors()
                return None
            except BaseException as raised:
                error = raised
        self.saving.before_failure()
        for one in self.passes:
            one.drop()
        self.passes.clear()
        self.logbook.drop_pages()
        self.epoch_is_open, run.mode = False, None
        set_now(run, NO_ITERATION)
        return error

    def _end(self, failure: BaseException | None) -> list[Exception]:
        """Fire the last points; a handler's error waits until all have run. Monitors are last, and have everything by then."""
        run = self.running()
        self.clocks.stop()
        if failure is not None:
            run._payload = {"error": failure}
            run.put_event("exception", type=type(failure).__name__, text=masked(str(failure)))
            for problem in self.hooks.contain("on_exception", run):
                logger.error("on_exception failed", exc_info=problem)
        if self.signals.received is not None:
            run.put_event("signal", received=self.signals.received.name)
        problems = self.hooks.contain("on_run_end", run, monitors=False) if self._run_points else []
        for last in (partial(self.saving.at_end, failure), partial(self.leaving.leave, None)):
            try:
                last()
            except Exception as error:
                problems.append(error)
        self.logbook.flush()
        run.monitors.drain()
        problems += run.monitors.take_errors()
        problems += self.hooks.contain("on_run_end", run, monitors=True) if self._run_points else []
        missing = self.hooks.never_came(run) if self._run_points and failure is None and not run._verdicts.stop else None
        return problems if missing is None else [*problems, missing]

    def _clean_up(self) -> None:
        run = self.running()
        self.step_hooks.remove()
        self.signals.restore()
        self.hooks.attach(None)
        run.monitors.close()
        self.saving.close()
        CURRENT.set(self._outer)
        self._run = None

    # What the run asks of its loop

    def running(self) -> Run:
        """Return the run, or say that there is none."""
        if self._run is None:
            raise OutsideRun(text("this loop is not running.", enter="with Loop(...) as run: and use run inside"))
        return self._run

    def epochs(self, number: int | None) -> Epochs:
        if number is not None and (not isinstance(number, int) or isinstance(number, bool) or number < 0):
            raise BadLoop(text("run.epochs() takes an integer, 0 or more, or None for no end.", got=repr(number)))
        self.settle()
        self.running().max_epochs = number
        self.account.plan(number)
        self.resuming.say_finished(number)
        return Epochs(self)

    def batches(self, loader: Iterable[Any], mode: Mode, *, aside: bool = False) -> Batches:
        """Return the iterator of a new pass; what a pass `aside` logs stays out of the run's metrics and records."""
        if mode not in MODES:
            raise BadLoop(text(f"there is no mode {mode!r}.", choose=", ".join(map(repr, MODES))))
        if not hasattr(loader, "__iter__") and not hasattr(loader, "__getitem__"):
            raise BadLoop(text(f"run.batches() takes something to iterate over, not {loader!r}.", give="a loader or a list"))
        self.settle()
        self.running()
        check_pass(self, loader, trains=mode == "train")
        return Batches(Pass(self, loader, mode, aside=aside))

    def stop_epoch(self) -> None:
        self.settle()
        if self.passes and self.passes[-1].mode != "train":
            self.passes[-1].wants_end = self.running()._verdicts.asked = True
        else:
            self.running()._verdicts.ask_stop_epoch()

    # Levels

    def settle(self) -> None:
        """Close what a `break` left behind. Every service of the run calls this first."""
        if self.abandoned:
            self.abandoned = False
            left_behind = next((number for number, one in enumerate(self.passes) if one.abandoned), len(self.passes))
            self._close_passes_from(left_behind)
            if self.epochs_abandoned and not any(one.is_closing for one in self.passes):
                self.close_open_epoch(cut_short=True)
            self.abandoned = self.epochs_abandoned  # the epoch has to wait for a pass that is being closed at this moment

    def is_in_epoch(self, run: Run, epoch: int) -> bool:
        return self._run is run and self.epoch_is_open and self.clocks.epoch == epoch

    def close_passes_above(self, kept: Pass) -> None:
        self._close_passes_from(self.passes.index(kept) + 1)

    def close_passes(self) -> None:
        """Close every pass that is still open."""
        self._close_passes_from(0)

    def _close_passes_from(self, number: int) -> None:
        while len(self.passes) > number and not self.passes[-1].is_closing:  # a handler of its last points asks for this
            self.passes[-1].close(complete=False)

    @property
    def epochs_opened(self) -> int:
        """How many epochs were opened; one that is to be gone on with is to be opened again."""
        return self.clocks.epoch - self.resuming.is_under_way

    def open_epoch(self) -> None:
        run = self.running()
        self.resuming.enter_epoch()
        self.clocks.epoch = self.epochs_opened + 1
        self.passes_opened = 0
        self.saving.passes_done = []
        self.epoch_is_open, self.cut_short, self.epochs_abandoned = True, False, False
        run.epoch_complete = False
        run._verdicts.begin_epoch()
        self.hooks.fire("on_epoch_begin", run)

    def close_open_epoch(self, *, cut_short: bool) -> None:
        """Close the epoch, and the passes in it, if one is open."""
        self.close_passes()
        if self.epoch_is_open:
            self.cut_short |= cut_short
            self.close_epoch()

    def close_epoch(self) -> None:
        run = self.running()
        self.resuming.refuse_if_lost()
        self.epoch_is_open = self.epochs_abandoned = False
        run.epoch_complete = not self.cut_short
        self.clocks.epochs_done = self.clocks.epoch
        try:
            self.hooks.fire("on_epoch_end", run)
        finally:
            self.leaving.leave(None)
        self.logbook.flush()
        run.put_event("epoch_end", complete=run.epoch_complete)  # tells monitors that they have every value of the epoch
        run.monitors.raise_errors()
        for line in self.share.heavy(self.hooks.costs(of_users=True)):
            logger.warning("%s", line)
        self.saving.at_epoch_end()


def _completed(callbacks: Any) -> Any:
    return [*(callbacks if isinstance(callbacks, Iterable) else [callbacks]), *EVERYWHERE]
