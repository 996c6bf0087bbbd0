"""HangWatch: report long waits for data or other ranks, and raise DataTimeout if a batch takes too long.

Every few seconds, a background thread reads the run's counters and the training thread's stack. The training thread does no
extra work.
"""

from __future__ import annotations

import threading
import traceback
from collections.abc import Callable, Sequence
from time import monotonic
from types import FrameType
from typing import TYPE_CHECKING, Any

from hookpoint.core.errors import BadArgument, DataTimeout, HookpointError, StopRun, text
from hookpoint.core.hang._rank_posts import RankPosts
from hookpoint.core.logger import logger
from hookpoint.core.text.thread_frames import frames_by_thread

if TYPE_CHECKING:
    from hookpoint.core.run.run import Run
    from hookpoint.core.schedule.clocks import Clocks


LOOKS = 12  # checks per `report_seconds`, or per `data_seconds` if that is shorter
FRAMES = 8  # number of innermost stack frames in a report
SHORT = 4  # number of stack frames per rank, in a report about multiple ranks
MODES = {"train": "", "val": "validation ", "pred": "prediction "}


class HangWatch:
    """Watch one run in a background thread.

    With multiple ranks, the thread starts when the run begins. With one rank, it starts with the first pass that has worker
    processes or a timeout.

    After `report_seconds` without progress, the watch logs a report. The interval doubles after each report. After
    `data_seconds`, `signals` interrupts a wait for data. `workers`, such as TorchLoaderWorkers, inspects the worker processes
    of a framework's loaders. It may be None. `passes` contains the open passes, innermost last. `fetching` returns whether a
    stack frame fetches a batch from a loader. Such a frame has a local variable `pass_`, which contains the pass. `loop_folder`
    is the folder of the loop's code.
    """

    def __init__(
        self,
        run: Run,
        clocks: Clocks,
        passes: Sequence[Any],
        signals: Any,
        workers: Any,
        *,
        report_seconds: float | None,
        data_seconds: float | None,
        fetching: Callable[[FrameType], bool],
        loop_folder: str,
    ) -> None:
        self._run, self._clocks, self._passes = run, clocks, passes
        self._signals, self._workers = signals, workers
        self._report_seconds, self._data_seconds = report_seconds, data_seconds
        self._fetching, self._loop_folder = fetching, loop_folder
        self._posts = None if run.team.notes is None else RankPosts(run.team.rank, run.team.notes)
        self._over = threading.Event()
        self._thread: threading.Thread | None = None
        self._training_thread = 0
        self._entered: Any = None
        self._place: tuple[Any, ...] = ()
        self._since = self._next_report = 0.0

    def begin(self) -> None:
        """Record that the current thread is the training thread.

        In a team, also start the watch. It starts on every rank, because other ranks may wait for this rank.
        """
        self._training_thread = threading.get_ident()
        if self._data_seconds is not None and not self._signals.can_interrupt():
            cure = "the loop in the main thread, without ignoring SIGINT, or pass timeout= to the DataLoader instead"
            raise BadArgument("data_timeout_seconds needs a signal handler, but this run installs none.", run=cure)
        if self._posts is not None and self._report_seconds:
            self._posts.exchange(self._where(), [], 0.0, reads=False)
            self._start()

    def enter(self, pass_: Any) -> None:
        """Prepare for a pass. Called just before the pass creates its loader's iterator."""
        self._entered = pass_
        if self._report_seconds is None and self._data_seconds is None:
            return
        if self._workers is not None:
            self._workers.prepare(pass_.loader)
        if self._data_seconds is not None or getattr(pass_.loader, "num_workers", False):
            self._start()

    def end(self) -> None:
        self._over.set()

    def explain(self, error: BaseException) -> None:
        """Add notes to a loader's error: the batch that was requested, and the worker that exited.

        Terminate the other workers.
        """
        frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__)][::-1]
        fetch = self._fetch_in(frames)
        if not isinstance(error, Exception) or isinstance(error, HookpointError | StopRun):
            return
        if fetch is not None:
            stall, number = self._stall(frames), _pass_of(fetch).batches_seen
            note = "" if stall is None else stall.failure(number, error)
            error.add_note(f"{note or f'in the loader, at batch {number}'} of epoch {self._clocks.epoch}")
            if stall is not None:
                stall.close()
        elif self._entered is not None and self._workers is not None and self._workers.is_worker_exit(error):
            error.add_note(f"detected after batch {self._entered.batches_seen} of epoch {self._clocks.epoch} was fetched")

    def _start(self) -> None:
        if self._thread is None:
            name = f"hookpoint hang watch of {self._run.name}"
            self._thread = threading.Thread(target=self._watch, name=name, daemon=True)
            self._thread.start()

    # Called in the watching thread

    def _watch(self) -> None:
        seconds = [limit for limit in (self._report_seconds, self._data_seconds) if limit is not None]
        try:
            while not self._over.wait(min(seconds) / LOOKS):
                self._look()
        except Exception:
            logger.exception("hang reports are disabled")

    def _look(self) -> None:
        frames = _outwards(frames_by_thread().get(self._training_thread))
        is_fetching, now = self._is_fetching(frames), monotonic()
        place = (is_fetching, *self._counters())
        if place != self._place or self._clocks.is_paused:
            self._place, self._since, self._next_report = place, now, self._report_seconds or 0.0
        waited = now - self._since
        if self._posts is not None:
            reads = waited > (self._report_seconds or 0.0) / 2
            self._posts.exchange(self._where(), _shown(frames, SHORT), waited, reads=reads)
        if is_fetching and self._data_seconds is not None and waited >= self._data_seconds:
            self._signals.interrupt(self._give_up)
        elif self._report_seconds and waited >= self._next_report and (is_fetching or self._posts is not None):
            self._next_report *= 2
            if self._posts is None or is_fetching or self._posts.is_mine_to_report():
                logger.warning("%s", self._report(frames, waited, is_fetching=is_fetching))

    def _report(self, frames: list[FrameType], waited: float, *, is_fetching: bool) -> str:
        who = self._run.name if self._posts is None else f"{self._run.name}, rank {self._run.rank},"
        if is_fetching:
            stall = self._stall(frames)
            what, lines = "data", _shown(frames) if stall is None else stall.report()
            cures = {} if stall is None else stall.cures()
            if self._data_seconds is None:
                cures["end"] = "such a wait with data_timeout_seconds=300"
        else:
            assert self._posts is not None
            own = [f"rank {self._run.rank} is in", *(f"  {line}" for line in _shown(frames, SHORT))]
            what, lines = "other ranks", [*self._posts.report(), *own]
            cures = {"inspect": "each process above; resume a stopped one with kill -CONT <process>"}
        head = f"{who} has waited {waited:.0f} s for {what}, {self._where()}."
        return text("\n".join([head, *(f"  {line}" for line in lines)]), **cures)

    def _give_up(self, frame: FrameType | None) -> None:
        """Raise DataTimeout in the training thread, unless a batch has arrived in the meantime."""
        frames = _outwards(frame)
        if (self._is_fetching(frames), *self._counters()) != self._place:
            return
        stall, waited = self._stall(frames), monotonic() - self._since
        report = [] if stall is None else stall.report()
        if stall is not None:
            stall.kill()
        lines = [f"no data for {waited:.0f} s, {self._where()}.", *(f"  {line}" for line in report)]
        cure = f"a longer wait than data_timeout_seconds={self._data_seconds:g} if the loader is only slow"
        raise DataTimeout("\n".join(lines), allow=cure, resume="the run from its last checkpoint")

    # The position of the run

    def _counters(self) -> tuple[Any, ...]:
        clocks, collectives = self._clocks, getattr(self._run.team, "count", 0)
        passes = ((pass_.mode, pass_.batches_seen) for pass_ in list(self._passes))
        return clocks.epoch, clocks.iteration, clocks.step, collectives, *passes

    def _where(self) -> str:
        passes = list(self._passes)
        if not passes:
            return f"in epoch {self._clocks.epoch}"
        return f"at {MODES[passes[-1].mode]}batch {passes[-1].batches_seen} of epoch {self._clocks.epoch}"

    def _is_fetching(self, frames: list[FrameType]) -> bool:
        """Return whether the training thread is fetching a batch for this run's innermost pass."""
        fetch = self._fetch_in(frames)
        return fetch is not None and bool(self._passes) and _pass_of(fetch) is self._passes[-1]

    def _fetch_in(self, frames: list[FrameType]) -> FrameType | None:
        """Return the stack frame that fetches a batch, if the code called from this frame belongs to the loader.

        `frames` starts with the innermost frame.
        """
        inner = None
        for frame in frames:
            if self._fetching(frame):
                is_dispatch = inner is not None and inner.f_code.co_filename.startswith("<")
                return None if is_dispatch else frame
            if frame.f_code.co_filename.startswith(self._loop_folder):
                return None
            inner = frame
        return None

    def _stall(self, frames: list[FrameType]) -> Any:
        return None if self._workers is None else self._workers.stall(frames)


def _pass_of(frame: FrameType) -> Any:
    return frame.f_locals.get("pass_")


def _outwards(frame: FrameType | None) -> list[FrameType]:
    """Return a frame and its callers, innermost first."""
    return [frame for frame, _ in traceback.walk_stack(frame)] if frame is not None else []


def _shown(frames: list[FrameType], count: int = FRAMES) -> list[str]:
    """Return the lines of a stack, innermost frame last."""
    return [f"{frame.f_code.co_filename}:{frame.f_lineno} in {frame.f_code.co_qualname}" for frame in frames[:count][::-1]]
