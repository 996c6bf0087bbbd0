"""ScalarPrinter: print the values of each epoch."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterable, Mapping
from typing import Any, ClassVar, Unpack

from hookpoint.core.callback.callback import Callback, Options
from hookpoint.core.errors import BadArgument, BadSchedule
from hookpoint.core.log.records import Record
from hookpoint.core.loop.services import machine_of
from hookpoint.core.run.run import Run
from hookpoint.core.text.terminal import printable, say
from hookpoint.monitors._row_values import EPOCH, EpochValues


class ScalarPrinter(Callback):
    """Print scalars to stderr at the end of each epoch, sorted by name.

    The scalars of an epoch are the training means, the validation results, and the values that were logged between passes.

    enable_step: Also print the means at each log step.
    enable_epoch: Print the values of each epoch.
    whitelist, blacklist: Regular expressions to search for in each name. A name is printed if it matches the whitelist (if
        there is one) and does not match the blacklist.
    every_n_epochs: Print only every n-th epoch and the last one. For example, 10 prints epochs 10, 20 and so on.

    On a narrow terminal, the values continue on the next lines.

    >>> ScalarPrinter(blacklist=["^learning_rate", "/ema$"])  # doctest: +ELLIPSIS
    <...ScalarPrinter object at ...>
    """

    ranks = "chief"
    on_error = "warn"
    keeps: ClassVar[str] = "the values of the current epoch"
    step_cost: ClassVar[str] = "nothing"

    def __init__(
        self,
        enable_step: bool = False,
        enable_epoch: bool = True,
        whitelist: Iterable[str] | None = None,
        blacklist: Iterable[str] | None = None,
        *,
        every_n_epochs: int = 1,
        **options: Unpack[Options],
    ) -> None:
        super().__init__(**options)
        self.enable_step = enable_step
        self.enable_epoch = enable_epoch
        if not isinstance(every_n_epochs, int) or isinstance(every_n_epochs, bool) or every_n_epochs < 1:
            raise BadSchedule(f"ScalarPrinter: every_n_epochs must be an integer ≥ 1, got {every_n_epochs!r}.")
        self.every_n_epochs = every_n_epochs
        self._whitelist = None if whitelist is None else _patterns("whitelist", whitelist)
        self._blacklist = _patterns("blacklist", () if blacklist is None else blacklist)
        self._values = EpochValues()

    def on_run_begin(self, run: Run) -> None:
        self._values = EpochValues(machine_of(run).clocks.epochs_done)

    def on_records(self, records: list[Record], run: Run) -> None:
        for record in records:
            if record.kind == "scalars" and record.at == "step" and self.enable_step:
                self._print(f"step {record.step}", record.scalars())
            self._values.take_restored(record, run)  # the previous run printed these values when it ended
            row = self._values.take(record) if self.enable_epoch else None
            if row is not None and (record.epoch % self.every_n_epochs == 0 or record.epoch == run.max_epochs):
                note = "" if record.values["epoch_end"]["complete"] else " (cut short)"
                del row[EPOCH]
                self._print(f"{_epoch(record.epoch, run)}{note}", row)

    def on_run_end(self, run: Run) -> None:
        is_in_epoch = self._values.is_in_epoch(run)  # an exception interrupted the epoch
        self._print(f"{_epoch(run.epoch, run)} (interrupted)" if is_in_epoch else "after the last epoch", self._values.finish())

    def state_dict(self) -> dict[str, Any]:
        return self._values.state_dict() if self._values.gathered else {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._values.load_state_dict(state, self._run)

    def _print(self, title: str, values: Mapping[str, float]) -> None:
        shown = [f"{printable(name)}: {values[name]:.5g}" for name in sorted(values) if self._is_wanted(name)]
        if shown:
            say("\n".join(_lines(title, shown, _width())))

    def _is_wanted(self, name: str) -> bool:
        listed = self._whitelist is None or any(pattern.search(name) for pattern in self._whitelist)
        return listed and not any(pattern.search(name) for pattern in self._blacklist)


def _epoch(epoch: int, run: Run) -> str:
    return f"epoch {epoch}" if run.max_epochs is None else f"epoch {epoch}/{run.max_epochs}"


def _patterns(argument: str, patterns: Iterable[str]) -> list[re.Pattern[str]]:
    try:
        return [re.compile(pattern) for pattern in ([patterns] if isinstance(patterns, str) else patterns)]
    except (re.error, TypeError) as error:
        problem = f"{argument} must be a list of regular expressions, got {patterns!r}: {error}"
        raise BadArgument(f"ScalarPrinter: {problem}.", write=f'{argument}=["^loss", "/ema$"]') from None


def _lines(title: str, shown: list[str], width: float) -> list[str]:
    """Return the title and the values, on as many lines as needed. A name and its value stay together."""
    lines = [title]
    for value in shown:
        if len(lines[-1]) + len(value) + 2 < width:
            lines[-1] += f"  {value}"
        else:
            lines.append(f"    {value}")
    return lines


def _width() -> float:
    """Return the terminal's number of columns, or infinity if stderr is not a terminal.

    Lines in a log file are therefore never wrapped: each epoch has one line, which is easier to search.
    """
    try:
        if sys.stderr is None or not sys.stderr.isatty():
            return float("inf")
        return os.get_terminal_size(sys.stderr.fileno()).columns or 80
    except (OSError, ValueError):  # stderr or the terminal is closed
        return float("inf")
