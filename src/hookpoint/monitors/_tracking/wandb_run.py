"""WandbRun: a run of Weights & Biases, online or in a folder."""

from __future__ import annotations

import html
import os
import sys
from collections import deque
from collections.abc import Mapping
from time import monotonic
from typing import TYPE_CHECKING, Any

from hookpoint.monitors._tracking.tracked import Ending, Facts, Kept, array, pictures, told

if TYPE_CHECKING:
    from hookpoint.core.log.records import Record

EXIT_CODES = {"finished": 0, "failed": 1, "killed": 255}  # the last is wandb's own for Ctrl-C
SERVICE = "WANDB_SERVICE"  # the variable that leads to wandb's process, where there is one
FLUSH_SECONDS = 1.0  # until what wandb was given is in its file; a kill loses what is younger
SETTINGS = {
    "console": "off",
    "disable_code": True,
    "disable_git": True,
    "finish_timeout": 8.0,  # less than the end of a run waits
    "init_timeout": 6.0,  # less than the end of a run waits for records
    "silent": True,
    "symlink": False,
    "x_disable_machine_info": True,
    "x_disable_meta": True,
    "x_disable_stats": True,
    "x_save_requirements": False,
    "x_transaction_log_flush_interval": FLUSH_SECONDS,
}


class WandbRun:
    """Open a run, also one that is kept, and send records to it.

    Rows of wandb are by step, and one that is over cannot be added to: what a resumed run sends again is left out. Up to which
    step wandb has everything is known from its server, and otherwise from a small file.
    """

    def __init__(self, run_id: str, facts: Facts, kept: Kept | None, where: str, given: Mapping[str, Any]) -> None:
        import wandb

        self.run_id = run_id
        self._owns_service = SERVICE not in os.environ
        before = sys.exit, sys.excepthook
        try:
            self._run: Any = wandb.init(
                id=run_id,
                name=facts.name,
                dir=where,
                config={name: value for name, value in facts.settings.items() if value is not None},
                resume="allow",
                reinit="create_new",
                **given,
            )
        except BaseException:
            if self._owns_service:
                wandb.teardown()
            raise
        finally:
            sys.exit, sys.excepthook = before  # wandb hooks itself in, to know how a script ended
        had = -1 if kept is None else kept.step
        self._after = max(had, self._run.starting_step - 1) if kept is not None or self._run.resumed else -1
        self._safe = self._after
        self._over: deque[tuple[float, int]] = deque()  # when wandb was given the last of a step
        self._step: int | None = None

    @property
    def safe_step(self) -> int:
        while self._over and self._over[0][0] + 2 * FLUSH_SECONDS < monotonic():
            self._safe = self._over.popleft()[1]
        return self._safe

    def send(self, records: list[Record]) -> None:
        failures = []
        for record in records:
            try:
                self._send(record)
            except Exception as error:  # the others are sent all the same
                failures.append(error)
        if failures:
            raise failures[0]

    def finish(self, ending: Ending) -> None:
        import wandb

        try:
            self._run.summary.update({"hookpoint/ending": ending.words or ending.status})
            self._run.finish(exit_code=EXIT_CODES[ending.status])
            self._over.clear()
            self._safe = self._safe if self._step is None else self._step
        finally:
            if self._owns_service and wandb.run is None:
                wandb.teardown()

    def _send(self, record: Record) -> None:
        if record.kind == "event":
            for name, fields in record.values.items() if "epoch_end" not in record.values else ():
                self._run.summary.update({f"hookpoint/{name}": told(fields, record.step)})
        elif record.step > self._after:
            if self._step is not None and record.step != self._step:
                self._over.append((monotonic(), self._step))
            self._step = record.step
            self._run.log(_values(record), step=record.step)


def settings(**given: Any) -> Any:
    """Return wandb's settings, those that keep it to itself among them."""
    import wandb

    known = wandb.Settings.model_fields
    return wandb.Settings(**{name: value for name, value in {**SETTINGS, **given}.items() if name in known or name in given})


def _values(record: Record) -> dict[str, Any]:
    """Return what wandb is to log, by name."""
    import wandb

    if record.kind == "scalars":
        prefix = "epoch/" if record.at == "epoch" and record.mode == "train" else ""
        return {prefix + name: value for name, value in record.scalars().items()}
    values: dict[str, Any] = {}
    for name, value in record.values.items():
        name = _media_name(name)
        if record.kind == "image":
            several = [wandb.Image(pixels) for pixels in pictures(name, value)]
            values[name] = several if len(several) > 1 else several[0]
        elif record.kind == "histogram":
            numbers = array(value)
            finite = numbers[abs(numbers) < float("inf")] if numbers.dtype.kind == "f" else numbers
            if finite.size:
                values[name] = wandb.Histogram(finite.ravel())
        elif record.kind == "text":
            values[name] = wandb.Html(f"<pre>{html.escape(str(value))}</pre>", inject=False)
    return values


def _media_name(name: str) -> str:
    """Return a name that wandb may make a file of, which is in its folder and nowhere else."""
    return "/".join(part if part.strip(".") else "_" for part in name.replace("\\", "/").replace("\0", "_").split("/"))
