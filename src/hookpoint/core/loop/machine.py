"""Machine: the methods of a run, in the order in which drivers call them. Only these methods fire the points listed below.

begin_run                          on_setup, on_run_begin; on_load if the run resumes
  begin_epoch                      on_epoch_begin
    begin_pass                     on_train_epoch_begin
      fetch                        on_batch_fetch_begin, on_batch_fetch_end
      begin_iteration              on_iter_begin, on_train_iter_begin
      end_iteration                on_train_iter_end, on_iter_end, or on_iter_skip; on_save if a save is due
    end_pass                       on_train_epoch_end
    begin_pass ... end_pass        the same for validation: on_val_...
  end_epoch                        on_epoch_end; on_save if a save is due
end_run                            on_exception if the run failed; on_run_end

A driver is the `for` loop of a user or a Runner (epochs.py, batches.py), or another library's trainer (host_driver.py). A
training pass begins and ends an epoch if none is open. Inside an iteration, a step fires on_backward_... and on_step_... .
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from time import perf_counter
from typing import TYPE_CHECKING, Any

from hookpoint.core.callback.current import CURRENT_CALL, enter_run, leave_run
from hookpoint.core.data.samples import count_samples, counter
from hookpoint.core.errors import OutsideRun, StopRun
from hookpoint.core.hooks.costs import SAMPLE_EVERY
from hookpoint.core.logger import logger
from hookpoint.core.loop._ending import PassEnd, errors_of, is_handled
from hookpoint.core.loop._passes import END, Pass
from hookpoint.core.run.iteration import NO_ITERATION
from hookpoint.core.run.run import set_now, set_payload
from hookpoint.core.text.terminal import be_silent

if TYPE_CHECKING:
    from hookpoint.core.loop._components import Components
    from hookpoint.core.loop._run_objects import RunObjects
    from hookpoint.core.loop.options import LoopOptions
    from hookpoint.core.run.run import Run

FOLD_EVERY = 64  # outside training, logged values are added to the pass's means after this many iterations


class Machine:
    """One run. Each method notifies the components of one event, such as the end of an epoch, in a fixed order."""

    def __init__(self, objects: RunObjects, options: LoopOptions, components: Components) -> None:
        self.objects, self.options, self.verdicts, self.scopes = objects, options, objects.verdicts, objects.scopes
        self.run, self.hooks, self.clocks, self.logbook = objects.run, objects.hooks, objects.clocks, objects.logbook
        self.saving, self.resuming, self.agreement = components.saving, components.resuming, components.agreement
        self.signals, self.steps, self.model_stop = components.signals, components.steps, components.model_stop
        self.record, self.missing, self.watch = components.record, components.missing, components.watch
        self.control, self.agree = components.control, components.agree
        self._samples_of, self._is_over = counter(options.samples), False
        self.scopes.end_pass, self.scopes.end_epoch = self.end_pass, self.end_epoch  # to close what a `break` has left open
        self.pass_end = PassEnd(self.verdicts, self.signals, self.saving, self.scopes)
        self.saving.announce = lambda saved: self._fire("on_save", path=saved.path, tags=tuple(saved.tags))
        enter_run(self.run)
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
            self.saving.begin_body()
            self.saving.begin()
            checkpoint = self.resuming.restore()
            if checkpoint is not None:
                self._fire_or_stop("on_load", path=checkpoint.path, info=dict(checkpoint.info))
                self.resuming.repeat_body()
            self.saving.check()
            self.control.begin()
            self.agree("the beginning of the run")
        except BaseException as error:
            self.end_run(error)
            raise

    def _fire_or_stop(self, point: str, **payload: Any) -> None:
        """Fire a point if `run_points` is True. StopRun only requests a stop, so that the run can still load a checkpoint."""
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

    def begin_pass(self, pass_: Pass) -> bool:
        """Open a pass. Return False if a stop prevents it, or if it has already ended, for example before the run resumed."""
        run, scopes, resuming = self.running(), self.scopes, self.resuming
        if pass_.is_done or self.pass_end.prevents(pass_, has_host=self.options.host is not None):
            return False
        scopes.settle()
        if pass_.is_train:
            scopes.close_passes()
        pass_.opened_epoch = pass_.is_train and not scopes.epoch_is_open
        if pass_.opened_epoch:
            if resuming.is_over():
                pass_.is_done = True
                return False
            self.begin_epoch()
        is_outermost = not scopes.passes and not pass_.is_side
        known = resuming.results_of(scopes.passes_opened) if is_outermost and self.options.host is None else None
        scopes.passes_opened += is_outermost
        if known is not None:
            pass_.skip(known)
            return False
        call = CURRENT_CALL.get()
        pass_.is_shared = self.agreement is not None and pass_.mode != "pred" and (call is None or call.entry.ranks == "all")
        pass_.enter(run, count_samples if pass_.mode == "pred" else self._samples_of)
        self.model_stop.watch(pass_)
        self.logbook.open_page(pass_.mode, is_side=pass_.is_side, is_shared=pass_.is_shared)
        scopes.passes.append(pass_)
        self.hooks.fire(f"on_{pass_.mode}_epoch_begin", run)
        scopes.close_above(pass_)
        self.watch.enter(pass_)
        resuming.enter_data(pass_)
        self.record.begin_pass(pass_)
        run.monitors.start()  # start the threads only after the loader has forked its workers
        if self.options.prepare is not None:
            pass_.source = map(self.options.prepare, pass_.source)
        return True

    # Iterations. batches.py generates the code that a pass runs from these methods, without the checks that cannot change.

    def iterate(self, pass_: Pass) -> Iterator[Any]:
        """Yield the batches of an open pass until there are no more batches, the pass must end, or its handlers change."""
        verdicts, now, resolutions, batch = self.verdicts, pass_.now, pass_.resolutions, None
        while pass_.resolutions == resolutions:
            if self.scopes.passes[-1] is not pass_:
                self.scopes.close_above(pass_)
            if pass_.in_iteration:
                self.end_iteration(pass_)
            if verdicts.has_requests and self.pass_end.is_due(pass_):
                return
            batch = pass_.again
            if batch is END:
                batch = next(pass_.source, END) if pass_.fetch is None else self.fetch(pass_)
                if batch is END:
                    pass_.is_exhausted = True
                    return
                pass_.batches_seen += 1
            if verdicts.has_requests and self.pass_end.is_due(pass_, has_batch=True):  # a request arrived during the fetch
                pass_.batches_seen -= pass_.again is END
                return
            self.begin_iteration(pass_, batch)
            batch = None  # drop this reference, so that only the iteration keeps the batch alive
            if (pass_.begin is None and pass_.fetch is None) or not (now.has_requests and now.is_discarded):
                yield now.batch

    def fetch(self, pass_: Pass) -> Any:
        """Fire the fetch points, and return the next batch from a pass's loader, or END after the last batch."""
        run, now, (begin, end) = self.run, pass_.now, pass_.fetch or (None, None)
        now.batch_idx = pass_.batches_seen
        set_now(run, now)
        if begin is not None:
            begin(run)
        batch = next(pass_.source, END)
        now.batch = None if batch is END else batch
        if end is not None:
            end(run)
        set_now(run, NO_ITERATION)
        return END if batch is END else now.batch

    def begin_iteration(self, pass_: Pass, batch: Any) -> None:
        """Begin an iteration. If a handler skips the iteration or requests a retry, the driver only calls end_iteration."""
        run, now = self.run, pass_.now
        pass_.in_iteration = True
        now.batch = batch
        now.batch_idx = pass_.batches_seen - 1
        now.samples = pass_.samples_of(batch)
        set_now(run, now)
        if pass_.is_timed and pass_.batches_seen == pass_.sampled_next:
            pass_.sampled_next += SAMPLE_EVERY
            now.is_sampled, pass_.began = True, perf_counter()
        if pass_.begin is not None:  # on_iter_begin, on_<mode>_iter_begin
            (pass_.timed[0] or pass_.begin if now.is_sampled else pass_.begin)(run)
            if self.scopes.passes[-1] is not pass_:  # a handler opened a pass and left it with `break`
                self.scopes.close_above(pass_)

    def end_iteration(self, pass_: Pass) -> None:
        pass_.in_iteration = False
        run, now, clocks, saving = self.run, pass_.now, self.clocks, self.saving
        if not (now.has_requests and self._was_skipped(pass_)):
            now.has_ended = True
            if pass_.retries:
                pass_.retries, pass_.again = 0, END
            if pass_.is_train:
                clocks.iteration += 1
                clocks.samples += now.samples
                if not self.steps.are_reported:
                    clocks.count_step()
            if pass_.end is not None:  # on_<mode>_iter_end, on_iter_end
                (pass_.timed[1] or pass_.end if now.is_sampled else pass_.end)(run)
                if self.scopes.passes[-1] is not pass_:
                    self.scopes.close_above(pass_)
            if pass_.is_timed and now.is_sampled:
                now.is_sampled = False
                self.record.share.add(pass_.mode, perf_counter() - pass_.began)
            # Send logged values if a log step is due. In training, also share requests between ranks, apply commands and save.
            if pass_.is_train and self.options.log_every:
                if clocks.step >= self.logbook.next_log_step:
                    self.logbook.end_window(send=True)
                    run.monitors.raise_errors()
            elif pass_.batches_seen % FOLD_EVERY == 0:
                self.logbook.end_window(send=False)
            if pass_.is_train:
                if self.agreement is not None:
                    self.agreement.at_step()
                if self.steps.are_reported:
                    saving.is_accumulating = clocks.step == pass_.steps_before
                    pass_.steps_before = clocks.step
                # After a `break`, the user's code after the loop has already run, so a run could not resume here. Save later.
                if saving.is_due and not saving.is_accumulating and not pass_.is_closing:
                    self.control.at_boundary()
                    saving.at_boundary()
        set_now(run, NO_ITERATION)
        now.clear()

    def _was_skipped(self, pass_: Pass) -> bool:
        """Handle the requests to skip or retry. Return whether the whole iteration is skipped."""
        if not pass_.apply_skips(self.options.max_retries):
            return False
        pass_.now.has_ended = True
        self.hooks.fire("on_iter_skip", self.run)
        if self.agreement is not None and pass_.is_train:
            self.agreement.at_step()
        return True

    def end_pass(self, pass_: Pass, *, complete: bool, finals: Mapping[str, Any] | None = None) -> None:
        """End the current iteration, then the pass. `finals` contains values that a host computed over the whole pass."""
        if not pass_.is_open or pass_.is_closing:
            return
        pass_.is_closing, was_left = True, pass_.in_iteration
        try:
            if pass_.in_iteration:
                self.end_iteration(pass_)
        except BaseException:
            pass_.is_closing = False
            raise
        scopes, pass_.is_open, pass_.resolutions, pass_.abandoned, pass_.is_done = self.scopes, False, -1, False, True
        try:
            # An epoch counts as complete if a user ends its validation early, but not if a stop ends its validation.
            scopes.cut_short |= (is_cut := not complete and (pass_.is_train or self.verdicts.stop))
            if pass_.is_train and not complete and not was_left:
                self.saving.before_end_points()  # save before the means are final, so that a resumed run can add to them
            pass_.results = self.logbook.finish_page(finals)
            self.hooks.fire(f"on_{pass_.mode}_epoch_end", self.run)
            scopes.close_above(pass_)
            if pass_.is_train:
                self.agree("the end of a training pass")
                if self.logbook.loss_check is not None and pass_.is_shared == (self.agreement is not None):
                    self.logbook.loss_check.at_pass_end(pass_.results.get("loss") if complete else None)
        finally:
            self.logbook.close_page()
            scopes.passes.remove(pass_)
            self.resuming.leave_data(pass_, is_cut=is_cut)
            pass_.leave(self.run)
            self.record.share.add_pass(pass_.mode, pass_.batches_seen)
            scopes.cleanup.leave(pass_)
        if pass_.opened_epoch:
            self.end_epoch()
            self.saving.begin_body()

    def end_epoch(self) -> None:
        run, scopes = self.run, self.scopes
        self.resuming.check_returned()
        scopes.epoch_is_open = scopes.epochs_abandoned = False
        run.epoch_complete = not scopes.cut_short
        self.clocks.epochs_done = self.clocks.epoch
        try:
            self.hooks.fire("on_epoch_end", run)
        finally:
            self.scopes.cleanup.leave(None)
        self.model_stop.check(run)
        self.agree("the end of the epoch")
        self.logbook.flush()
        run.put_event("epoch_end", complete=run.epoch_complete)  # monitors have now received all values of the epoch
        run.monitors.raise_errors()
        for line in self.record.share.heavy(self.hooks.costs(of_users=True)):
            logger.warning("%s", line)
        self.control.at_boundary()
        self.saving.at_epoch_end()
        self.record.end_epoch()

    def end_run(self, error: BaseException | None) -> bool:
        """Close open scopes, and end the run. Return whether to suppress the exception that ended it."""
        try:
            failure = self._close_scopes(error)
            problems = self._fire_last_points(failure)
            self.record.end(failure or next(iter(problems), None))
            ending = self.signals.ending(self.saving.newest if failure is None else None)
        finally:
            self.clean_up()
        return is_handled(error, failure, problems, ending)

    def _close_scopes(self, error: BaseException | None) -> BaseException | None:
        """Close open passes and the epoch as incomplete. If the run failed, discard them instead, and return the exception."""
        run, scopes = self.run, self.scopes
        while error is None or isinstance(error, StopRun):
            try:
                if error is not None:
                    run.stop(error.reason)
                scopes.close_epoch(cut_short=True)
                self.agree("the end of the loop")
                self.resuming.enter_epoch()
                self.saving.wait()
                self.logbook.flush()
                run.monitors.raise_errors()
                return None
            except BaseException as raised:
                error = raised
        if self.agreement is not None:
            self.agreement.end(f"rank {run.rank} failed with {type(error).__name__}")
        for problem in errors_of(self.saving.note_place):
            logger.error("the position of the failure is unknown", exc_info=problem)
        self.watch.explain(error)
        scopes.drop()
        self.logbook.drop_pages()
        run.mode = None
        set_now(run, NO_ITERATION)
        return error

    def _fire_last_points(self, failure: BaseException | None) -> list[Exception]:
        """Fire the last points, and return the handlers' errors. Monitors finish last, after they have received all values."""
        run, scopes, fires = self.run, self.scopes, self.options.run_points
        self.clocks.stop()
        self.control.end()
        if failure is not None:
            set_payload(run, {"error": failure})
            self.record.note_failure(failure)
            for problem in self.hooks.contain("on_exception", run):
                logger.error("on_exception failed", exc_info=problem)
            set_payload(run, {})  # an error keeps its stack frames, and their memory, alive
        if self.signals.received is not None:
            run.put_event("signal", received=self.signals.received.name)
        problems = self.hooks.contain("on_run_end", run, monitors=False) if fires else []
        problems += errors_of(self.saving.at_end, failure) + errors_of(scopes.cleanup.leave, None)
        self.logbook.flush()
        run.monitors.drain(is_leaving=self.signals.is_leaving)
        if failure is None and self.logbook.loss_check is not None:
            self.logbook.loss_check.check_pending()
        problems += run.monitors.take_errors() + (run.monitors.end_run(is_leaving=self.signals.is_leaving) if fires else [])
        if fires and failure is None and not self.verdicts.stop:
            self.missing.warn_at_end(run)
        return problems + self.hooks.leave(failure or self.signals.ending() or next(iter(problems), None))

    def clean_up(self) -> None:
        self._is_over = self.logbook.has_ended = True
        leave_run(self.run)
        be_silent(self, silent=False)
        with ExitStack() as undone:  # ExitStack calls all functions in reverse order, even if one of them raises an error
            undone.callback(self.objects.team.close)
            undone.callback(self.saving.close)
            undone.callback(self.run.monitors.close)
            undone.callback(self.hooks.attach, None)
            undone.callback(self.signals.restore)
            undone.callback(self.watch.end)
            undone.callback(self.steps.remove)

    def running(self) -> Run:
        """Return the run. Raise OutsideRun if it has ended."""
        if self._is_over:
            raise OutsideRun("this loop is not running.", enter="with Loop(...) as run: and use run inside")
        return self.run

    def _fire(self, point: str, **payload: Any) -> None:
        set_payload(self.run, payload)
        self.hooks.fire(point, self.run)
