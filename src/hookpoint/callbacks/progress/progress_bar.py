"""ProgressBar: how far the run is."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from threading import Lock
from time import monotonic
from typing import Unpack

from hookpoint.callbacks._shared.progress_view import View
from hookpoint.callbacks.progress._progress_display import choose_display
from hookpoint.callbacks.progress._progress_ticker import Meter, Ticker
from hookpoint.core.callback.callback import Callback, Options
from hookpoint.core.log.records import Record
from hookpoint.core.run.run import Run
from hookpoint.core.run.run_loop import Progress


class ProgressBar(Callback):
    """Show how far the run is: epoch, batches, rate, time left in the epoch, the latest loss and the metrics in `names`.

    In a terminal one line of stderr, drawn at most every `refresh_seconds`; in a notebook a piece of the cell's output; in a
    file or pipe one line every `plain_every_seconds`, and one at the end of epochs that took longer, so that short runs leave
    none. Validation and prediction are shown too.

    Listens to the begin and end of passes, on_epoch_end, on_run_begin, on_run_end and on_records: values are those of the last
    record, read off the training thread. Keeps nothing in the checkpoint. Runs on the chief, and never ends a run. A step pays
    nothing: a thread looks at the run's clocks four times a second.

    >>> ProgressBar(["accuracy"]).names
    ('loss', 'accuracy')
    """

    ranks = "chief"
    on_error = "warn"

    def __init__(
        self,
        names: Iterable[str] = (),
        *,
        refresh_seconds: float = 0.25,
        plain_every_seconds: float = 30,
        **options: Unpack[Options],
    ) -> None:
        super().__init__(**options)
        if not refresh_seconds > 0 or not plain_every_seconds > 0:
            raise ValueError(
                f"ProgressBar takes numbers of seconds above 0; got refresh_seconds={refresh_seconds!r}"
                f" and plain_every_seconds={plain_every_seconds!r}"
            )
        self.names = tuple(dict.fromkeys(["loss", *([names] if isinstance(names, str) else names)]))
        self.refresh_seconds = refresh_seconds
        self.plain_every_seconds = plain_every_seconds
        self._values: dict[str, float] = {}
        self._in_run = False
        self._drawing: Drawing | None = None

    def on_run_begin(self) -> None:
        self._close()
        self._values = {}
        self._in_run = True

    def on_epoch_begin(self) -> None:
        self._epoch_began = monotonic()

    def on_train_epoch_begin(self, run: Run) -> None:
        self._begin(run)

    def on_val_epoch_begin(self, run: Run) -> None:
        self._begin(run)

    def on_pred_epoch_begin(self, run: Run) -> None:
        self._begin(run)

    def on_train_epoch_end(self, run: Run) -> None:
        self._end(run)

    def on_val_epoch_end(self, run: Run) -> None:
        self._end(run)

    def on_pred_epoch_end(self, run: Run) -> None:
        self._end(run)

    def on_epoch_end(self) -> None:
        if self._drawing is not None:
            self._drawing.end_epoch(monotonic() - self._epoch_began)

    def on_exception(self) -> None:
        if not self._in_run:
            self._close()

    def on_run_end(self) -> None:
        self._in_run = False
        self._close()

    def on_records(self, records: list[Record]) -> None:
        for record in records:
            if record.kind == "scalars":
                found = {name: float(record.values[name]) for name in self.names if name in record.values}
                self._values = {**self._values, **found}  # a new dict, as another thread may be reading the old one

    @contextmanager
    def out_of_the_way(self, run: Run) -> Iterator[None]:
        """Draw nothing inside of the block, and leave the streams as they were: the terminal is for someone else."""
        was_drawing = self._drawing is not None
        self._close()
        try:
            yield
        finally:
            if was_drawing:
                self._begin(run)

    def _begin(self, run: Run) -> None:
        if self._drawing is None:
            self._drawing = Drawing(self, run)
        self._drawing.begin_pass()

    def _end(self, run: Run) -> None:
        if self._drawing is not None:
            self._drawing.end_pass()
            if not self._in_run:  # a pass of its own, as in validate() and predict()
                self._close()

    def _close(self) -> None:
        drawing, self._drawing = self._drawing, None
        if drawing is not None:
            drawing.close()


class Drawing:
    """What is there while a bar is shown: the display, the thread that draws, and the last thing to say of the training."""

    def __init__(self, bar: ProgressBar, run: Run) -> None:
        self._bar = bar
        self._run = run
        self._measuring, self._showing = Lock(), Lock()
        self._meter = Meter()
        self._shown: View | None = None
        self._last: Progress | None = None
        self._is_on_its_way_back = run.resuming
        self._display = choose_display(bar.refresh_seconds, bar.plain_every_seconds)
        self._ticker = Ticker(self._display.seconds, self._tick)

    def begin_pass(self) -> None:
        self._is_on_its_way_back = self._run.resuming
        progress = self._run.progress
        view = self._view(progress)
        if progress is not None and progress.mode == "train":
            self._last = None
        if self._display.shows_at_once and self._shown is None and view is not None:
            self._show(view)

    def end_pass(self) -> None:
        progress = self._run.progress
        if progress is not None and (progress.mode == "train" or not self._bar._in_run):
            self._last = progress
            self._last_rate = self._rate(progress)

    def end_epoch(self, seconds: float) -> None:
        if self._last is not None and self._display.shows_epoch_end(seconds):
            self._show(self._view_of(self._last, self._last_rate))

    def close(self) -> None:
        """Leave the end of the training on the screen, or, where an exception cut it off, how far it came."""
        self._ticker.stop()
        try:
            view = self._shown if self._last is None else self._view_of(self._last, self._last_rate)
            if self._display.shows_at_once and view is not None:
                self._show(view)
        finally:
            with suppress(OSError, ValueError):
                self._display.close()

    def _tick(self) -> None:
        view = self._view(self._run.progress)
        if view is not None:
            self._show(view)

    def _show(self, view: View) -> None:
        with self._showing:
            if view != self._shown:  # while nothing moves nothing is drawn, as over a debugger's prompt
                self._shown = view
                with suppress(OSError, ValueError):  # the stream is closed, or the terminal is gone
                    self._display.show(view)

    def _view(self, progress: Progress | None) -> View | None:
        """Return what to show; nothing while a resumed run has not found back to the batch that it goes on with."""
        if progress is None or (self._is_on_its_way_back and progress.done == 0):
            return None
        self._is_on_its_way_back = False
        return self._view_of(progress, self._rate(progress))

    def _rate(self, progress: Progress) -> float | None:
        with self._measuring:
            return self._meter.add((self._run.epoch, progress.mode, progress.total), progress.done, monotonic())

    def _view_of(self, progress: Progress, rate: float | None) -> View:
        run = self._run
        known = {} if progress.mode == "pred" else self._bar._values  # which tell nothing of predictions
        values = tuple((name, known[name]) for name in self._bar.names if name in known)
        return View(progress.mode, progress.done, progress.total, run.epoch, run.max_epochs, rate, values)
