"""MissingMetrics: find metrics that are read and that nobody logs, as early as that can be known."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from hookpoint.core.errors import MissingMetric, UnknownMetric
from hookpoint.core.hooks.entry import Entry
from hookpoint.core.log.logbook import KNOWN_PREFIXES
from hookpoint.core.log.metric_names import MetricNames
from hookpoint.core.text.spelling import near_miss

if TYPE_CHECKING:
    from hookpoint.core.run.run import Run

logger = logging.getLogger("hookpoint")

OTHER_EVALUATION = re.compile(r"(valid|eval|evaluation|test|dev)[_\-/]")  # names that loops use for passes of their own


class Read(NamedTuple):
    """A metric and who reads it: a callback, or something else that the runner knows of."""

    metric: str
    reader: str
    entry: Entry | None = None


class MissingMetrics:
    """Check the metrics that are read: before the run, after its first epochs, and at its end.

    Before the run, an unknown name is refused if nothing could log it, and otherwise a near miss is a warning. A metric is
    missing once everyone who could log it has had a turn: callbacks with a schedule have been called, validation has run where
    the name belongs to one. Then it is an error when the next epoch begins. If there is no next epoch, or the reader's failures
    end no run, it is a warning.

    `entries` are the callbacks of all ranks, so that every rank checks the same; `here` are those of this one. `has_validated`
    says whether a validation pass is over; `gather` returns what each process says, None where there is one.
    """

    def __init__(
        self,
        entries: Sequence[Entry],
        here: Sequence[Entry],
        names: MetricNames,
        *,
        has_validated: Callable[[], bool],
        gather: Callable[[Any, str], list[Any]] | None,
    ) -> None:
        self._has_validated, self._gather = has_validated, gather
        self._entries, self._here, self._names = entries, here, names
        reads = [Read(metric, entry.name, entry) for entry in entries for metric in entry.declared("reads")]
        self._pending = reads + [Read(metric, reader) for reader, metric in names.reads.items()]
        self._sometimes = {name for entry in entries for name in entry.declared("may_write")}
        self._epochs = 0
        self._has_warned = False

    # Before the run

    def check_names(self, *, is_chief: bool) -> None:
        """Refuse an unknown name if the names are closed; else warn of one that is nearly known."""
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
                logger.warning(
                    "%s reads '%s', which nothing is known to log; did you mean '%s'?", read.reader, read.metric, meant
                )

    # In the run

    def check_before_epoch(self, run: Run) -> None:
        """Raise for a metric that the epochs so far should have logged; the first epoch of this process has none before it."""
        self._epochs += 1
        if self._epochs == 1 or not self._pending or not run.epoch_complete:
            return
        found, waits = self._found(run), self._waits(run)
        if self._gather is not None:
            said = self._gather([sorted(found), sorted(waits)], "the metrics that are read")
            found, waits = ({name for one in said for name in one[part]} for part in (0, 1))
        self._pending = [read for read in self._pending if read.metric not in found]
        for read in [one for one in self._pending if one.metric not in waits]:
            if read.entry is None or read.entry.on_error == "raise":
                raise self._error(run, read)
            self._pending.remove(read)
            if run.is_chief:
                logger.warning("%s", self._error(run, read))

    def say_at_end(self, run: Run) -> None:
        """Warn of metrics that never came: the training is done, and its result counts."""
        for read in self._pending if self._epochs and run.is_chief else ():
            if read.metric not in run.metrics:
                logger.warning("%s", self._error(run, read))

    def _found(self, run: Run) -> set[str]:
        return {read.metric for read in self._pending if read.metric in run.metrics}

    def _waits(self, run: Run) -> set[str]:
        """Return the metrics that may still come: not everyone who reads or could log them here has had a turn."""
        has_validated = self._has_validated() or self._names.validates is False or self._has_measured(run)
        waits = {read.metric for read in self._pending if read.metric in self._sometimes or read.metric in run.summaries}
        others_wait = any(_waits(entry, has_validated) for entry in self._here if could_log_anything(entry))
        for read in self._pending:
            writers = self._writers(read.metric)
            reader_waits = read.entry in self._here and (_waits(read.entry, True) or _starts_later(read.entry, run))
            writer_waits = any(_waits(writer, has_validated) for writer in writers) if writers else others_wait
            if reader_waits or writer_waits:
                waits.add(read.metric)
            elif not writers and self._is_not_measured_yet(run, read.metric, has_validated):
                waits.add(read.metric)
                self._say_no_validation(run, read)
        return waits

    def _is_not_measured_yet(self, run: Run, metric: str, has_validated: bool) -> bool:
        """Say whether a metric is one of an evaluation that has not run: many loops evaluate every few epochs."""
        other = OTHER_EVALUATION.match(metric)
        if other is not None:
            return not any(name.startswith(other[0]) for name in run.metrics)
        return not has_validated and _is_of_validation(metric)

    def _has_measured(self, run: Run) -> bool:
        """Say whether a loop of the user's own validates without a pass: the epoch has logged other metrics of validation."""
        logged = run.metrics.of_epoch(run.epoch) if self._names.validates is None else []
        return any(_is_of_validation(name) and not self._writers(name) for name in logged)

    def _writers(self, metric: str) -> list[Entry]:
        return [entry for entry in self._here if metric in entry.declared("writes")]

    def _say_no_validation(self, run: Run, read: Read) -> None:
        """Say once, in a loop of the user's own, that it has not validated yet: it may do so every few epochs."""
        if self._names.validates is None and not self._has_warned and run.is_chief and read.metric not in run.metrics:
            self._has_warned = True
            logger.warning("%s reads '%s', and no validation has run so far", read.reader, read.metric)

    def _error(self, run: Run, read: Read) -> MissingMetric:
        writers = self._writers(read.metric)
        why = f"which nothing has logged by the end of epoch {run.epoch}"
        if writers:
            why = f"which {writers[0].name} was to write and did not"
        meant = near_miss(read.metric, run.metrics)
        cures = {} if meant is None else {"read": f"'{meant}'"}
        if read.entry is not None:
            cures["wait"] = ".when(Every(epochs=k)) on it, if the metric is logged every k epochs only"
        return MissingMetric(read.metric, run.metrics, reader=read.reader, why=why, **cures)


def could_log_anything(entry: Entry) -> bool:
    """Say whether a callback could log names that it does not declare: it, or one of its handlers, is not hookpoint's."""
    subject = entry.subject
    owner = subject if hasattr(subject, "__code__") else type(subject)
    functions = [handler.function for handler in entry.handlers]
    are_ours = all(is_ours(one) for one in (owner, *functions))
    return not are_ours or bool(getattr(subject, "writes_anything", False))


def is_ours(thing: Any) -> bool:
    """Say whether a class or function is defined in hookpoint."""
    function = getattr(thing, "func", thing)  # a partial has no module
    return str(getattr(function, "__module__", "")).partition(".")[0] == "hookpoint"


def _starts_later(entry: Entry | None, run: Run) -> bool:
    """Say whether a callback leaves out the first epochs, as EarlyStopping may, and this is one of them."""
    return entry is not None and run.epoch <= getattr(entry.subject, "start_from_epoch", 0)


def _is_of_validation(metric: str) -> bool:
    return metric.startswith(KNOWN_PREFIXES["val"])


def _waits(entry: Entry | None, has_validated: bool) -> bool:
    """Say whether a callback may not have had a turn: it has a condition, was not due yet, or waits for a validation."""
    if entry is None:
        return False
    is_gated = any(getattr(pipeline, "gate", None) is not None for pipeline in entry.path)
    validates = any(handler.point.startswith("on_val_") for handler in entry.handlers)
    return is_gated or not all(one.has_fired for one in entry.armed.values()) or (validates and not has_validated)
