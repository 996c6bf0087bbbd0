"""MLflowMonitor: send records to MLflow."""

from __future__ import annotations

import logging
import os
import re
import warnings
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Unpack

import hookpoint._version as version
from hookpoint.core.callback.callback import Options
from hookpoint.core.errors import BadArgument, listed
from hookpoint.core.log.records import Record
from hookpoint.monitors._chart_values import call_each, chart_scalars, to_images
from hookpoint.monitors._tracker import RemoteRun, Tracker, event_lines
from hookpoint.storage.checkpoint.layout import safe_name

if TYPE_CHECKING:
    from mlflow import MlflowClient

logger = logging.getLogger("hookpoint")

DATABASES = ("sqlite:", "postgresql", "mysql", "mssql")
MAX_METRICS, MAX_PARAMS = 1000, 100  # limits for one call of log_batch
MAX_NAME_CHARACTERS, MAX_VALUE_CHARACTERS = 250, 5000


class MLflowRun(RemoteRun):
    """A run on an MLflow server or in a database.

    MLflow cannot delete values, so a resumed run does not send values that MLflow already has.
    """

    monitor: MLflowMonitor

    def open(self, run_id: str | None) -> str:
        from mlflow.entities import Param

        self._client = _client(self.address)
        # Maps each metric to the (step, value) pairs that MLflow already has. `_is_sent` fills this dict.
        self._sent: dict[str, set[tuple[int, str]]] = {}
        self._metrics: dict[str, list[str]] = {}  # maps each name in MLflow to the metrics that have this name there
        run = None if run_id is None else _find_run(self._client, run_id)
        self._is_resumed = run is not None
        if run is None:
            if run_id is not None:
                logger.warning("MLflow no longer has run %s; creating a new one", run_id)
            tags = {"hookpoint.version": version.__version__, "hookpoint.workdir": str(self.workdir or "")}
            run = self._client.create_run(self._experiment_id(), run_name=self.name, tags=tags)
        else:
            self._client.update_run(run.info.run_id, status="RUNNING")
        existing = run.data.params  # MLflow does not allow changing params
        texts = {metric_name(name): str(value) for name, value in self.settings.items() if value is not None}
        params = [Param(name, text[:MAX_VALUE_CHARACTERS]) for name, text in texts.items() if name not in existing]
        for start in range(0, len(params), MAX_PARAMS):
            self._client.log_batch(run.info.run_id, params=params[start : start + MAX_PARAMS])
        return str(run.info.run_id)

    def send(self, records: list[Record]) -> None:
        from mlflow.entities import Metric, RunTag

        metrics = [
            Metric(name, value, round(record.time * 1000), record.step)
            for record in records
            if record.kind == "scalars"
            for name, value in {self._name(name): value for name, value in chart_scalars(record).items()}.items()
            if not self._is_sent(name, record.step, value)
        ]
        for start in range(0, len(metrics), MAX_METRICS):
            self._client.log_batch(self.run_id, metrics=metrics[start : start + MAX_METRICS])
        events = {name: line for record in records for name, line in event_lines(record).items()}
        if events:
            tags = [RunTag(metric_name(f"hookpoint.{name}"), line[:MAX_VALUE_CHARACTERS]) for name, line in events.items()]
            self._client.log_batch(self.run_id, tags=tags)
        call_each(self._send_media, records)

    def finish(self) -> None:
        self._client.set_tag(self.run_id, "hookpoint.ending", (self.message or self.status)[:MAX_VALUE_CHARACTERS])
        self._client.set_terminated(self.run_id, self.status.upper())

    def _name(self, metric: str) -> str:
        """Return a metric's name in MLflow. Log a warning if another metric has the same name there."""
        name = metric_name(metric)
        metrics = self._metrics.setdefault(name, [])
        if metric not in metrics:
            metrics.append(metric)
            if len(metrics) > 1:
                logger.warning("MLflow stores %s as one metric, %s; rename all but one", listed(map(repr, metrics)), name)
        return name

    def _is_sent(self, name: str, step: int, value: float) -> bool:
        """Return whether MLflow already has a value of this metric for this step.

        For the step at which the run resumed, return True only if MLflow has exactly this value.
        """
        if not self._is_resumed:
            return False
        restored = -1 if self.restored_step is None else self.restored_step
        if name not in self._sent:
            history = self._client.get_metric_history(self.run_id, name)
            self._sent[name] = {(sent.step, repr(sent.value) if sent.step == restored else "") for sent in history}
        return step >= restored and (step, repr(value) if step == restored else "") in self._sent[name]

    def _send_media(self, record: Record) -> None:
        for name, value in record.values.items() if record.kind in ("image", "text") else ():
            if record.kind == "text":
                self._client.log_text(self.run_id, str(value), f"text/{safe_name(name)}/step-{record.step:08d}.txt")
                continue
            for number, image in enumerate(to_images(name, value)):
                key = safe_name(f"{name}-{number}" if number else name).replace(".", "-")
                milliseconds = round(record.time * 1000)
                self._client.log_image(self.run_id, image, key=key, step=record.step, timestamp=milliseconds, synchronous=True)

    def _experiment_id(self) -> str:
        """Return the experiment's id. Create the experiment if needed.

        With an SQLite database, the experiment's files are stored next to it. Otherwise, MLflow chooses the location.
        """
        from mlflow.exceptions import MlflowException

        name = self.monitor.experiment or os.environ.get("MLFLOW_EXPERIMENT_NAME") or "hookpoint"
        experiment = self._client.get_experiment_by_name(name)
        if experiment is None:
            database = Path(self.address.removeprefix("sqlite:///")).absolute()
            folder = (database.parent / "mlflow-artifacts").as_uri() if self.address.startswith("sqlite:") else None
            try:
                return str(self._client.create_experiment(name, folder))
            except MlflowException:
                experiment = self._client.get_experiment_by_name(name)
                if experiment is None:  # otherwise, another run has just created the experiment
                    raise
        return str(experiment.experiment_id)


class MLflowMonitor(Tracker):
    """Send scalars, settings, events, images and texts to MLflow. A resumed run continues its MLflow run.

    tracking_uri: Server or database. Defaults to the environment variable MLFLOW_TRACKING_URI, then to `mlflow.db` in the
        workdir, with files in `mlflow-artifacts`. To view that database, install the full mlflow package and run `mlflow ui
        --backend-store-uri sqlite:///runs/mine/mlflow.db`. `file://` stores are not supported, because current versions of
        MLflow cannot write them.
    experiment: Defaults to the environment variable MLFLOW_EXPERIMENT_NAME, then to "hookpoint".
    params: Settings to send in addition to the optimizer's settings. Values that look like secrets are masked.

    Names and the x axis are the same as in TFEventWriter: `loss` for log steps and `epoch/loss` for epochs, plotted against the
    step. Characters that MLflow does not allow in a name become `_`; if two names become equal, a warning is logged. MLflow
    stores infinity as the largest float, and does not support histograms. The latest event of each kind is stored as a tag such
    as `hookpoint.stop`. A run ends as FINISHED, FAILED (after an exception) or KILLED (after a signal), with the reason in
    `hookpoint.ending`. After `kill -9`, it stays RUNNING.

    A resumed run continues the MLflow run that its checkpoint names, or else the one in `mlflow.json` in the workdir. A run
    that was killed before its first checkpoint also continues its MLflow run when you start it again. MLflow cannot delete
    values, so if a step runs twice, the first value is kept. Existing settings are not changed. If MLflow no longer has the
    run, the monitor creates a new one.

    A server that does not respond never blocks a step. If more than 1000 records are waiting, the oldest are dropped. After
    three failures in a row, nothing more is sent. When a run ends, it waits up to 10 s for the monitor to send the remaining
    records, and then up to 10 s for the monitor to end the MLflow run. During a run, MLflow retries at most twice, waits 10 s
    for a response and sends no usage data. You can change these three settings with MLflow's environment variables.

    >>> with Loop([MLflowMonitor(params={"seed": 1})], workdir="mine") as run:
    ...     for epoch in run.epochs(1):
    ...         run.log(rate=0.5)
    >>> from mlflow import MlflowClient
    >>> (found,) = MlflowClient("sqlite:///mine/mlflow.db").search_runs(["1"])
    >>> found.info.status, found.data.metrics, found.data.params["seed"]
    ('FINISHED', {'rate': 0.5}, '1')
    """

    keeps = "the id of the MLflow run"
    step_cost: ClassVar[str] = "nothing; when a run starts, importing MLflow and creating a database take about 3 s"

    service = "MLflow"
    remote_class = MLflowRun
    variables: ClassVar[Mapping[str, str]] = {
        "MLFLOW_DISABLE_TELEMETRY": "true",
        "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "2",
        "MLFLOW_HTTP_REQUEST_TIMEOUT": "10",
    }

    def __init__(
        self,
        tracking_uri: str | None = None,
        *,
        experiment: str | None = None,
        params: Mapping[str, Any] | None = None,
        **options: Unpack[Options],
    ) -> None:
        super().__init__(params, {"experiment": experiment}, **options)
        if tracking_uri is not None:
            _check_address(tracking_uri)
        self.tracking_uri = tracking_uri
        self.experiment = experiment

    @property
    def outside(self) -> bool:  # type: ignore[override] # the run waits for a local file
        return not (self.tracking_uri or os.environ.get("MLFLOW_TRACKING_URI") or "sqlite:").startswith("sqlite:")

    def prepare(self, workdir: Path | None) -> str | None:
        address = self.tracking_uri or os.environ.get("MLFLOW_TRACKING_URI")
        if not address:
            if workdir is None:
                logger.warning("MLflowMonitor does nothing without a workdir or a tracking_uri")
                return None
            os.makedirs(workdir, mode=0o700, exist_ok=True)
            address = f"sqlite:///{workdir.absolute() / 'mlflow.db'}"
        _check_address(address)
        load(address)
        if address.startswith("sqlite:"):
            _client(address)  # creates the tables now, not during training
        return address


def load(address: str) -> None:
    """Import MLflow and the modules for a database. Call this on the training thread, because warning filters are global."""
    import mlflow

    if address.startswith(DATABASES):
        missing = [name for name in ("alembic", "sqlalchemy") if find_spec(name) is None]
        if missing:
            raise ImportError(f"MLflow's database needs {' and '.join(missing)}: pip install 'hookpoint[mlflow]'")
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "The ``noload`` loader strategy is deprecated")  # MLflow causes this warning
            import mlflow.store.tracking.sqlalchemy_store
    assert mlflow.MlflowClient is not None


def metric_name(name: str) -> str:
    """Return a name that MLflow accepts: letters, digits and `_-.:/ `. Anything else becomes `_`.

    >>> metric_name("val-error@1"), metric_name("../x"), metric_name("a//b")
    ('val-error_1', '_./x', 'a/_/b')
    """
    cleaned = re.sub(r"[^\w.: /-]", "_", name)
    parts = [part if part not in ("", ".", "..") else "_" + part[1:] for part in cleaned.split("/")]
    return "/".join(parts)[:MAX_NAME_CHARACTERS].rstrip("/")


def _client(address: str) -> MlflowClient:
    from mlflow import MlflowClient
    from mlflow.utils.logging_utils import suppress_logs

    with suppress_logs("mlflow.store.db.utils", re.compile("")):  # MLflow logs the tables that it creates
        return MlflowClient(address)


def _find_run(client: MlflowClient, run_id: str) -> Any:
    """Return the MLflow run with this id, or None if it does not exist or has been deleted."""
    from mlflow.exceptions import MlflowException

    try:
        run = client.get_run(run_id)
    except MlflowException as error:
        if error.error_code != "RESOURCE_DOES_NOT_EXIST":
            raise
        return None
    return run if run.info.lifecycle_stage == "active" else None


def _check_address(uri: Any) -> None:
    """Raise BadArgument unless this is the address of a server or database. MLflow no longer writes file stores."""
    if not isinstance(uri, str) or not uri.strip():
        raise BadArgument(f"MLflowMonitor: tracking_uri must be an address, got {uri!r}.", write='"sqlite:///mlflow.db"')
    if uri.startswith("file:") or ("://" not in uri and uri != "databricks"):
        raise BadArgument(
            "MLflowMonitor: MLflow no longer stores runs in files.",
            write='tracking_uri="sqlite:////path/to/mlflow.db"',
            omit="tracking_uri to use the default: mlflow.db in the workdir",
        )
