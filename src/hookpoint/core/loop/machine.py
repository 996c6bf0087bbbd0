"""Machine: the life of a run, in the order it happens. Drivers call its methods; nothing else fires a run's points.

begin_run                          on_setup, on_run_begin; on_load where the run resumes
  begin_epoch                      on_epoch_begin
    begin_pass                     on_train_epoch_begin
      fetch                        on_batch_fetch_begin, on_batch_fetch_end
      begin_iteration              on_iter_begin, on_train_iter_begin
      end_iteration                on_train_iter_end, on_iter_end, or on_iter_skip; on_save where one is due
    end_pass                       on_train_epoch_end
    begin_pass ... end_pass        the same for validation: on_val_...
  end_epoch                        on_epoch_end; on_save where one is due
end_run                            on_exception if something escaped, on_run_end

A driver is a user's `for` (epochs.py, batches.py), which the Runner uses too, or another library's trainer (host_driver.py).
Between begin_iteration and end_iteration, a step fires on_backward_begin, on_backward_end, on_step_begin and on_step_end.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from contextlib import ExitStack
from time import perf_counter
from typing import TYPE_CHECKING, Any

from hookpoint.core.callback.current import CURRENT, CURRENT_CALL
from hookpoint.core.data.samples import count_samples, counter
from hookpoint.core.errors import OutsideRun, StopRun
from hookpoint.core.hooks.costs import SAMPLE_EVERY, StepShare
from hookpoint.core.loop._ending import errors_of, is_dealt_with
from hookpoint.core.loop.passes import END, Pass
from hookpoint.core.run.iteration import NO_ITERATION
from hookpoint.core.run.run import set_now, set_payload
from hookpoint.core.text.terminal import be_silent

if TYPE_CHECKING:
    from hookpoint.core.loop.components import Components
    from hookpoint.core.loop.options import LoopOptions
    from hookpoint.core.loop.run_components import RunComponents
    from hookpoint.core.run.run import Run

logger = logging.getLogger("hookpoint")

FOLD_EVERY = 64  # how many iterations outside of training are logged before they are folded into the pass's means


class Machine:
    """One run. The components are told of each transition, in the order of the lines below, and know nothing of the machine."""

    def __init__(self, parts: RunComponents, options: LoopOptions, components: Components) -> None:
        self.parts, self.options = parts, options
        self.run, self.hooks, self.clocks, self.logbook = parts.run, parts.hooks, parts.clocks, parts.logbook
        self.verdicts, self.scopes = parts.verdicts, parts.scopes
        self.saving, self.resuming, self.agreement = components.saving, components.resuming, components.agreement
        self.signals, self.steps, self.model_stop = components.signals, components.steps, components.model_stop
        self.record, self.missing, self.watch = components.record, components.missing, components.watch
        self.agree = components.agree
        self._share, self._samples_of, self._is_over = StepShare(), counter(options.samples), False
        self.scopes.end_pass, self.scopes.end_epoch = self.end_pass, self.end_epoch
        self.saving.announce = lambda saved: self._fire("on_save", path=saved.path, tags=tuple(saved.tags))
        self._outer_run = CURRENT.get()
        CURRENT.set(self.run)
        be_silent(self, silent=self.run.rank != 0)

    # The run

    def begin_run(self) -> None:
        run, options = self.run, self.options
        try:
            if options.begin is not None:
                options.begin(run)
            run.hyper.rates.begin()
            self.model_stop.begin(run)
            self.record.begin(self.resuming.identity, self.resuming.inexact())
            self.signals.install()
            self.watch.begin()
            self.hooks.setup(run.model, run.workdir)
            self.hooks.attach(run)
            self._fire_or_stop("on_setup")
            self.steps.install()
            self.hooks.start_schedules(self.clocks)
            self.clocks.start()
            self._fire_or_stop("on_run_begin")
            self.saving.body_begins()
            self.saving.begin()
            found = self.resuming.put_back()
            if found is not None:
                self._fire_or_stop("on_load", path=found.path)
                self.resuming.repeat_body()
            self.saving.check()
            self.agree("the beginning of the run")
        except BaseException as error:
            self.end_run(error)
            raise

    def _fire_or_stop(self, point: str, **payload: Any) -> None:
        """Fire a point of the run, where there are any; a stop that is raised there keeps no state from being put back."""
        if self.options.run_points:
            try:
                self._fire(point, **payload)
            except StopRun as stop:
                self.run.stop(stop.reason)

    # An epoch

    def begin_epoch(self) -> None:
        run, scopes = self.run, self.scopes
        self.missing.check_before_epoch(run)
        self.resuming.enter_epoch()
        self.clocks.epoch = self.resuming.epochs_opened + 1
        self.saving.passes_done = []
        scopes.begin_epoch()
        run.epoch_complete = False
        self.verdicts.begin_epoch()
        self.hooks.fire("on_epoch_begin", run)
        self.agree("the beginning of the epoch")

    # A pass

    def begin_pass(self, one: Pass) -> bool:
        """Open a pass; say whether there is anything to do in it: a stop, or a checkpoint made after it, leave it out."""
        run, scopes, resuming = self.running(), self.scopes, self.resuming
        if one.is_done or self._is_stopped_before(one):
            return False
        scopes.settle()
        if one.is_train:
            scopes.close_passes()
        one.opened_epoch = one.is_train and not scopes.epoch_is_open
        if one.opened_epoch:
            if resuming.is_over():
                one.is_done = True
                return False
            self.begin_epoch()
        is_outermost = not scopes.passes and not one.is_side
        known = resuming.results_of(scopes.passes_opened) if is_outermost and self.options.host is None else None
        scopes.passes_opened += is_outermost
        if known is not None:
            one.skip(known)
            return False
        call = CURRENT_CALL.get()
        one.is_shared = self.agreement is not None and one.mode != "pred" and (call is None or call.entry.ranks == "all")
        one.enter(run, count_samples if one.mode == "pred" else self._samples_of)
        self.model_stop.watch(one)
        self.logbook.open_page(one.mode, is_side=one.is_side, is_shared=one.is_shared)
        scopes.passes.append(one)
        self.hooks.fire(f"on_{one.mode}_epoch_begin", run)
        scopes.close_above(one)
        self.watch.enter(one)
        resuming.enter_data(one)
        if self.options.prepare is not None:
            one.source = map(self.options.prepare, one.source)
        return True

    def _is_stopped_before(self, one: Pass) -> bool:
        """Say whether a stop keeps a pass from opening. A host that is to stop still makes the passes it has planned."""
        if self.options.host is not None or not self.must_end(one):
            return False
        one.was_cut = True
        if one.is_train:
            self.scopes.cut_short = True
            if self.scopes.epoch_is_open:
                self.saving.before_end_points()
        return True

    # An iteration

    def fetch(self, one: Pass) -> Any:
        """Ask the loader of a pass for a batch, with points around it; return END where there is none."""
        run, now = self.run, one.now
        begin, end = one.fetch or (None, None)
        now.batch_idx = one.batches_seen
        set_now(run, now)
        if begin is not None:
            begin(run)
        batch = next(one.source, END)
        now.batch = None if batch is END else batch
        if end is not None:
            end(run)
        set_now(run, NO_ITERATION)
        return END if batch is END else now.batch

    def begin_iteration(self, one: Pass, batch: Any) -> bool:
        """Begin an iteration with a batch; say whether its body is to run: a handler may have it skipped or retried."""
        now = one.now
        one.in_iteration = True
        now.batch = batch
        now.batch_idx = one.batches_seen - 1
        now.samples = one.samples_of(batch)
        set_now(self.run, now)
        begin = one.begin
        if one.batches_seen == one.sampled_next:
            one.sampled_next += SAMPLE_EVERY
            one.is_sampled, one.began, begin = True, perf_counter(), one.timed[0]
        if begin is not None:
            begin(self.run)
            if self.scopes.passes[-1] is not one:  # a handler broke off a pass of its own
                self.scopes.close_above(one)
            if now.has_requests and now.is_discarded:
                self.end_iteration(one)
                return False
        return True

    def end_iteration(self, one: Pass) -> None:
        one.in_iteration = False
        run, now, clocks, is_train = self.run, one.now, self.clocks, one.is_train
        if not (now.has_requests and self._was_skipped(one)):
            now.has_ended = True
            if one.retries:
                one.retries, one.again = 0, END
            are_reported = self.steps.are_reported
            if is_train:
                clocks.iteration += 1
                clocks.samples += now.samples
                if not are_reported:
                    clocks.count_step()
            if one.end is not None:
                (one.timed[1] or one.end if one.is_sampled else one.end)(run)
                if self.scopes.passes[-1] is not one:
                    self.scopes.close_above(one)
            if one.is_sampled:
                one.is_sampled = False
                self._share.add_step(perf_counter() - one.began)
            # What is due: a log step, and in training agreement between processes, a save.
            if is_train and self.options.log_every:
                if clocks.step >= self.logbook.next_log_step:
                    self.logbook.end_window(send=True)
                    run.monitors.raise_errors()
            elif one.batches_seen % FOLD_EVERY == 0:
                self.logbook.end_window(send=False)
            if is_train:
                if self.agreement is not None:
                    self.agreement.at_step()
                saving, step = self.saving, clocks.step
                saving.window_is_open = is_open = are_reported and step == one.steps_before
                one.steps_before = step
                # After a `break`, what follows the body has run already: nobody could resume from here, and a save waits.
                if saving.is_due and not is_open and not one.is_closing:
                    saving.at_boundary()
        set_now(run, NO_ITERATION)
        now.clear()

    def _was_skipped(self, one: Pass) -> bool:
        """Do what was asked of the iteration instead of ending it; say whether it was skipped as a whole."""
        if not one.leave_out(self.options.max_retries):
            return False
        one.now.has_ended = True
        self.hooks.fire("on_iter_skip", self.run)
        if self.agreement is not None and one.is_train:
            self.agreement.at_step()
        return True

    def must_end(self, one: Pass, *, has_batch: bool = False) -> bool:
        """Say whether a verdict or a signal ends a pass here; with `has_batch`, before a batch that was fetched."""
        verdicts, signals = self.verdicts, self.signals
        # A pass aside that is made after a stop still runs; a signal ends it as it ends anything.
        stops = verdicts.stop and not (one.is_side and signals.received is None)
        if stops and signals.has_stopped and self.saving.saves:
            # Nobody could resume in the middle of a validation, nor before a batch that was fetched: they come to an end.
            stops = self.scopes.cut_short or (one.is_train and not has_batch)
        return stops or one.wants_end or (verdicts.stop_epoch and one.is_train)

    def end_pass(self, one: Pass, *, complete: bool, finals: Mapping[str, Any] | None = None) -> None:
        """End the iteration that is running, then the pass. `finals` are values of the whole pass that a host brings."""
        if not one.is_open or one.is_closing:
            return
        one.is_closing = True
        was_left = one.in_iteration
        try:
            if one.in_iteration:
                self.end_iteration(one)
        except BaseException:
            one.is_closing = False
            raise
        one.is_open, one.abandoned, one.is_done = False, False, True
        scopes = self.scopes
        try:
            # A user may end validation early; one that a stop has cut off leaves the epoch incomplete, as its metrics are.
            scopes.cut_short |= not complete and (one.is_train or self.verdicts.stop)
            if one.is_train and not complete and not was_left:
                self.saving.before_end_points()  # while the means of the pass are open, as they are for who resumes in it
            one.results = self.logbook.finish_page(finals)
            self.hooks.fire(f"on_{one.mode}_epoch_end", self.run)
            scopes.close_above(one)
            if one.is_train:
                self.agree("the end of a training pass")
                if self.logbook.loss_check is not None and one.is_shared == (self.agreement is not None):
                    self.logbook.loss_check.at_pass_end(one.results.get("loss") if complete else None)
        finally:
            self.logbook.close_page()
            scopes.passes.remove(one)
            if not scopes.passes and not one.is_side:
                self.saving.pass_is_done(one.results, one.batches_seen)
            one.leave(self.run)
            self.scopes.cleanup.leave(one)
        if one.opened_epoch:
            self.end_epoch()
            self.saving.body_begins()

    def end_epoch(self) -> None:
        run, scopes = self.run, self.scopes
        self.resuming.refuse_if_lost()
        scopes.epoch_is_open = scopes.epochs_abandoned = False
        run.epoch_complete = not scopes.cut_short
        self.clocks.epochs_done = self.clocks.epoch
        try:
            self.hooks.fire("on_epoch_end", run)
        finally:
            self.scopes.cleanup.leave(None)
        self.model_stop.heed(run)
        self.agree("the end of the epoch")
        self.logbook.flush()
        run.put_event("epoch_end", complete=run.epoch_complete)  # tells monitors that they have every value of the epoch
        run.monitors.raise_errors()
        for line in self._share.heavy(self.hooks.costs(of_users=True)):
            logger.warning("%s", line)
        self.saving.at_epoch_end()

    def end_run(self, error: BaseException | None) -> bool:
        """Close what is open, end the run, and say whether the exception that ended it, if any, is dealt with."""
        try:
            failure = self._close_scopes(error)
            problems = self._fire_last_points(failure)
            self.record.end(failure or next(iter(problems), None))
        finally:
            self.clean_up()
        return is_dealt_with(error, failure, problems, self.signals.ending())

    def _close_scopes(self, error: BaseException | None) -> BaseException | None:
        """Close passes and the epoch as a `break` would, or drop them after an exception; return what failed, if anything."""
        run, scopes = self.run, self.scopes
        while error is None or isinstance(error, StopRun):
            try:
                if error is not None:
                    run.stop(error.reason)
                scopes.close_epoch(cut_short=True)
                self.agree("the end of the loop")
                self.resuming.enter_epoch()
                self.logbook.flush()
                run.monitors.raise_errors()
                return None
            except BaseException as raised:
                error = raised
        if self.agreement is not None:
            self.agreement.end(f"rank {run.rank} failed with {type(error).__name__}")
        for problem in errors_of(self.saving.before_failure):
            logger.error("the place of the failure is not known", exc_info=problem)
        self.watch.explain(error)
        scopes.drop()
        self.logbook.drop_pages()
        run.mode = None
        set_now(run, NO_ITERATION)
        return error

    def _fire_last_points(self, failure: BaseException | None) -> list[Exception]:
        """Fire the last points; a handler's error waits until all have run. Monitors are last, and have everything by then."""
        run, scopes, fires = self.run, self.scopes, self.options.run_points
        self.clocks.stop()
        if failure is not None:
            set_payload(run, {"error": failure})
            self.record.note_failure(failure)
            for problem in self.hooks.contain("on_exception", run):
                logger.error("on_exception failed", exc_info=problem)
            set_payload(run, {})  # an error keeps its frames, and they keep memory
        if self.signals.received is not None:
            run.put_event("signal", received=self.signals.received.name)
        problems = self.hooks.contain("on_run_end", run, monitors=False) if fires else []
        problems += errors_of(self.saving.at_end, failure) + errors_of(scopes.cleanup.leave, None)
        self.logbook.flush()
        run.monitors.drain(is_leaving=self.signals.is_leaving)
        if failure is None and self.logbook.loss_check is not None:
            self.logbook.loss_check.look()
        problems += run.monitors.take_errors()
        problems += run.monitors.end_run(is_leaving=self.signals.is_leaving) if fires else []
        if fires and failure is None and not self.verdicts.stop:
            self.missing.say_at_end(run)
        return problems

    def clean_up(self) -> None:
        self._is_over = True
        CURRENT.set(self._outer_run)
        be_silent(self, silent=False)
        with ExitStack() as undone:  # the last first; one that fails keeps none of the others from being undone
            undone.callback(self.parts.team.close)
            undone.callback(self.saving.close)
            undone.callback(self.run.monitors.close)
            undone.callback(self.hooks.attach, None)
            undone.callback(self.signals.restore)
            undone.callback(self.watch.end)
            undone.callback(self.steps.remove)

    def running(self) -> Run:
        """Return the run, or say that it is over."""
        if self._is_over:
            raise OutsideRun("this loop is not running.", enter="with Loop(...) as run: and use run inside")
        return self.run

    def _fire(self, point: str, **payload: Any) -> None:
        """Fire a point that offers more than the run has."""
        set_payload(self.run, payload)
        self.hooks.fire(point, self.run)
