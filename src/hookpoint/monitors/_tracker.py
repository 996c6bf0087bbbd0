"""Tracker: the base class of MLflowMonitor and WandbMonitor."""

from __future__ import annotations

import json
import logging
import os
import threading
from abc import abstractmethod
from collections.abc import Mapping
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Any, ClassVar, Unpack

from hookpoint.core.callback.callback import Callback, Options
from hookpoint.core.callback.on import OnError
from hookpoint.core.errors import BadArgument, text
from hookpoint.core.log.records import Record
from hookpoint.core.run.run import Run
from hookpoint.core.text.secrets import masked

logger = logging.getLogger("hookpoint")

MAX_FAILURES = 3  # consecutive failures
MAX_ERROR_CHARACTERS = 300


class RemoteRun:
    """A run in a tracking service. Its methods run outside the training thread, one at a time.

    If the service hangs, this object outlives the training run. The next training run creates a new RemoteRun. A small file in
    the workdir identifies the remote run, so that it can be resumed without a checkpoint.
    """

    sent_step = -1  # the last step that the service has received; MLflowRun leaves this at -1 and asks MLflow

    def __init__(self, monitor: Tracker, run: Run, address: str) -> None:
        self.monitor = monitor
        self.address = address
        self.name = run.name
        self.workdir = None if run.workdir is None else Path(run.workdir).absolute()
        self.restored_step = run.step if run.resuming else None
        hyper = {name: _plain(value) for name, value in run.hyper.items()}
        self.settings = masked({**hyper, "world_size": run.world_size, **run.config, **monitor.params})
        self.run_id = ""  # empty until the remote run is open
        self.status, self.message = "finished", ""  # the status is "finished", "failed" or "killed"
        self.failures = 0
        self.lock = threading.Lock()
        self._is_saved = run.resuming
        self._file = None if self.workdir is None else self.workdir / f"{monitor.service.lower()}.json"

    @abstractmethod
    def open(self, run_id: str | None) -> str:
        """Resume the remote run with this id, or create a new one; return its id."""

    @abstractmethod
    def send(self, records: list[Record]) -> None:
        """Send records. Raise an error if they cannot be sent."""

    @abstractmethod
    def finish(self) -> None:
        """Send the status and release the client."""

    def first_id(self) -> str | None:
        """Return the id of the remote run, or None if the id is unknown until the remote run is opened.

        A checkpoint that is saved before the remote run is opened also needs the id.
        """
        return self.previous_id(None)

    def deliver(self, records: list[Record], checkpoint_id: str | None) -> None:
        """Send records. Open the remote run first if needed. `checkpoint_id` is the run id stored in the checkpoint."""
        self._read_events(records)
        if not self.run_id:
            self.run_id = self.open(self.previous_id(checkpoint_id))
            self._write_file()
        try:
            self.send(records)
        finally:
            self._write_file()

    def close(self) -> None:
        """Finish the remote run, if it is open."""
        if self.run_id:
            try:
                self.finish()
            except Exception as error:
                raise short(error) from None
            self._write_file(is_over=True)

    def _read_events(self, records: list[Record]) -> None:
        """Record whether the run has saved a checkpoint, and why it ends."""
        for event in (record.values for record in records if record.kind == "event"):
            self._is_saved |= "save" in event
            if self.status == "finished" and "signal" in event:
                self.status, self.message = "killed", str(event["signal"].get("received", ""))
            elif self.status == "finished" and "stop" in event:
                self.message = masked(str(event["stop"].get("reason", "")))

    def previous_id(self, checkpoint_id: str | None) -> str | None:
        """Return the id of the remote run to resume, from the checkpoint or from the file in the workdir.

        A fresh run resumes the remote run of an earlier run that was killed before its first checkpoint.
        """
        try:
            state = json.loads(self._file.read_text()) if self._file is not None else {}
            file_id, is_resumable = str(state["run_id"]), not (state["is_over"] or state["is_saved"])
            step = int(state["step"]) if state["where"] == masked(self.address) else None
        except (OSError, ValueError, KeyError, TypeError):
            step = None
        if step is None or not (is_resumable or self.restored_step is not None):
            return checkpoint_id
        if checkpoint_id in (None, file_id):
            self.sent_step = step
        return checkpoint_id or file_id

    def _write_file(self, *, is_over: bool = False) -> None:
        if self._file is None:
            return
        state = {"run_id": self.run_id, "where": masked(self.address), "is_over": is_over, "step": self.sent_step}
        staging = self._file.with_name(f".{self._file.name}.new")
        with suppress(OSError):  # if the disk is full, continue to send records
            os.makedirs(self._file.parent, mode=0o700, exist_ok=True)
            staging.write_text(json.dumps({**state, "is_saved": self._is_saved}) + "\n")
            os.replace(staging, self._file)


class Tracker(Callback):
    """Send records to a tracking service. Each subclass supports one service.

    The remote run is opened when the first record arrives, because a resumed run has restored its state by then. If the service
    fails repeatedly, this class stops sending records. It does not let `on_error` disable the whole callback, because then
    `on_run_end` would not finish the remote run.
    """

    ranks = "chief"
    on_error: OnError = "warn"
    outside = True
    keeps: ClassVar[str] = "the id of the remote run"

    service: ClassVar[str]  # in lower case, this is also the name of the package and of hookpoint's extra
    variables: ClassVar[Mapping[str, str]]  # environment variables to set during the run, if the user has not set them
    remote_class: ClassVar[type[RemoteRun]]

    def __init__(
        self, params: Mapping[str, Any] | None = None, names: Mapping[str, Any] | None = None, **options: Unpack[Options]
    ) -> None:
        super().__init__(**options)
        name, package = type(self).__name__, self.service.lower()
        for argument, value in (names or {}).items():
            if value is not None and not (isinstance(value, str) and value.strip()):
                raise BadArgument(f"{name}: {argument} must be a name, got {value!r}.", write='"mine"')
        if params is not None and not isinstance(params, Mapping):
            raise BadArgument(f"{name}: params must be a dict, got {params!r}.", write='{"name": value}')
        if find_spec(package) is None:
            raise ImportError(
                text(f"{name} needs {self.service}, which is not installed.", run=f"pip install 'hookpoint[{package}]'")
            )
        self.params = dict(params or {})
        self._run_id: str | None = None
        self._address: str | None = None
        self._remote: RemoteRun | None = None
        self._variables_set: list[str] = []

    @abstractmethod
    def prepare(self, workdir: Path | None) -> str | None:
        """Import the client, on the training thread. Return the address of the service, or None to send nothing."""

    def on_setup(self, run: Run) -> None:
        self._restore_variables()
        self._variables_set = [name for name in self.variables if name not in os.environ]
        os.environ.update({name: self.variables[name] for name in self._variables_set})
        self._address = None  # stays None if `prepare` raises an error
        self._address = self.prepare(None if run.workdir is None else Path(run.workdir))

    def on_run_begin(self, run: Run) -> None:
        self._remote = None if self._address is None else self.remote_class(self, run, self._address)
        self._run_id = None if run.resuming or self._remote is None else self._remote.first_id()

    def on_records(self, records: list[Record], run: Run) -> None:
        remote = self._remote
        if remote is None:
            return
        with remote.lock:
            if self._remote is not remote or remote.failures >= MAX_FAILURES:  # the run may have ended meanwhile
                return
            remote.settings.setdefault("max_epochs", run.max_epochs)
            try:
                remote.deliver(records, self._run_id)
                remote.failures = 0
            except Exception as error:
                if self.on_error == "raise":
                    raise short(error) from None
                remote.failures = MAX_FAILURES if self.on_error == "disable" else remote.failures + 1
                effect = "nothing more is sent in this run" if remote.failures >= MAX_FAILURES else "the run continues"
                reason = masked(f"{type(error).__name__}: {short(error)}")
                logger.warning("%s did not accept records: %s; %s", self.service, reason, effect)
            finally:
                if self._remote is remote:
                    self._run_id = remote.run_id or self._run_id

    def on_exception(self, error: BaseException) -> None:
        if self._remote is not None:
            self._remote.status = "killed" if isinstance(error, KeyboardInterrupt | SystemExit) else "failed"
            self._remote.message = masked(f"{type(error).__name__}: {error}")

    def on_run_end(self) -> None:
        remote, self._remote = self._remote, None
        self._restore_variables()  # before `close`, which blocks if the service hangs
        if remote is not None:
            with remote.lock:
                remote.close()

    def state_dict(self) -> dict[str, Any]:
        return {} if self._run_id is None else {"run_id": self._run_id}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._run_id = state.get("run_id")

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "_remote": None, "_variables_set": []}

    def _restore_variables(self) -> None:
        while self._variables_set:
            os.environ.pop(self._variables_set.pop(), None)


def short(error: Exception) -> Exception:
    """Return a client error as one line. The original text may contain passwords in addresses, and long tracebacks."""
    if type(error).__module__.partition(".")[0] not in ("mlflow", "wandb"):
        return error
    lines = masked(str(error)).splitlines() or [type(error).__name__]
    return ConnectionError(lines[0][:MAX_ERROR_CHARACTERS])


def event_lines(record: Record) -> dict[str, str]:
    """Return an event's name and text, such as `{"stop": "step 8, reason=loss is low"}`. Return {} for the end of an epoch."""
    if record.kind != "event" or "epoch_end" in record.values:
        return {}
    ((event, fields),) = record.values.items()
    texts = [f"{name}={value}" for name, value in fields.items() if value is not None]
    return {event: masked(", ".join([f"step {record.step}", *texts]))}


def _plain(value: Any) -> Any:
    """Return a setting as a number, a boolean or a string."""
    if isinstance(value, bool | int | float | str):
        return value
    try:
        return float(value)
    except (TypeError, ValueError):
        return str(value)
