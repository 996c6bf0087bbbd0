"""ProgressBar: show the progress of the run."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from threading import Lock
from time import monotonic
from typing import ClassVar, Unpack

from hookpoint.callbacks._shared.arguments import positive, strings
from hookpoint.callbacks._shared.progress_view import View
from hookpoint.callbacks._shared.ticker import Ticker
from hookpoint.callbacks.progress._progress_display import choose_display
from hookpoint.core.callback.callback import Callback, Options
from hookpoint.core.log.records import Record
from hookpoint.core.loop.services import machine_of
from hookpoint.core.run.run import Run
from hookpoint.core.run.run_loop import Progress


class ProgressBar(Callback):
    """Show the progress of the run: epoch, batches, rate, time left in the epoch, latest loss and the metrics in `names`.

    In a terminal, the bar is one line on stderr, redrawn at most every `refresh_seconds`. In a notebook, it is a cell output.
    If stderr is a file or a pipe, a line is printed every `plain_every_seconds`. A line is also printed at the end of each
    epoch that takes longer than `plain_every_seconds`. A short run therefore prints nothing. Validation and prediction are also
    shown. The bar shows the values that were last sent to the monitors, and reads them outside the training thread. If a
    command pauses the run, the bar shows "paused". A failure of the bar never ends the run.

    >>> ProgressBar(["accuracy"]).names
    ('loss', 'accuracy')
    """

    ranks = "chief"
    on_error = "warn"
    step_cost: ClassVar[str] = "nothing; a thread reads the run's progress four times a second"

    def __init__(
        self,
        names: Iterable[str] = (),
        *,
        refresh_seconds: float = 0.25,
        plain_every_seconds: float = 30,
        **options: Unpack[Options],
    ) -> None:
        super().__init__(**options)
        self.names = tuple(dict.fromkeys(["loss", *strings("ProgressBar", "names", names)]))
        self.refresh_seconds = positive("ProgressBar", "refresh_seconds", refresh_seconds)
        self.plain_every_seconds = positive("ProgressBar", "plain_every_seconds", plain_every_seconds)
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
        if self._drawing is None:
            self._drawing = Drawing(self, run)
        self._drawing.begin_pass()

    on_val_epoch_begin = on_pred_epoch_begin = on_train_epoch_begin

    def on_train_epoch_end(self, run: Run) -> None:
        if self._drawing is not None:
            self._drawing.end_pass()
            if not self._in_run:  # a separate pass, started by validate() or predict()
                self._close()

    on_val_epoch_end = on_pred_epoch_end = on_train_epoch_end

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
                values = {name: float(record.values[name]) for name in self.names if name in record.values}
                self._values = {**self._values, **values}  # a new dict, because another thread may be reading the old one

    @contextmanager
    def hidden(self, run: Run) -> Iterator[None]:
        """Hide the bar and restore stdout and stderr during the `with` block, so that a shell can use the terminal."""
        was_drawing = self._drawing is not None
        self._close()
        try:
            yield
        finally:
            if was_drawing:
                self.on_train_epoch_begin(run)

    def _close(self) -> None:
        drawing, self._drawing = self._drawing, None
        if drawing is not None:
            drawing.close()


class Drawing:
    """A bar on the screen: its display, the thread that draws it, and the last training progress."""

    def __init__(self, bar: ProgressBar, run: Run) -> None:
        self._bar = bar
        self._run, self._clocks = run, machine_of(run).clocks
        self._measuring, self._showing = Lock(), Lock()
        self._meter = Meter()
        self._shown: View | None = None
        self._last: Progress | None = None
        self._is_restoring = run.resuming
        self._display = choose_display(bar.refresh_seconds, bar.plain_every_seconds)
        self._ticker = Ticker("ProgressBar", self._display.seconds, self._tick)

    def begin_pass(self) -> None:
        self._is_restoring = self._run.resuming
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
        """Leave the last training progress on the screen."""
        self._ticker.stop(timeout_seconds=1)  # a terminal that is stopped with Ctrl-S blocks the thread
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
            if view != self._shown:  # drawing the same bar again could overwrite a debugger prompt
                self._shown = view
                with suppress(OSError, ValueError):  # the stream or terminal is closed
                    self._display.show(view)

    def _view(self, progress: Progress | None) -> View | None:
        """Return what the bar should show, or None to draw nothing while a resumed run restores its position in the data."""
        if progress is None or (self._is_restoring and progress.done == 0):
            return None
        self._is_restoring = False
        return self._view_of(progress, self._rate(progress))

    def _rate(self, progress: Progress) -> float | None:
        with self._measuring:
            now = monotonic() - self._clocks.paused_seconds()
            return self._meter.add((self._run.epoch, progress.mode, progress.total), progress.done, now)

    def _view_of(self, progress: Progress, rate: float | None) -> View:
        run = self._run
        known = {} if progress.mode == "pred" else self._bar._values  # predictions have no metrics
        values = tuple((name, known[name]) for name in self._bar.names if name in known)
        place = progress.mode, progress.done, progress.total, run.epoch, run.max_epochs
        return View(*place, rate, values, is_paused=self._clocks.is_paused)


class Meter:
    """Measure how many batches a pass processes per second, from its most recent batch counts.

    A new `key` or a lower batch count starts a new measurement.
    """

    # At four counts per second, 40 counts cover ten seconds. A count that equals the previous count is not stored, so 40 counts
    # cover more than ten seconds if batches are slow.
    SAMPLES = 40

    def __init__(self) -> None:
        self._key: object = None
        self._samples: deque[tuple[float, int]] = deque(maxlen=self.SAMPLES)

    def add(self, key: object, done: int, now: float) -> float | None:
        """Record the number of batches done at the time `now`, in seconds.

        Return batches per second, or None if it is too early to tell.
        """
        if key != self._key or (self._samples and done < self._samples[-1][1]):
            self._key = key
            self._samples.clear()
        if not self._samples or done > self._samples[-1][1]:
            self._samples.append((now, done))
        (began, first), (ended, last) = self._samples[0], self._samples[-1]
        return (last - first) / (ended - began) if ended > began else None
