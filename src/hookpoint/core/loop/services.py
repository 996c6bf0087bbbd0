"""Services: the implementation of `RunLoop`. It forwards a run's requests to the run's `Machine` object."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, cast

from hookpoint.core.callback.current import CURRENT_CALL, is_on_all_ranks
from hookpoint.core.errors import BadArgument, BadLoop, HookpointWarning, OutsideIteration
from hookpoint.core.hooks.dispatch import Call
from hookpoint.core.loop.batches import BatchLoop, batches_over
from hookpoint.core.loop.epochs import EpochLoop
from hookpoint.core.loop.evaluation import evaluate
from hookpoint.core.loop.machine import Machine
from hookpoint.core.run.iteration import NO_ITERATION, Iteration
from hookpoint.core.run.run import Run, loop_of, now_of

if TYPE_CHECKING:
    from typing import Unpack

    from hookpoint.core.checkpoint.store import Keep
    from hookpoint.core.run.run_loop import EvaluateOptions, Mode, Progress

USED_UP = (
    "an earlier pass has used up the iterator. Pass a list or a loader to run.batches, or create the iterator in every epoch"
)
EMPTY = "the loader yields nothing. Check the dataset, the sampler and drop_last, or skip the pass if there is no data"


class Services:
    """The services that a loop provides to its run."""

    __slots__ = ("machine", "settle")

    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        self.settle = machine.scopes.settle  # called for every logged value

    @property
    def progress(self) -> Progress | None:
        passes = self.machine.scopes.passes[-1:]
        return passes[0].progress if passes else None

    @property
    def reports_steps(self) -> bool:
        return self.machine.steps.are_reported

    def refresh(self) -> None:
        self.machine.hooks.forget_dispatches()
        for pass_ in self.machine.scopes.passes:
            if pass_.is_open:  # a pass whose end points fire is closed, and must not be iterated again
                pass_.resolve(self.machine.hooks)
                self.machine.model_stop.watch(pass_)

    # Epochs, batches and steps

    def epochs(self, number: int | None) -> EpochLoop:
        if number is not None and (not isinstance(number, int) or isinstance(number, bool) or number < 0):
            raise BadArgument(f"run.epochs: number must be an integer >= 0 or None, got {number!r}.")
        self.settle()
        machine = self.machine
        machine.running().max_epochs = number
        machine.record.plan(number)
        machine.resuming.report_finished(number)
        return EpochLoop(machine)

    def batches(self, loader: Iterable[Any], mode: Mode) -> BatchLoop:
        batches, run = batches_over(self.machine, loader, mode), self.machine.run
        is_used_up = hasattr(loader, "__next__") and (loader is run.train_loader or loader is run.val_loader)
        batches.pass_.why_empty = USED_UP if is_used_up else EMPTY if mode == "train" else None
        return batches

    def evaluate(self, data: Any, **options: Unpack[EvaluateOptions]) -> Mapping[str, Any]:
        self.settle()
        return evaluate(self.machine, data, is_side=True, **options)

    def at_leave(self, function: Callable[[], object]) -> None:
        passes = self.machine.scopes.passes
        self.machine.scopes.cleanup.add(passes[-1] if passes else None, function)

    def set_step(self, step: int) -> None:
        machine = self.machine
        run, clocks = machine.running(), machine.clocks
        if not isinstance(step, int) or isinstance(step, bool) or step < 0:
            raise BadArgument(f"run.set_step: step must be an integer >= 0, got {step!r}.")
        if machine.options.host is not None:
            raise BadLoop(f"run.set_step({step}): the trainer that hosts this run counts the steps.")
        if run.resuming:
            return  # ignored, like all changes that a script makes before the state is restored
        if machine.resuming.has_resumed or clocks.epoch or clocks.iteration:
            raise BadLoop(
                f"run.set_step({step}): training has already begun.", call="it at on_run_begin, or before the first epoch"
            )
        if len(set(self.gather(step, "run.set_step()"))) > 1:
            raise BadLoop(f"run.set_step({step}): other ranks set a different step.", set="the same step on all ranks")
        clocks.step = step
        machine.hooks.start_schedules(clocks)
        if machine.logbook.log_every:
            machine.logbook.set_log_every(machine.logbook.log_every, moves_next=True)

    # Verdicts and saves

    def stop(self, reason: Any, *, same_on_all_ranks: bool) -> None:
        self.settle()
        if not isinstance(reason, str):
            if reason is not None and not reason:  # run.stop(condition) would stop the run whatever the condition is
                raise BadArgument(
                    f"run.stop: the reason must be a string, got {reason!r}.", write='if condition: run.stop("why")'
                )
            reason = "run.stop() was called" if reason is None else str(reason)
        machine = self.machine
        if machine.agreement is not None and not (same_on_all_ranks and is_on_all_ranks()):
            machine.agreement.request_stop(reason)
        elif machine.verdicts.request_stop(reason):
            machine.run.put_event("stop", reason=reason)

    def stop_epoch(self, *, same_on_all_ranks: bool) -> None:
        self.settle()
        machine = self.machine
        self._check_host("stop_epoch")
        passes, verdicts = machine.scopes.passes, machine.verdicts
        machine.running()
        if not machine.scopes.epoch_is_open and not passes:
            warnings.warn(
                "run.stop_epoch() has no effect here, because no epoch is open. Call run.stop() to end the run.",
                HookpointWarning,
                stacklevel=3,
            )
        if passes and not passes[-1].is_train:
            passes[-1].wants_end = verdicts.has_requests = True
        elif machine.agreement is not None and not (same_on_all_ranks and is_on_all_ranks()):
            machine.agreement.request_stop_epoch()
        else:
            verdicts.request_stop_epoch()

    def skip(self, what: str) -> None:
        now, agreement = self._iteration(f"skip_{what}"), self.machine.agreement
        if agreement is not None and self.machine.run.mode == "train":
            now.check_running(f"skip_{what}")
            agreement.request_skip(what)
        else:
            now.request_skip(what)

    def retry(self) -> None:
        now, agreement = self._iteration("retry"), self.machine.agreement
        if agreement is not None and self.machine.run.mode == "train":
            agreement.reject_retry()
        now.request_retry()

    def save(
        self, tag: str, keep: Keep | None, in_background: bool, measured: Mapping[str, Any] | None, *, same_on_all_ranks: bool
    ) -> None:
        self.settle()
        self._check_host("save")
        self.machine.running()
        agreement = self.machine.agreement
        if agreement is None or (same_on_all_ranks and is_on_all_ranks()):
            self.machine.saving.request(tag, keep, in_background, measured)
        else:
            agreement.request_save(tag, keep, in_background, measured)

    def _iteration(self, verdict: str) -> Iteration:
        self.settle()
        now = now_of(self.machine.run)
        if now is NO_ITERATION:
            raise OutsideIteration(f"{verdict}()")
        self._check_host(verdict)
        return now

    def _check_host(self, verdict: str) -> None:
        if self.machine.options.host is not None:
            self.machine.options.host.check_verdict(verdict)

    # Multiple ranks

    def gather(self, value: Any, what: str) -> list[Any]:
        agreement = self.machine.agreement
        return [value] if agreement is None else agreement.gather(value, what)

    def meet(self, call: Call) -> None:
        if self.machine.agreement is not None:
            outer = CURRENT_CALL.set(call)
            try:
                self.machine.agreement.meet()
            finally:
                CURRENT_CALL.reset(outer)

    def agree_on_skips(self) -> None:
        if self.machine.agreement is not None:
            self.machine.agreement.settle_skips()


def machine_of(run: Run) -> Machine:
    """Return a run's `Machine` object. Only hookpoint's own engine and callbacks may call this."""
    return cast(Services, loop_of(run)).machine
