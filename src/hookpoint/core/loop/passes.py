"""Pass: the state of one run over a loader, in training, validation or prediction. The machine moves it."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from hookpoint.core.data.samples import length_of
from hookpoint.core.errors import HookpointWarning, TooManyRetries
from hookpoint.core.hooks.costs import FIRST_SAMPLE
from hookpoint.core.run.iteration import NO_ITERATION, Iteration
from hookpoint.core.run.run import Run, now_of, set_now
from hookpoint.core.run.run_loop import Progress

if TYPE_CHECKING:
    from hookpoint.core.run.run_loop import Mode
    from hookpoint.core.run_view import Dispatch

MODES = ("train", "val", "pred")
END: Any = object()


class Pass:
    """The iterations over one loader. It opens with the first batch that is asked for and closes with the last.

    A pass that a user's `break` left behind is `abandoned`; the machine closes it at the next opportunity. One that `is_side`
    stays out of the run's metrics and records. `is_shared` says whether all processes of a team make it together.
    """

    # Slots, not a dict: above thirty attributes a dict's are no longer shared, and each iteration reads a dozen of them.
    __slots__ = (
        "abandoned",
        "again",
        "batches_seen",
        "began",
        "begin",
        "end",
        "fetch",
        "in_iteration",
        "is_closing",
        "is_done",
        "is_open",
        "is_sampled",
        "is_shared",
        "is_side",
        "is_train",
        "loader",
        "mode",
        "now",
        "opened_epoch",
        "outer",
        "results",
        "retries",
        "sampled_next",
        "samples_of",
        "source",
        "steps_before",
        "timed",
        "total",
        "wants_end",
        "was_cut",
    )

    def __init__(self, loader: Iterable[Any], mode: Mode, *, is_side: bool = False) -> None:
        self.mode = mode
        self.loader = loader
        self.is_train = mode == "train"
        self.is_side = is_side
        self.is_open = self.is_closing = self.is_done = self.is_shared = False
        self.abandoned = self.wants_end = self.was_cut = self.opened_epoch = False
        self.results: dict[str, Any] = {}
        self.total: int | None = length_of(loader)
        self.samples_of: Callable[[Any], int]
        self.outer: tuple[Mode | None, Iteration] = (None, NO_ITERATION)  # mode and iteration of the run around it
        self.source: Iterator[Any] = iter(())
        # The iteration that runs
        self.now = Iteration()
        self.in_iteration = self.is_sampled = False
        self.batches_seen = self.retries = self.steps_before = 0
        self.began = 0.0
        self.sampled_next = FIRST_SAMPLE if self.is_train else -1  # which of its batches is the next to be measured
        self.again: Any = END  # the batch that is to be tried again
        # The calls of its points, resolved when it opens; None where nobody listens
        self.begin: Dispatch | None = None
        self.end: Dispatch | None = None
        self.timed: tuple[Dispatch | None, Dispatch | None] = (None, None)
        self.fetch: tuple[Dispatch | None, Dispatch | None] | None = None

    def skip(self, known: Mapping[str, Any]) -> None:
        """Take over the results of a pass that was over before the checkpoint."""
        self.results, self.batches_seen, self.is_done = dict(known["results"]), known["batches"], True

    def enter(self, run: Run, samples_of: Callable[[Any], int]) -> None:
        """Become the pass of the run, and find out whom the points of the iterations call."""
        mode, hooks, self.samples_of = self.mode, run.hooks, samples_of
        self.outer, self.steps_before, self.is_open = (run.mode, now_of(run)), run.step, True
        run.mode = mode
        set_now(run, NO_ITERATION)
        if self.is_train:
            run.train_loader = self.loader
        elif mode == "val" and not self.is_side:
            run.val_loader = self.loader
        begin, end = ("on_iter_begin", f"on_{mode}_iter_begin"), (f"on_{mode}_iter_end", "on_iter_end")
        self.begin, self.end = hooks.dispatch(*begin, mode=mode), hooks.dispatch(*end, mode=mode)
        self.timed = hooks.dispatch(*begin, mode=mode, timed=True), hooks.dispatch(*end, mode=mode, timed=True)
        fetch = hooks.dispatch("on_batch_fetch_begin"), hooks.dispatch("on_batch_fetch_end")
        self.fetch = fetch if fetch != (None, None) else None

    def leave(self, run: Run) -> None:
        """Leave the run as it was before the pass."""
        self.source = iter(())
        run.mode, now = self.outer
        set_now(run, now)

    def leave_out(self, max_retries: int) -> bool:
        """Note that the iteration is retried or skipped; say whether it is, as a whole."""
        now = self.now
        if now.retry:
            self.retries += 1
            if self.retries > max_retries:
                raise TooManyRetries(
                    f"batch {now.batch_idx} was to be retried {self.retries} times; {max_retries} are allowed.",
                    allow=f"max_retries={self.retries} in the Runner or Loop",
                )
            self.again = now.batch
        elif "batch" in now.skipped:
            self.retries, self.again = 0, END
        else:
            if not now.skips_were_read:
                warnings.warn(
                    f"skip_{'/'.join(sorted(now.skipped))} was asked, and the loop's body did not look at run.skipped",
                    HookpointWarning,
                    stacklevel=5,
                )
            return False
        self.is_sampled = False
        return True

    def drop(self) -> None:
        """Forget what it was doing."""
        self.is_open, self.is_done, self.in_iteration = False, True, False
        self.source = iter(())  # now, not when a traceback goes: a loader's workers end at once
        self.now.clear()

    @property
    def batches_done(self) -> int:
        return self.batches_seen - self.in_iteration

    @property
    def progress(self) -> Progress:
        return Progress(self.mode, self.batches_done, self.total)

    @property
    def saw_everything(self) -> bool:
        return self.total is not None and self.batches_seen >= self.total
