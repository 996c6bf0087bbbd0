"""MLflowMonitor: what was logged, for MLflow."""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hookpoint.core.errors import BadArgument
from hookpoint.monitors._tracking.mlflow_run import MLflowRun, load, short_errors
from hookpoint.monitors._tracking.tracked import Facts, Kept, Tracked
from hookpoint.monitors._tracking.tracker import Tracker

if TYPE_CHECKING:
    from typing import Unpack

    from mlflow import MlflowClient

    from hookpoint.core.callback.callback import Options

logger = logging.getLogger("hookpoint")


class MLflowMonitor(Tracker):
    """Send scalars, settings, events, images and texts to MLflow, as one MLflow run for each run, also after a resume.

    `tracking_uri` is a server or a database; else the variable MLFLOW_TRACKING_URI says it, else it is `mlflow.db` in the
    workdir, with files in `mlflow-artifacts`: `mlflow ui --backend-store-uri sqlite:///runs/mine/mlflow.db`, of the whole
    MLflow, shows it. Its `file://` stores are refused, as today's MLflow writes none. `experiment` is "hookpoint" unless it or
    MLFLOW_EXPERIMENT_NAME says otherwise. `params` are settings besides those of the optimizer; what looks like a secret is
    masked.

    Names and the x axis are those of TFEventWriter: `loss` of log steps, `epoch/loss` of epochs, by step. What MLflow does not
    take in a name becomes `_`; it keeps infinity as the largest number there is, and has no histograms. What happened is in
    tags such as `hookpoint.stop`, of each kind the latest. A run ends as FINISHED, FAILED (an exception) or KILLED (a signal),
    with why in `hookpoint.ending`; one that was killed with -9 stays RUNNING.

    A resumed run goes on with the MLflow run that its checkpoint names, or else `mlflow.json` in the workdir, and so does one
    that was killed before its first checkpoint. MLflow deletes no value, so of a step that runs twice the first value stands,
    and the second is not sent; settings that are there stay as they are. A run that MLflow has no more is made anew.

    A server that does not answer never holds up a step: when 1000 records wait, the oldest are dropped, after three failures
    in a row it is left alone, and the end of a run waits ten seconds for records and ten for MLflow. For as long as the run
    lasts, MLflow tries again twice at most, waits ten seconds for an answer, and sends no usage data, where its variables do
    not say otherwise.

    Listens to on_setup, on_run_begin, on_records, on_exception and on_run_end. Keeps the id of the MLflow run in the
    checkpoint. Runs on the chief. A step pays nothing; the start of a run pays for the import and a new database, about three
    seconds.

    >>> with Loop([MLflowMonitor(params={"seed": 1})], workdir="mine") as run:
    ...     for epoch in run.epochs(1):
    ...         run.log(rate=0.5)
    >>> from mlflow import MlflowClient
    >>> (found,) = MlflowClient("sqlite:///mine/mlflow.db").search_runs(["1"])
    >>> found.info.status, found.data.metrics, found.data.params["seed"]
    ('FINISHED', {'rate': 0.5}, '1')
    """

    service = "MLflow"
    package = "mlflow"
    extra = "mlflow"
    file_name = "mlflow.json"
    environment: Mapping[str, str] = {
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
        super().__init__(params, **options)
        if tracking_uri is not None:
            _refuse(tracking_uri)
        if experiment is not None and not (isinstance(experiment, str) and experiment.strip()):
            raise BadArgument(f"MLflowMonitor(experiment={experiment!r}) is no name.", give='"mine"')
        self.tracking_uri = tracking_uri
        self.experiment = experiment

    @property
    def outside(self) -> bool:  # type: ignore[override]  # a file of this machine is waited for
        return not (self.tracking_uri or os.environ.get("MLFLOW_TRACKING_URI") or "sqlite:").startswith("sqlite:")

    def where(self, workdir: Path | None) -> str | None:
        given = self.tracking_uri or os.environ.get("MLFLOW_TRACKING_URI")
        if given:
            return given
        return None if workdir is None else f"sqlite:///{workdir.absolute() / 'mlflow.db'}"

    def prepare(self, workdir: Path | None) -> None:
        where = self.where(workdir)
        if where is None:
            logger.warning("MLflowMonitor does nothing without a workdir or a tracking_uri")
            return
        _refuse(where)
        load(where)
        if where.startswith("sqlite:"):
            if self.where(None) is None:
                os.makedirs(workdir or ".", mode=0o700, exist_ok=True)
            self._client(where)  # which makes the tables, now and not while it trains

    def open_run(self, facts: Facts, kept: Kept | None) -> Tracked:
        where = self.where(facts.workdir)
        assert where is not None
        experiment = self.experiment or os.environ.get("MLFLOW_EXPERIMENT_NAME") or "hookpoint"
        with short_errors():
            return MLflowRun(self._client(where), experiment, facts, kept, where)

    def _client(self, where: str) -> MlflowClient:
        from mlflow import MlflowClient

        quiet = logging.getLogger("mlflow.store.db.utils")
        level = quiet.level
        quiet.setLevel(logging.WARNING)  # it tells of the tables it makes
        try:
            return MlflowClient(where)
        finally:
            quiet.setLevel(level)


def _refuse(uri: Any) -> None:
    """Refuse what is no address, and files, which MLflow has given up."""
    if not isinstance(uri, str) or not uri.strip():
        raise BadArgument(f"MLflowMonitor(tracking_uri={uri!r}) is no address.", write='"sqlite:///mlflow.db"')
    if uri.startswith("file:") or ("://" not in uri and uri != "databricks"):
        raise BadArgument(
            "MLflowMonitor: MLflow keeps runs in files no more.",
            write='tracking_uri="sqlite:////where/mlflow.db"',
            leave="or it out: then it is mlflow.db in the workdir",
        )
