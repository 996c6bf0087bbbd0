"""MissingMetrics: find metrics that are read but never logged, and report them as early as possible."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from hookpoint.core.errors import MissingMetric, UnknownMetric
from hookpoint.core.hooks.entry import Entry
from hookpoint.core.log.logbook import KNOWN_PREFIXES
from hookpoint.core.log.metric_names import MetricNames
from hookpoint.core.logger import logger
from hookpoint.core.text.spelling import near_miss

if TYPE_CHECKING:
    from hookpoint.core.run.run import Run


OTHER_EVALUATION = re.compile(r"(valid|eval|evaluation|test|dev)[_\-/]")  # common prefixes for evaluations in users' own code


class Read(NamedTuple):
    """The name of a metric, and the name of the callback or other object that reads it."""

    metric: str
    reader: str
    entry: Entry | None = None


class MissingMetrics:
    """Check that every metric that is read is also logged: before the run, after its first epochs, and at its end.

    Before the run, an unknown name raises an error if nothing could log it. Otherwise, a likely typo causes a warning. During
    the run, a metric is missing once everything that could log it has run: scheduled callbacks have been called and, for a
    validation metric, validation has run. A missing metric raises an error when the next epoch begins. If there is no next
    epoch, or the reader's errors do not end the run, it causes a warning.

    `entries` contains the callbacks on all ranks, so that every rank makes the same checks. `local` contains the callbacks on
    this rank. `has_validated` returns whether a validation pass has finished. `gather` collects a value from all ranks. It is
    None for a single rank.
    """

    def __init__(
        self,
        entries: Sequence[Entry],
        local: Sequence[Entry],
        names: MetricNames,
        *,
        has_validated: Callable[[], bool],
        gather: Callable[[Any, str], list[Any]] | None,
    ) -> None:
        self._has_validated, self._gather = has_validated, gather
        self._entries, self._local, self._names = entries, local, names
        reads = [Read(metric, entry.name, entry) for entry in entries for metric in entry.declared("reads")]
        self._pending = reads + [Read(metric, reader) for reader, metric in names.reads.items()]
        self._epochs, self._has_warned = 0, False

    @property
    def _sometimes(self) -> set[str]:
        """The metrics that callbacks log only sometimes. A callback may add names at on_setup, when it knows the run."""
        return {name for entry in self._entries for name in entry.declared("may_write")}

    # Before the run

    def check_names(self, *, is_chief: bool) -> None:
        """Raise UnknownMetric for an unknown name. If some code may log undeclared names, only warn about a likely typo."""
        written = {name for entry in self._entries for name in entry.declared("writes")}
        known = sorted(self._names.known | written | self._sometimes)
        unknown = [read for read in self._pending if read.metric not in known]
        if not unknown:
            return
        is_open = any(map(could_log_anything, self._entries)) or self._names.can_be_more()
        for read in unknown:
            meant = near_miss(read.metric, known)
            if not is_open:
                no_validation = _is_of_validation(read.metric) and self._names.validates is False
                raise UnknownMetric(read.reader, read.metric, known, meant, validates=not no_validation)
            if meant is not None and is_chief:
                logger.warning("%s reads '%s', which nothing logs; did you mean '%s'?", read.reader, read.metric, meant)

    # During the run

    def check_before_epoch(self, run: Run) -> None:
        """Raise MissingMetric if earlier epochs should have logged a metric. Skip the check before a process's first epoch."""
        self._epochs += 1
        if self._epochs == 1 or not self._pending or not run.epoch_complete:
            return
        logged = {read.metric for read in self._pending if read.metric in run.metrics}
        waits = self._waits(run)
        if self._gather is not None:
            gathered = self._gather([sorted(logged), sorted(waits)], "the metrics that are read")
            logged, waits = (set().union(*column) for column in zip(*gathered, strict=True))
        self._pending = [read for read in self._pending if read.metric not in logged]
        for read in [read for read in self._pending if read.metric not in waits]:
            if read.entry is None or read.entry.on_error == "raise":
                raise self._error(run, read)
            self._pending.remove(read)
            if run.is_chief:
                logger.warning("%s", self._error(run, read))

    def warn_at_end(self, run: Run) -> None:
        """Warn about metrics that were never logged. This does not raise an error, because training is done."""
        for read in self._pending if self._epochs and run.is_chief else ():
            if read.metric not in run.metrics:
                logger.warning("%s", self._error(run, read))

    def _waits(self, run: Run) -> set[str]:
        """Return the metrics that may still be logged, because a reader or writer on this rank has not run yet."""
        has_validated = self._has_validated() or self._names.validates is False or self._has_measured(run)
        sometimes = self._sometimes
        waits = {read.metric for read in self._pending if read.metric in sometimes or read.metric in run.summaries}
        others_wait = any(_waits(entry, has_validated) for entry in self._local if could_log_anything(entry))
        for read in self._pending:
            writers = self._writers(read.metric)
            reader = read.entry if read.entry in self._local else None
            reader_waits = reader is not None and (_waits(reader, has_validated=True) or _starts_later(reader, run))
            writer_waits = any(_waits(writer, has_validated) for writer in writers) if writers else others_wait
            if reader_waits or writer_waits:
                waits.add(read.metric)
            elif not writers and self._is_not_measured_yet(run, read.metric, has_validated):
                waits.add(read.metric)
                self._warn_no_validation(run, read)
        return waits

    def _is_not_measured_yet(self, run: Run, metric: str, has_validated: bool) -> bool:
        """Return whether a metric comes from an evaluation that has not run yet. Many loops evaluate only every few epochs."""
        other = OTHER_EVALUATION.match(metric)
        if other is not None:
            return not any(name.startswith(other[0]) for name in run.metrics)
        return not has_validated and _is_of_validation(metric)

    def _has_measured(self, run: Run) -> bool:
        """Return whether the user's loop has validated without a validation pass.

        The loop has validated if it has logged other validation metrics in this epoch.
        """
        logged = run.metrics.of_epoch(run.epoch) if self._names.validates is None else []
        return any(_is_of_validation(name) and not self._writers(name) for name in logged)

    def _writers(self, metric: str) -> list[Entry]:
        return [entry for entry in self._local if metric in entry.declared("writes")]

    def _warn_no_validation(self, run: Run, read: Read) -> None:
        """Warn once that a user's loop has not validated yet. It may validate only every few epochs."""
        if self._names.validates is None and not self._has_warned and run.is_chief and read.metric not in run.metrics:
            self._has_warned = True
            logger.warning("%s reads '%s', but no validation has run yet", read.reader, read.metric)

    def _error(self, run: Run, read: Read) -> MissingMetric:
        writers = self._writers(read.metric)
        why = f"which nothing has logged by the end of epoch {run.epoch}"
        if writers:
            why = f"which {writers[0].name} declares but did not log"
        meant = near_miss(read.metric, run.metrics)
        cures = {} if meant is None else {"read": f"'{meant}'"}
        if read.entry is not None:
            cures["add"] = ".when(Every(epochs=k)) to it, if the metric is logged only every k epochs"
        return MissingMetric(read.metric, run.metrics, reader=read.reader, why=why, **cures)


def could_log_anything(entry: Entry) -> bool:
    """Return whether a callback could log undeclared names, because its class or a handler is not defined in hookpoint."""
    subject = entry.subject
    owner = subject if hasattr(subject, "__code__") else type(subject)
    functions = [handler.function for handler in entry.handlers]
    return not all(map(is_ours, (owner, *functions))) or bool(getattr(subject, "writes_anything", False))


def is_ours(thing: Any) -> bool:
    """Return whether a class or function is defined in hookpoint."""
    function = getattr(thing, "func", thing)  # a functools.partial has no __module__
    return str(getattr(function, "__module__", "")).partition(".")[0] == "hookpoint"


def _starts_later(entry: Entry, run: Run) -> bool:
    """Return whether the run is still in the first epochs, which a callback such as EarlyStopping may skip."""
    return run.epoch <= getattr(entry.subject, "start_from_epoch", 0)


def _is_of_validation(metric: str) -> bool:
    return metric.startswith(KNOWN_PREFIXES["val"])


def _waits(entry: Entry, has_validated: bool) -> bool:
    """Return whether a callback may run later: it has a condition, has not been due yet, or waits for a validation pass."""
    is_gated = any(getattr(pipeline, "gate", None) is not None for pipeline in entry.path)
    validates = any(handler.point.startswith("on_val_") for handler in entry.handlers)
    return is_gated or not all(armed.has_fired for armed in entry.armed.values()) or (validates and not has_validated)
