"""Pass: one run over a loader, in training, validation or prediction."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Iterator
from time import perf_counter
from typing import TYPE_CHECKING, Any, NamedTuple

from hookpoint.core.data.samples import count_samples, length_of
from hookpoint.core.errors import HookpointWarning, TooManyRetries, text
from hookpoint.core.hooks.costs import FIRST_SAMPLE, SAMPLE_EVERY
from hookpoint.core.run.iteration import NO_ITERATION, Iteration
from hookpoint.core.run.run import Mode, set_now
from hookpoint.core.team.checked_team import caller

if TYPE_CHECKING:
    from hookpoint.core.loop.loop import Loop

MODES = ("train", "val", "pred")
END = object()
FOLD_EVERY = 64  # how many iterations outside of training are logged before they are folded into the pass's means


class Progress(NamedTuple):
    """Where a pass stands: `total` is None where the loader does not know how many batches it has."""

    mode: Mode
    done: int
    total: int | None


class Pass:
    """The iterations over one loader. It opens with the first batch that is asked for and closes with the last.

    A pass that a user's `break` left behind is `abandoned`; the loop closes it at the next opportunity.
    """

    # Slots, not a dict: above thirty attributes a dict's are no longer shared, and each iteration reads twenty of them.
    __slots__ = (
        "_again",
        "_agreement",
        "_aside",
        "_batches_seen",
        "_began",
        "_begin",
        "_clocks",
        "_count",
        "_counts_steps",
        "_end",
        "_fetch_begin",
        "_fetch_end",
        "_fetches_quietly",
        "_in_iteration",
        "_is_done",
        "_is_sampled",
        "_is_train",
        "_loader",
        "_loop",
        "_opened_epoch",
        "_outer_mode",
        "_outer_now",
        "_retries",
        "_run",
        "_samples_of",
        "_saving",
        "_source",
        "_steps_before",
        "_timed_begin",
        "_timed_end",
        "_total",
        "_verdicts",
        "abandoned",
        "is_closing",
        "is_open",
        "is_shared",
        "mode",
        "now",
        "results",
        "wants_end",
        "was_cut",
    )

    def __init__(self, loop: Loop, loader: Iterable[Any], mode: Mode, *, aside: bool = False) -> None:
        self.mode = mode
        self.results: dict[str, Any] = {}
        self._aside = aside
        self.abandoned = False
        self.is_open = False
        self.is_shared = False  # by all processes of a team: predictions, and what one does for itself, are not
        self.is_closing = False
        self.wants_end = self.was_cut = False
        self.now = Iteration()
        self._loop = loop
        self._loader = loader
        self._is_done = False
        self._is_train = mode == "train"
        self._in_iteration = False
        self._is_sampled = False
        self._count = 0
        self._total: int | None = None
        self._batches_seen = 0
        self._retries = 0
        self._again: Any = END
        self._source: Iterator[Any] = iter(())

    def advance(self) -> Any:
        """End the iteration that is running, begin the next one, and return its batch."""
        if not self.is_open:
            self._open()
        loop, run, now, verdicts = self._loop, self._run, self.now, self._verdicts
        if loop.passes[-1] is not self:
            loop.close_passes_above(self)
        if self._in_iteration:
            self._end_iteration()
        while not (verdicts.asked and self._must_end()):
            if self._again is not END:
                batch = self._again
            elif self._fetches_quietly:
                batch = next(self._source, END)
                self._batches_seen += batch is not END
            else:
                batch = self._fetch()
            if batch is END:
                if self._is_train:
                    run._stepper.finish(run)
                self.close(complete=True)
                raise StopIteration
            if verdicts.asked and self._must_end(has_batch=True):  # while it was fetched: it is not begun, and not seen
                self._batches_seen -= self._again is END
                break
            self._again = END
            self._count += 1
            self._is_sampled = self._is_train and self._count % SAMPLE_EVERY == FIRST_SAMPLE
            self._in_iteration = True
            now.batch, now.batch_idx, now.samples = batch, self._batches_seen - 1, self._samples_of(batch)
            set_now(run, now)
            if self._begin is not None or self._is_sampled:
                self._begin_iteration()
                if now.asked and (now.retry or "batch" in now.skipped):
                    self._end_iteration()
                    continue
            return now.batch
        if self._is_train and not verdicts.stop:
            run._stepper.finish(run)
        self.was_cut = not self._saw_everything()
        self.close(complete=not self.was_cut)
        raise StopIteration

    def close(self, *, complete: bool) -> None:
        """End the iteration that is running, then the pass."""
        if not self.is_open or self.is_closing:
            return
        self.is_closing = True
        was_left = self._in_iteration
        try:
            if self._in_iteration:
                self._end_iteration()
        except BaseException:
            self.is_closing = False
            raise
        self.is_open = self.abandoned = False
        self._is_done = True
        loop, run = self._loop, self._run
        try:
            # A user may end validation early; one that a stop has cut off leaves the epoch incomplete, as its metrics are.
            loop.cut_short |= not complete and (self._is_train or self._verdicts.stop)
            if self._is_train and not complete and not was_left:
                loop.saving.before_end_points()  # while the means of the pass are open, as they are for whoever goes on in it
            self.results = loop.logbook.finish_page()
            loop.hooks.fire(f"on_{self.mode}_epoch_end", run)
            loop.close_passes_above(self)
            if self._is_train:
                loop.agree_now("the end of a training pass")
                self._check_losses(complete)
        finally:
            self._source = iter(())
            loop.logbook.close_page()
            loop.passes.remove(self)
            if not loop.passes and not self._aside:
                loop.saving.pass_is_done(self.results, self._batches_seen)
            run.mode = self._outer_mode
            set_now(run, self._outer_now)
            loop.leaving.leave(self)
        if self._opened_epoch:
            loop.close_epoch()
            loop.saving.body_begins()

    def _check_losses(self, complete: bool) -> None:
        check, is_shared = self._loop.logbook.loss_check, self.is_shared == (self._agreement is not None)
        if check is not None and is_shared:  # in a team: by all of its processes
            check.at_pass_end(self.results.get("loss") if complete else None)

    @property
    def batches_done(self) -> int:
        return self._batches_seen - self._in_iteration

    @property
    def progress(self) -> Progress:
        return Progress(self.mode, self.batches_done, self._total)

    def drop(self) -> None:
        """Forget the pass without its end points: an exception has cut it off."""
        self.is_open, self._is_done, self._in_iteration = False, True, False
        self._source = iter(())  # now, not when a traceback goes: a loader's workers end at once
        self.now.clear()
        self._loop.leaving.leave(self, has_failed=True)

    def abort(self) -> None:
        """Drop the pass, and leave the run as it was before it: an exception came out of it, and someone may catch it."""
        if self.is_open and not self.is_closing and self._loop.passes[-1] is self:
            self.drop()
            self._loop.logbook.drop_page()
            self._loop.passes.pop()
            self._run.mode = self._outer_mode
            set_now(self._run, self._outer_now)

    def _open(self) -> None:
        loop = self._loop
        self._run = run = loop.running()
        self._verdicts, self._clocks = run._verdicts, run._clocks
        self._samples_of = count_samples if self.mode == "pred" else loop.samples_of
        self._counts_steps, self._steps_before = loop.step_hooks.count, run._clocks.step
        self._saving = loop.saving
        self._agreement = loop.agreement
        if self._is_done:
            raise StopIteration
        if self._must_end():
            self.was_cut = True
            if self._is_train:
                loop.cut_short = True
                if loop.epoch_is_open:
                    loop.saving.before_end_points()
            raise StopIteration
        loop.settle()
        if self._is_train:
            loop.close_passes()
        self._total = length_of(self._loader)
        self._opened_epoch = self._is_train and not loop.epoch_is_open
        resuming, is_outermost = loop.resuming, not loop.passes and not self._aside
        if self._opened_epoch:
            if resuming.is_over():
                self._is_done = True
                raise StopIteration
            loop.open_epoch()
        known = resuming.results_of(loop.passes_opened) if is_outermost else None
        loop.passes_opened += is_outermost
        if known is not None:
            self.results, self._batches_seen, self._is_done = dict(known["results"]), known["batches"], True
            raise StopIteration
        if self._agreement is not None and self.mode != "pred":
            call = caller()
            self.is_shared = call is None or call.entry.ranks == "all"
        self._outer_mode, self._outer_now = run.mode, run._now
        run.mode = self.mode
        set_now(run, NO_ITERATION)
        if self._is_train:
            run.train_loader = self._loader
        elif self.mode == "val" and not self._aside:
            run.val_loader = self._loader
        loop.logbook.open_page(self.mode, aside=self._aside, is_shared=self.is_shared)
        loop.passes.append(self)
        self.is_open = True
        self._resolve_calls()
        loop.hooks.fire(f"on_{self.mode}_epoch_begin", run)
        loop.close_passes_above(self)
        if not self._is_train:
            self._source = iter(self._loader) if self._aside else loop.positions.visit(self._loader)
        elif resuming.is_under_way:
            self._source, self._batches_seen, total = resuming.enter_pass(self._loader)
            self._total = self._total if total is None else total
            self._steps_before = run._clocks.step
        else:
            self._source = loop.positions.begin(self._loader, run.epoch)
        if loop.positions.notes:
            resuming.report_data()

    def _resolve_calls(self) -> None:
        hooks, mode = self._loop.hooks, self.mode
        begin, end = ("on_iter_begin", f"on_{mode}_iter_begin"), (f"on_{mode}_iter_end", "on_iter_end")
        self._begin, self._end = hooks.dispatch(*begin, mode=mode), hooks.dispatch(*end, mode=mode)
        self._timed_begin = hooks.dispatch(*begin, mode=mode, timed=True)
        self._timed_end = hooks.dispatch(*end, mode=mode, timed=True)
        self._fetch_begin, self._fetch_end = (
            hooks.dispatch("on_batch_fetch_begin"),
            hooks.dispatch("on_batch_fetch_end"),
        )
        listened_to = self._fetch_begin is not None or self._fetch_end is not None
        self._fetches_quietly = not listened_to and self._loop.prepare is None

    def _must_end(self, *, has_batch: bool = False) -> bool:
        verdicts, signals = self._verdicts, self._loop.signals
        # What someone does aside, after a stop was asked, he wants done; a signal ends it as it ends anything.
        stops = verdicts.stop and not (self._aside and signals.received is None)
        if stops and signals.has_stopped and self._saving.saves:
            # Nobody could go on in the middle of a validation, nor from before a batch that was fetched: they come to an end.
            stops = self._loop.cut_short or (self._is_train and not has_batch)
        return stops or self.wants_end or (verdicts.stop_epoch and self._is_train)

    def _saw_everything(self) -> bool:
        return self._total is not None and self._batches_seen >= self._total

    def _fetch(self) -> Any:
        """Ask the loader for a batch with points around it, and prepare it."""
        run, now = self._run, self.now
        now.batch_idx = self._batches_seen
        set_now(run, now)
        if self._fetch_begin is not None:
            self._fetch_begin(run)
        batch = next(self._source, END)
        if batch is not END and self._loop.prepare is not None:
            batch = self._loop.prepare(batch)
        now.batch = None if batch is END else batch
        if self._fetch_end is not None:
            self._fetch_end(run)
        set_now(run, NO_ITERATION)
        if batch is END:
            return END
        self._batches_seen += 1
        return now.batch

    def _begin_iteration(self) -> None:
        begin = self._begin
        if self._is_sampled:
            self._began, begin = perf_counter(), self._timed_begin
        if begin is not None:
            begin(self._run)
            if self._loop.passes[-1] is not self:  # a handler broke off a pass of its own
                self._loop.close_passes_above(self)

    def _end_iteration(self) -> None:
        self._in_iteration = False
        loop, run, now = self._loop, self._run, self.now
        if not (now.asked and self._was_skipped()):
            now.has_ended = True
            self._retries = 0
            if self._is_train:
                clocks = self._clocks
                clocks.iteration += 1
                clocks.samples += now.samples
                if not self._counts_steps:
                    clocks.step += 1
            if self._end is not None:
                (self._timed_end or self._end if self._is_sampled else self._end)(run)
                if loop.passes[-1] is not self:
                    loop.close_passes_above(self)
            if self._is_sampled:
                loop.share.add_step(perf_counter() - self._began)
            if self._is_train and loop.log_every:
                if self._clocks.step >= loop.logbook.next_log_step:
                    loop.logbook.end_window(send=True)
                    run.monitors.raise_errors()
            elif self._count % FOLD_EVERY == 0:
                loop.logbook.end_window(send=False)
            if self._agreement is not None and self._is_train:
                self._agreement.at_step()
            if self._is_train:
                self._saving.window_is_open = window_is_open = self._counts_steps and self._clocks.step == self._steps_before
                # After a `break`, what follows the loop's body has run already: nobody could go on from here, and a save waits.
                if self._saving.is_due and not window_is_open and not self.is_closing:
                    self._saving.at_boundary()
                self._steps_before = self._clocks.step
        set_now(run, NO_ITERATION)
        now.clear()

    def _was_skipped(self) -> bool:
        """Do what was asked of the iteration instead of ending it; say whether it was skipped as a whole."""
        now = self.now
        if now.retry:
            self._retries += 1
            if self._retries > self._loop.max_retries:
                raise TooManyRetries(
                    text(
                        f"batch {now.batch_idx} was to be retried {self._retries} times; {self._loop.max_retries} are allowed.",
                        allow=f"max_retries={self._retries} in the Runner or Loop",
                    )
                )
            self._again = now.batch
        elif "batch" in now.skipped:
            self._retries = 0
        else:
            if not now.skips_were_read:
                warnings.warn(
                    f"skip_{'/'.join(sorted(now.skipped))} was asked, and the loop's body did not look at run.skipped",
                    HookpointWarning,
                    stacklevel=4,
                )
            return False
        now.has_ended = True
        self._loop.hooks.fire("on_iter_skip", self._run)
        if self._agreement is not None and self._is_train:
            self._agreement.at_step()
        return True
