"""Tracker: what MLflowMonitor and WandbMonitor have in common."""

from __future__ import annotations

import logging
import threading
from abc import abstractmethod
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hookpoint.core.callback.callback import Callback
from hookpoint.core.errors import BadArgument, text
from hookpoint.core.text.secrets import masked
from hookpoint.monitors._tracking.tracked import Ending, Facts, Kept, Surroundings, Tracked

if TYPE_CHECKING:
    from typing import Unpack

    from hookpoint.core.callback.callback import Options
    from hookpoint.core.callback.on import OnError
    from hookpoint.core.log.records import Record
    from hookpoint.core.run.run import Run

logger = logging.getLogger("hookpoint")

FAILURES_IN_A_ROW = 3
FINISH_SECONDS = 10.0  # for telling a service how the run ended


class Tracker(Callback):
    """Hand what is logged to a tracking service, off the training thread; derived classes know the service.

    The run at the service is opened when the first record comes, which for a resumed run is after its state was put back.
    `file_name` is the small file in the workdir that knows which one it is when there is no checkpoint yet. A service that
    fails is given up here, and not by the policy of all callbacks: that would leave the end of the run out as well.
    """

    ranks = "chief"
    on_error: OnError = "warn"
    outside = True

    service: str
    package: str
    extra: str
    file_name: str
    environment: Mapping[str, str] = {}

    _tracked: Tracked | None
    _facts: Facts | None
    _surroundings: Surroundings

    def __init__(self, params: Mapping[str, Any] | None = None, **options: Unpack[Options]) -> None:
        super().__init__(**options)
        if params is not None and not isinstance(params, Mapping):
            raise BadArgument(f"{type(self).__name__}(params={params!r}) is no dict.", give='{"name": value}')
        if find_spec(self.package) is None:
            raise ImportError(
                text(
                    f"{type(self).__name__} needs {self.service}, which is not installed.",
                    run=f"pip install 'hookpoint[{self.extra}]'",
                )
            )
        self.params = dict(params or {})
        self._reset()
        self._run_id: str | None = None

    # For a service to say

    @abstractmethod
    def where(self, workdir: Path | None) -> str | None:
        """Return the address of the service, or None where there is none."""

    @abstractmethod
    def prepare(self, workdir: Path | None) -> None:
        """Import the client, on the training thread, before anything is timed; refuse what cannot work."""

    @abstractmethod
    def open_run(self, facts: Facts, kept: Kept | None) -> Tracked:
        """Return a run at the service: the one that is kept, or a new one."""

    # Points

    def on_setup(self, run: Run) -> None:
        self._surroundings.restore()
        self._surroundings = Surroundings(self.environment)
        self._surroundings.set()
        self._failures = FAILURES_IN_A_ROW  # until it is known that it can work
        self.prepare(None if run.workdir is None else Path(run.workdir))
        self._failures = 0

    def on_run_begin(self, run: Run) -> None:
        if not run.resuming:
            self._run_id = None
        workdir = None if run.workdir is None else Path(run.workdir).absolute()
        settings = {
            **{name: _plain(value) for name, value in run.hyper.items()},
            "world_size": run.world_size,
            **run.config,
            **self.params,
        }
        self._facts = Facts(run.name, workdir, masked(settings), run.step if run.resuming else None)
        self._ending = Ending()

    def on_records(self, records: list[Record], run: Run) -> None:
        with self._talking:
            if self._facts is None or self._failures >= FAILURES_IN_A_ROW:
                return
            self._notice(records)
            try:
                if self._tracked is None:
                    self._open(self._facts, run.max_epochs)
                if self._tracked is not None:
                    try:
                        self._tracked.send(records)
                    finally:
                        self._note(self._tracked)
                self._failures = 0
            except Exception as error:
                if self.on_error == "raise":
                    raise
                self._fail(error)

    def on_exception(self, error: BaseException) -> None:
        is_kill = isinstance(error, KeyboardInterrupt | SystemExit)
        self._ending.status = "killed" if is_kill else "failed"
        self._ending.words = masked(f"{type(error).__name__}: {error}")

    def on_run_end(self) -> None:
        try:
            self._finish()
        finally:
            self._surroundings.restore()
            self._reset()

    def state_dict(self) -> dict[str, Any]:
        return {} if self._run_id is None else {"run_id": self._run_id}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._run_id = state.get("run_id")

    def __getstate__(self) -> dict[str, Any]:
        kept = super().__getstate__()
        return {name: value for name, value in kept.items() if name not in ("_talking", "_tracked", "_facts", "_surroundings")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self._reset()
        self.__dict__.update(state)

    # How

    def _reset(self) -> None:
        self._talking = threading.Lock()  # a new one: the thread of a run that is over may hold the old one
        self._tracked = None
        self._facts = None
        self._surroundings = Surroundings({})
        self._ending = Ending()
        self._where, self._is_saved, self._failures = "", False, 0

    def _notice(self, records: list[Record]) -> None:
        for record in records:
            if record.kind == "event" and "save" in record.values:
                self._is_saved = True
            elif record.kind == "event" and self._ending.status == "finished":
                if "signal" in record.values:
                    self._ending.status, self._ending.words = "killed", str(record.values["signal"].get("received", ""))
                elif "stop" in record.values:
                    self._ending.words = masked(str(record.values["stop"].get("reason", "")))

    def _open(self, facts: Facts, max_epochs: int | None) -> None:
        where = self.where(facts.workdir)
        if where is None:
            return
        file = self._file()
        kept = None if file is None else Kept.read(file)
        if kept is not None and kept.where != masked(where):
            kept = None
        if facts.resumed_at is None:
            kept = None if kept is None or kept.is_over or kept.is_saved else kept
        elif self._run_id is not None and (kept is None or kept.run_id != self._run_id):
            kept = Kept(self._run_id, masked(where))
        ending = self._ending
        tracked = self.open_run(replace(facts, settings={"max_epochs": max_epochs, **facts.settings}), kept)
        if self._facts is not facts:  # it took longer than the run did
            tracked.finish(ending)
            return
        self._tracked, self._run_id, self._where = tracked, tracked.run_id, masked(where)
        self._is_saved |= facts.resumed_at is not None
        self._note(tracked)

    def _fail(self, error: Exception) -> None:
        self._failures = FAILURES_IN_A_ROW if self.on_error == "disable" else self._failures + 1
        after = "it is left alone for the rest of the run" if self._failures >= FAILURES_IN_A_ROW else "the run goes on"
        what = masked(f"{type(error).__name__}: {error}")
        logger.warning("%s did not take what was logged: %s; %s", self.service, what, after)

    def _file(self) -> Path | None:
        return None if self._facts is None or self._facts.workdir is None else self._facts.workdir / self.file_name

    def _note(self, tracked: Tracked, *, file: Path | None = None, is_over: bool = False) -> None:
        """Write down what is to be known later; a disk that is full is no reason to lose records."""
        file = file or self._file()
        if file is not None:
            with suppress(OSError):
                Kept(tracked.run_id, self._where, is_over, tracked.safe_step, self._is_saved).write(file)

    def _finish(self) -> None:
        """Say how the run ended, for a limited time."""
        tracked, talking, ending, file = self._tracked, self._talking, self._ending, self._file()
        if tracked is None:
            return
        if not talking.acquire(blocking=False):  # it has had its time already, when records were waited for
            logger.warning("%s did not answer, and does not know that the run is over", self.service)
            return
        failures: list[Exception] = []

        def finish() -> None:
            try:
                tracked.finish(ending)
                self._note(tracked, file=file, is_over=True)
            except Exception as error:
                failures.append(error)
            finally:
                talking.release()

        thread = threading.Thread(target=finish, name=f"hookpoint {self.service}", daemon=True)
        thread.start()
        thread.join(FINISH_SECONDS)
        if thread.is_alive():
            logger.warning("%s was not told within %g s that the run is over", self.service, FINISH_SECONDS)
        if failures:
            raise failures[0]


def _plain(value: Any) -> Any:
    """Return a setting as a number, a truth or a text."""
    if isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, tuple | list):
        return str(value)
    try:
        return float(value)
    except (TypeError, ValueError):
        return str(value)
