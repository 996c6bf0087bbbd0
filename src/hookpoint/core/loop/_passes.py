"""Pass: the state of one pass over a loader, in training, validation or prediction. The class Machine updates it."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from hookpoint.core.data.samples import length_of
from hookpoint.core.errors import HookpointWarning, TooManyRetries
from hookpoint.core.hooks.costs import FIRST_SAMPLE, FIRST_SAMPLE_IN_EVALUATION, IN_THE_STEP
from hookpoint.core.run.iteration import NO_ITERATION, Iteration
from hookpoint.core.run.run import Run, now_of, set_now
from hookpoint.core.run.run_loop import Progress

if TYPE_CHECKING:
    from hookpoint.core.hooks.hooks import Hooks
    from hookpoint.core.run.run_loop import Mode
    from hookpoint.core.run_view import Dispatch

MODES = ("train", "val", "pred")
END: Any = object()


# Slots make attribute access faster. Without slots, a class with more than thirty attributes loses CPython's key-sharing dicts.
@dataclass(slots=True, eq=False, repr=False)
class Pass:
    """One pass over a loader. It opens when the first batch is requested, and closes after the last batch.

    If a `break` leaves the pass open, `abandoned` is set, and the next call to the run closes the pass. If `is_side` is set,
    the pass's values are not added to the run's metrics and records. If `is_shared` is set, all ranks of a team run the pass
    together.
    """

    loader: Iterable[Any]
    mode: Mode
    is_side: bool = False
    why_empty: str | None = None  # why the pass has no batches, if it has none; None if that is not worth a warning
    is_train: bool = field(init=False)
    is_open: bool = False
    is_closing: bool = False
    resolutions: int = 0  # how often `resolve` was called; -1 after the pass has closed
    is_exhausted: bool = False  # whether the loader had no more batches
    is_done: bool = False
    is_shared: bool = False
    abandoned: bool = False
    was_superseded: bool = False  # whether another pass, or the end of the epoch, closed the pass before its end
    wants_end: bool = False
    was_cut: bool = False
    opened_epoch: bool = False
    opened_after_stop: bool = False  # whether a stop was requested earlier in the training iteration that this pass is inside
    results: dict[str, Any] = field(default_factory=dict)
    total: int | None = field(init=False)
    samples_of: Callable[[Any], int] = field(init=False)
    outer: tuple[Mode | None, Iteration] = (None, NO_ITERATION)  # the run's mode and iteration before the pass
    source: Iterator[Any] = field(default_factory=lambda: iter(()))
    # The current iteration
    now: Iteration = field(default_factory=Iteration)
    in_iteration: bool = False
    batches_seen: int = 0
    retries: int = 0
    steps_before: int = 0
    began: float = 0.0
    sampled_next: int = field(init=False)  # the next batch to time
    again: Any = END  # the batch to retry
    # Functions that call the handlers of the pass's points, looked up when the pass opens. None if a point has no handlers.
    begin: Dispatch | None = None
    end: Dispatch | None = None
    timed: tuple[Dispatch | None, Dispatch | None] = (None, None)
    is_timed: bool = False  # whether to time the handlers in some of the iterations
    fetch: tuple[Dispatch | None, Dispatch | None] | None = None

    def __post_init__(self) -> None:
        self.is_train, self.total = self.mode == "train", length_of(self.loader)
        self.sampled_next = FIRST_SAMPLE if self.is_train else FIRST_SAMPLE_IN_EVALUATION

    def skip(self, known: Mapping[str, Any]) -> None:
        """Use the saved results of a pass that ended before the checkpoint."""
        self.results, self.batches_seen, self.is_done = dict(known["results"]), known["batches"], True

    def enter(self, run: Run, samples_of: Callable[[Any], int]) -> None:
        """Make this the run's current pass, and look up the functions that call the handlers of its points."""
        mode, self.samples_of = self.mode, samples_of
        self.outer, self.steps_before, self.is_open = (run.mode, now_of(run)), run.step, True
        self.is_exhausted = False
        run.mode = mode
        set_now(run, NO_ITERATION)
        if self.is_train:
            run.train_loader = self.loader
        elif mode == "val" and not self.is_side:
            run.val_loader = self.loader
        self.resolve(run.hooks)

    def resolve(self, hooks: Hooks) -> None:
        """Look up the functions that call the handlers of the pass's points.

        If the handlers change during the pass, this method is called again. The current generator over the batches then ends,
        and a new generator calls the new handlers.
        """
        mode = self.mode
        self.resolutions += 1
        begin, end = ("on_iter_begin", f"on_{mode}_iter_begin"), (f"on_{mode}_iter_end", "on_iter_end")
        self.begin, self.end = hooks.dispatch(*begin, mode=mode), hooks.dispatch(*end, mode=mode)
        self.timed = hooks.dispatch(*begin, mode=mode, timed=True), hooks.dispatch(*end, mode=mode, timed=True)
        self.is_timed = any(map(hooks.calls, IN_THE_STEP if self.is_train else (begin[1], end[0])))
        fetch = hooks.dispatch("on_batch_fetch_begin", timed=True), hooks.dispatch("on_batch_fetch_end", timed=True)
        self.fetch = fetch if fetch != (None, None) else None

    def leave(self, run: Run) -> None:
        """Restore the run's mode and iteration from before the pass."""
        self.source = iter(())
        run.mode, now = self.outer
        set_now(run, now)

    def apply_skips(self, max_retries: int) -> bool:
        """Handle requests to retry or skip. Return whether the whole iteration is discarded."""
        now = self.now
        if now.retry:
            self.retries += 1
            if self.retries > max_retries:
                self.retries, self.again = 0, END  # a caller that catches the error gets the next batch
                raise TooManyRetries(
                    f"batch {now.batch_idx}: retry {max_retries + 1} exceeds the limit of {max_retries}.",
                    allow=f"max_retries={max_retries + 1} in the Runner or Loop",
                )
            self.again = now.batch
        elif "batch" in now.skipped:
            self.retries, self.again = 0, END
        else:
            if not now.skips_were_read:
                skips = "/".join(sorted(now.skipped))
                text = (
                    f"skip_{skips} had no effect: it was requested too late, or the body of the loop did not read run.skipped"
                )
                warnings.warn(text, HookpointWarning, stacklevel=4)
            return False
        now.is_sampled = False
        return True

    def forget_iteration(self) -> None:
        """Forget the values and requests of an iteration whose end raised an error that the caller has caught."""
        self.now.clear()
        self.now.is_sampled = False

    def drop(self) -> None:
        """Drop the current iteration and the rest of the data."""
        self.is_open, self.resolutions, self.is_done, self.in_iteration = False, -1, True, False
        self.source = iter(())  # end the loader's workers now, not when the traceback is freed
        self.now.clear()

    @property
    def is_retrying(self) -> bool:
        """Whether a batch waits for its next try, or is being tried again."""
        return self.again is not END

    @property
    def batches_done(self) -> int:
        return self.batches_seen - (self.in_iteration or self.is_retrying)

    @property
    def has_lost_data(self) -> bool:
        """Whether the source is a generator that an error has ended."""
        return not self.is_exhausted and getattr(self.source, "gi_frame", self) is None

    @property
    def progress(self) -> Progress:
        return Progress(self.mode, self.batches_done, self.total)

    @property
    def is_at_end(self) -> bool:
        """Whether the loader's length makes this the last batch. More may follow, because the length may be an estimate."""
        return self.batches_seen - self.is_retrying == self.total
