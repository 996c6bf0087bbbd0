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

from hookpoint.core.callback.current import CURRENT
from hookpoint.core.checkpoint.positions import PlainPositions, Positions
from hookpoint.core.checkpoint.randomness import HostRandomness, Randomness
from hookpoint.core.checkpoint.stateful import own_parts
from hookpoint.core.checkpoint.store import Resume, Store
from hookpoint.core.data.data_points import check_pass
from hookpoint.core.data.samples import counter
from hookpoint.core.errors import BadLoop, OutsideRun, StopRun, text
from hookpoint.core.hooks.costs import StepShare
from hookpoint.core.hooks.hooks import Hooks
from hookpoint.core.log.global_means import shared_means
from hookpoint.core.log.logbook import Logbook
from hookpoint.core.log.loss_check import OnNonFinite, loss_check
from hookpoint.core.log.metric_names import UNKNOWN, MetricNames
from hookpoint.core.log.metrics import Floats, floats_one_by_one
from hookpoint.core.log.monitors import Monitors
from hookpoint.core.loop._agreement import Agreement, Wishes
from hookpoint.core.loop._cleanup import Leaving
from hookpoint.core.loop._resuming import Resuming
from hookpoint.core.loop._run_record import Account, config_of
from hookpoint.core.loop._saving import Saving
from hookpoint.core.loop._scopes import Levels
from hookpoint.core.loop._signals import Signals
from hookpoint.core.loop._step_hooks import StepHooks
from hookpoint.core.loop.batches import Batches
from hookpoint.core.loop.epochs import Epochs
from hookpoint.core.loop.missing_metrics import MissingMetrics
from hookpoint.core.loop.passes import MODES, Pass
from hookpoint.core.run.iteration import NO_ITERATION
from hookpoint.core.run.run import Mode, Run, set_now
from hookpoint.core.run.stepper import Stepper
from hookpoint.core.run.verdicts import Verdicts
from hookpoint.core.schedule.clocks import Clocks
from hookpoint.core.team.checked_team import Talk
from hookpoint.core.team.team import Solo, Team, place_by_environment
from hookpoint.core.team.team_clocks import TeamClocks
from hookpoint.core.text.secrets import masked
from hookpoint.core.text.terminal import be_silent

logger = logging.getLogger("hookpoint")

KEPT = ("model", "optimizer", "criterion", "lr_scheduler")  # of what a loop is given, in each checkpoint
EVERYWHERE: list[Any] = []  # callbacks that are in every loop of this process, last of all


class Loop(Levels):
    """The loop without the default callbacks; `hookpoint.Loop` adds them, and its docstring says how to use it.

    `team` is called when the loop is entered, on every process at the same place, and makes the team of the run; the loop
    closes it when it is left.
    """

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
        samples: Callable[[Any], int] | None = None,
        config: Any = None,
        store: Store | None = None,
        resume: Resume = "auto",
        state: Mapping[str, Any] | None = None,
        identity: Callable[[], Mapping[str, Any]] = dict,
        randomness: Randomness | None = None,
        positions: Callable[[Randomness], Positions] = PlainPositions,
        after_load: Callable[[Run], None] | None = None,
        unwrapped: Callable[[Any], Any] = lambda part: part,
        may_wait: Callable[[], AbstractContextManager[None]] = nullcontext,
        stepper: Stepper | None = None,
        floats: Floats = floats_one_by_one,
        prepare: Callable[[Any], Any] | None = None,
        begin: Callable[[Run], None] | None = None,
        run_points: bool = True,
        names: MetricNames = UNKNOWN,
        team: Callable[[], Team] = Solo,
        on_nonfinite: OnNonFinite = "warn",
    ) -> None:
        if log_every < 0 or max_retries < 0:
            raise BadLoop(text("log_every and max_retries are 0 or more.", got=f"{log_every} and {max_retries}"))
        self._given = {
            "name": name,
            "model": model,
            "optimizer": optimizer,
            "criterion": criterion,
            "lr_scheduler": lr_scheduler,
            "device": device,
            "workdir": workdir,
            "config": config_of(config),
        }
        self._make_team = team
        self._place = place_by_environment()
        self._compile = partial(Hooks, _completed(callbacks))
        self.hooks = self._compiled()
        self.agreement: Agreement | None = None
        self.log_every = log_every
        self.max_retries = max_retries
        self.samples_of = counter(samples)
        self._store = store if run_points else None
        self._resume = resume
        self._state = {name: unwrapped(self._given[name]) for name in KEPT} | own_parts(state)
        self._identity = identity
        self.randomness = HostRandomness() if randomness is None else randomness
        self._make_positions = positions
        self.after_load = after_load
        self.may_wait = may_wait
        self._stepper = stepper
        self._floats = floats
        self._on_nonfinite = on_nonfinite
        self.prepare = prepare
        self._begin = begin
        self._run_points = run_points
        self._names = names
        self._run: Run | None = None
        self._was_entered = False

    # Entering and leaving

    def __enter__(self) -> Run:
        if self._run is not None:
            raise OutsideRun(text("this loop is running already.", make="a second Loop for a run inside a run"))
        self._join_team()
        try:
            self._prepare()
        except BaseException:
            self._run = None
            self.team.close()
            raise
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
            run.hyper.rates.begin()
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
            self.saving.begin()
            self.resuming.put_back()
            self.saving.check()
            self.agree_now("the beginning of the run")
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
        if self._was_entered or self._compiled_for != self._here():
            self.hooks = self._compiled()  # with schedules that count from the start
        self._was_entered = True
        self.missing = MissingMetrics(self.hooks.of_all_ranks, self.hooks.entries, self._names)
        if self._run_points:
            self.missing.check_names(is_chief=self._place["rank"] == 0)
        self.clocks = Clocks() if self.team.size == 1 else TeamClocks()
        self.logbook = Logbook(
            self.clocks,
            log_every=self.log_every,
            floats=self._floats,
            read_by_steps=self.hooks.read_by_steps,
            may_wait=self.may_wait,
        )
        self._run = run = Run(self, self.hooks, self.clocks, self.logbook, team=self.team, **self._place, **self._given)
        run.monitors = self.logbook.monitors = Monitors(self.hooks, run, self.logbook.metrics, self.clocks)
        self.logbook.loss_check = loss_check(run, self._on_nonfinite, self.may_wait)
        if self._stepper is not None:
            run._stepper = self._stepper
        self.passes: list[Pass] = []
        self.passes_opened = 0
        self.leaving = Leaving()
        self.epoch_is_open = self.cut_short = self.abandoned = self.epochs_abandoned = False
        self.share = StepShare()
        self.positions = self._make_positions(self.randomness)
        self.positions.remembers = self._store is not None
        self.agreement = self._agreeing(run)
        self.saving = Saving(self, run, self._store, self._state)
        self.resuming = Resuming(self, run, self._state)
        self.account = Account(run, self.saving.resumable)
        self.signals = self._listening(run)
        self.step_hooks = StepHooks(run)
        be_silent(self, silent=run.rank != 0)
        self._outer = CURRENT.get()
        CURRENT.set(run)

    def _join_team(self) -> None:
        """Make the team of this run, which all its processes do at the same time, and take one's place in it."""
        self.team = team = self._make_team()
        if team.size > 1:
            self._place = {"rank": team.rank, "local_rank": team.local_rank, "world_size": team.size}

    def _compiled(self) -> Hooks:
        self._compiled_for = self._here()
        return self._compile(**self._compiled_for)

    def _here(self) -> dict[str, Any]:
        is_in_team = getattr(self, "team", Solo).size > 1
        return {"rank": self._place["rank"], "local_rank": self._place["local_rank"], "is_in_team": is_in_team}

    def _agreeing(self, run: Run) -> Agreement | None:
        """Return what lets processes act as one; None for one process, which needs none of it."""
        if not isinstance(self.clocks, TeamClocks):
            return None
        wishes, talk = Wishes(), Talk(self.team, run)
        run._verdicts, run.team = wishes, talk
        self.logbook.shared = partial(shared_means, talk, self.may_wait)
        self.logbook.windows.have_all_late()
        return Agreement(run, talk, wishes, self.clocks)

    def _listening(self, run: Run) -> Signals:
        ask_save = self.saving.ask_by_signal
        if self.agreement is None:
            return Signals(run._verdicts.ask_stop, ask_save if self.saving.store is not None else None)
        ask_stop, ask_save = partial(Verdicts.ask_stop, run._verdicts), self.agreement.ask_save_by_signal
        signals = Signals(ask_stop, ask_save if self.saving.store is not None else None, is_in_team=True)
        self.agreement.connect(self.saving, signals)
        return signals

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
                self.agree_now("the end of the loop")
                self.resuming.enter_epoch()
                self.logbook.flush()
                run.monitors.raise_errors()
                return None
            except BaseException as raised:
                error = raised
        if self.agreement is not None:
            self.agreement.end(f"rank {run.rank} failed with {type(error).__name__}")
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
        try:
            if failure is None:
                self.agree_now("the end of the run")
            self.saving.at_end(failure)
        except Exception as error:
            problems.append(error)
        try:
            self.leaving.leave(None)
        except Exception as error:
            problems.append(error)
        self.logbook.flush()
        run.monitors.drain()
        if failure is None and self.logbook.loss_check is not None:
            self.logbook.loss_check.look()
        problems += run.monitors.take_errors()
        problems += self.hooks.contain("on_run_end", run, monitors=True) if self._run_points else []
        if self._run_points and failure is None and not run._verdicts.stop:
            self.missing.say_at_end(run)
        return problems

    def _clean_up(self) -> None:
        run = self.running()
        self.step_hooks.remove()
        self.signals.restore()
        self.hooks.attach(None)
        run.monitors.close()
        self.saving.close()
        self.team.close()
        be_silent(self, silent=False)
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

    def stop_epoch(self, *, alike: bool = False) -> None:
        self.settle()
        if self.passes and self.passes[-1].mode != "train":
            self.passes[-1].wants_end = self.running()._verdicts.asked = True
        elif alike:
            Verdicts.ask_stop_epoch(self.running()._verdicts)
        else:
            self.running()._verdicts.ask_stop_epoch()


def _completed(callbacks: Any) -> Any:
    return [*(callbacks if isinstance(callbacks, Iterable) else [callbacks]), *EVERYWHERE]
