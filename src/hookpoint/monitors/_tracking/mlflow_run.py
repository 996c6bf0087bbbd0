"""MLflowRun: a run at an MLflow server or in a database of its own."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import hookpoint._version as version
from hookpoint.core.text.secrets import masked
from hookpoint.monitors._tracking.tracked import Ending, Facts, Kept, pictures, told
from hookpoint.storage.checkpoint.layout import safe_name

if TYPE_CHECKING:
    from mlflow import MlflowClient

    from hookpoint.core.log.records import Record

logger = logging.getLogger("hookpoint")

STATUS = {"finished": "FINISHED", "failed": "FAILED", "killed": "KILLED"}
DATABASES = ("sqlite:", "postgresql", "mysql", "mssql")
MOST_METRICS, MOST_PARAMS = 1000, 100  # in one call
MOST_LETTERS, MOST_WORDS = 250, 5000  # of a name, and of a value
MOST_SAID = 300


class MLflowRun:
    """Open a run, or the one that is kept, and send records to it."""

    safe_step = -1

    def __init__(self, client: MlflowClient, experiment: str, facts: Facts, kept: Kept | None, where: str) -> None:
        self._client = client
        self._facts = facts
        self._known: dict[str, dict[int, set[str]]] | None = None  # of a run that was there before: asked when needed
        found = None if kept is None else _found(client, kept.run_id)
        if found is None:
            if kept is not None:
                logger.warning("MLflow has no run %s any more: a new one is made", kept.run_id)
            tags = {"hookpoint.version": version.__version__, "hookpoint.workdir": str(facts.workdir or "")}
            found = client.create_run(_experiment(client, experiment, where), run_name=facts.name, tags=tags)
        else:
            client.update_run(found.info.run_id, status="RUNNING")
            self._known = {}
        self.run_id: str = found.info.run_id
        self._log_settings(found.data.params)

    def send(self, records: list[Record]) -> None:
        with short_errors():
            self._send(records)

    def finish(self, ending: Ending) -> None:
        with short_errors():
            self._client.set_tag(self.run_id, "hookpoint.ending", (ending.words or ending.status)[:MOST_WORDS])
            self._client.set_terminated(self.run_id, STATUS[ending.status])

    def _send(self, records: list[Record]) -> None:
        from mlflow.entities import Metric, RunTag

        metrics = [
            Metric(name, value, round(record.time * 1000), record.step)
            for record in records
            if record.kind == "scalars"
            for name, value in self._new(record)
        ]
        events = [record for record in records if record.kind == "event" and "epoch_end" not in record.values]
        tags = {f"hookpoint.{name}": told(fields, record.step) for record in events for name, fields in record.values.items()}
        for start in range(0, len(metrics), MOST_METRICS):
            self._client.log_batch(self.run_id, metrics=metrics[start : start + MOST_METRICS])
        if tags:
            self._client.log_batch(
                self.run_id, tags=[RunTag(metric_name(key), words[:MOST_WORDS]) for key, words in tags.items()]
            )
        failures = []
        for record in records:
            try:
                self._send_file(record)
            except Exception as error:  # the others are sent all the same
                failures.append(error)
        if failures:
            raise failures[0]

    def _log_settings(self, present: dict[str, str]) -> None:
        """Log the settings that are not there yet: MLflow lets none be changed."""
        from mlflow.entities import Param

        named = {
            metric_name(name): str(value)[:MOST_WORDS] for name, value in self._facts.settings.items() if value is not None
        }
        params = [Param(name, words) for name, words in named.items() if name not in present]
        for start in range(0, len(params), MOST_PARAMS):
            self._client.log_batch(self.run_id, params=params[start : start + MOST_PARAMS])

    def _new(self, record: Record) -> Iterator[tuple[str, float]]:
        """Yield the values that the run does not have from before a resume."""
        prefix = "epoch/" if record.at == "epoch" and record.mode == "train" else ""
        for given, value in record.scalars().items():
            name = metric_name(prefix + given)
            if not self._has(name, record.step, value):
                yield name, value

    def _has(self, name: str, step: int, value: float) -> bool:
        """Say whether a value was sent before: one of a later step than the restored one, or this very one of that step."""
        if self._known is None:
            return False
        restored = -1 if self._facts.resumed_at is None else self._facts.resumed_at
        if name not in self._known:
            steps = self._known[name] = {}
            for metric in self._client.get_metric_history(self.run_id, name):
                if metric.step >= restored:
                    steps.setdefault(metric.step, set()).add(repr(metric.value))
        values = self._known[name].get(step)
        return values is not None and (step > restored or repr(value) in values)

    def _send_file(self, record: Record) -> None:
        for name, value in record.values.items() if record.kind in ("image", "text") else ():
            if record.kind == "text":
                self._client.log_text(self.run_id, str(value), f"text/{safe_name(name)}/step-{record.step:08d}.txt")
                continue
            for number, pixels in enumerate(pictures(name, value)):
                self._client.log_image(
                    self.run_id,
                    pixels,
                    key=safe_name(f"{name}-{number}" if number else name).replace(".", "-"),
                    step=record.step,
                    timestamp=round(record.time * 1000),
                    synchronous=True,
                )


@contextmanager
def short_errors() -> Iterator[None]:
    """Make one line of what MLflow fails with: it comes with tracebacks of four packages, and addresses may hold secrets."""
    from mlflow.exceptions import MlflowException

    try:
        yield
    except MlflowException as error:
        lines = masked(str(error)).splitlines() or [type(error).__name__]
        raise ConnectionError(lines[0][:MOST_SAID]) from None


def load(where: str) -> None:
    """Import what a store needs, on the thread that may: filters of warnings are for the whole process."""
    import mlflow

    if where.startswith(DATABASES):
        missing = [name for name in ("alembic", "sqlalchemy") if find_spec(name) is None]
        if missing:
            raise ImportError(f"MLflow's database needs {' and '.join(missing)}: pip install 'hookpoint[mlflow]'")
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "The ``noload`` loader strategy is deprecated")  # SQLAlchemy's, of MLflow
            import mlflow.store.tracking.sqlalchemy_store
    assert mlflow.MlflowClient is not None


def metric_name(name: str) -> str:
    """Return a name as MLflow takes it: what is no letter, digit or one of `_-.:/ ` becomes `_`.

    >>> metric_name("val-error@1"), metric_name("../x"), metric_name("a//b")
    ('val-error_1', '_./x', 'a/_/b')
    """
    cleaned = "".join(letter if letter.isalnum() or letter in "_-.: /" else "_" for letter in name)
    parts = [part if part not in ("", ".", "..") else "_" + part[1:] for part in cleaned.split("/")]
    return "/".join(parts)[:MOST_LETTERS].rstrip("/")


def _found(client: MlflowClient, run_id: str) -> Any:
    """Return a run, or None where there is none of this id any more."""
    from mlflow.exceptions import MlflowException

    try:
        found = client.get_run(run_id)
    except MlflowException as error:
        if error.error_code != "RESOURCE_DOES_NOT_EXIST":
            raise
        return None
    return found if found.info.lifecycle_stage == "active" else None


def _experiment(client: MlflowClient, name: str, where: str) -> str:
    """Return the id of an experiment, made where it is not there; files go beside a database, or where a server puts them."""
    from mlflow.exceptions import MlflowException

    found = client.get_experiment_by_name(name)
    if found is not None:
        return str(found.experiment_id)
    database = Path(where.removeprefix("sqlite:///"))
    place = (database.parent.absolute() / "mlflow-artifacts").as_uri() if where.startswith("sqlite:") else None
    try:
        return str(client.create_experiment(name, artifact_location=place))
    except MlflowException:  # another run has made it meanwhile
        found = client.get_experiment_by_name(name)
        if found is None:
            raise
        return str(found.experiment_id)
