"""RunRecord: write a run's setup, progress and outcome as plain values that people and programs can read."""

from __future__ import annotations

import os
import shlex
import sys
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, is_dataclass
from datetime import datetime
from time import monotonic
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from hookpoint.core.checkpoint.stateful import OBJECTS
from hookpoint.core.checkpoint.workdir_callbacks import end_workdir
from hookpoint.core.errors import BadArgument
from hookpoint.core.hooks.costs import StepShare
from hookpoint.core.logger import logger
from hookpoint.core.points import BY_NAME
from hookpoint.core.run.verdicts import Reached
from hookpoint.core.text.plain_values import plain
from hookpoint.core.text.secrets import masked

if TYPE_CHECKING:
    from hookpoint.core.checkpoint.crashes import Crashes
    from hookpoint.core.checkpoint.store import ResumableStore
    from hookpoint.core.hooks.hooks import Hooks
    from hookpoint.core.loop._passes import Pass
    from hookpoint.core.run.run import Run
    from hookpoint.core.schedule.clocks import Clocks


class RunRecord:
    """Write a run's setup, progress and outcome to the store.

    An error in the store does not end the run. Secrets in the config, the command, the error and the stop reason are masked.
    """

    def __init__(
        self,
        run: Run,
        clocks: Clocks,
        store: ResumableStore | None,
        crashes: Crashes,
        *,
        describe_data: Callable[[Any], dict[str, Any]],
        lineage: Sequence[Mapping[str, Any]],
    ) -> None:
        self._run, self._clocks, self._crashes = run, clocks, crashes
        self._describe_data, self._lineage = describe_data, list(lineage)
        self._data: dict[str, Any] = {}
        self._described_loader: Callable[[], Any] = lambda: None
        self._describe = getattr(store, "describe", None)
        self._next_costs = 0.0
        self.share = StepShare()
        self._first_iteration: int | None = None  # the iteration at which this process starts; costs are measured per process

    def begin(self, identity: Mapping[str, Any], inexact: list[str]) -> None:
        if self._describe is None:
            return
        run, self._data = self._run, self._described_data()
        self._write(
            id=uuid4().hex,
            name=run.name,
            status="running",
            reason="",
            started=_now(),
            ended=None,
            host=os.uname().nodename,
            pid=os.getpid(),
            folder=os.getcwd(),
            command=shlex.join(masked(_command())),
            config=masked(run.config),
            hyper=masked({name: run.hyper[name] for name in run.hyper}),
            objects={name: type(item).__name__ for name in OBJECTS if (item := getattr(run, name)) is not None},
            callbacks=[masked(entry.name) for entry in run.hooks.entries],
            savers=[masked(entry.name) for entry in run.hooks.entries if getattr(entry.subject, "saves", False)],
            schedule=_schedule(run.hooks),
            identity=identity,
            **({"lineage": self._lineage} if self._lineage and not run.resuming else {}),
            **({"data": self._data} if self._data else {}),
            **({"inexact": [masked(reason) for reason in inexact]} if inexact else {}),
            **({"crashes": self._crashes.rows} if self._crashes.rows else {}),
            **self._status(),
        )

    def begin_pass(self, pass_: Pass) -> None:
        """If a training pass uses a new loader, write a description of the data, unless the description is unchanged."""
        if self._first_iteration is None:
            self._first_iteration = self._clocks.iteration
        if self._describe is not None and pass_.is_train and self._run.train_loader is not self._described_loader():
            before = self._data
            self._data = self._described_data()
            if self._data != before:
                self._write(data=self._data)

    def _described_data(self) -> dict[str, Any]:
        """Return a description of the training and validation data. No samples are read."""
        run, data = self._run, dict[str, Any]()
        self._described_loader = _reference_to(run.train_loader)
        for name, loader in (("train", run.train_loader), ("val", run.val_loader)):
            try:
                described = self._describe_data(loader) if loader is not None else {}
                data |= {name: described} if described else {}
            except Exception as error:  # raised by the user's loader or dataset
                logger.warning("the %s data could not be described: %s", name, error)
        return data

    def end_epoch(self) -> None:
        """Write the costs of callbacks, but at most once per second, because epochs may be short."""
        if self._describe is not None and monotonic() >= self._next_costs:
            self._write(costs=self._costs())
            self._next_costs = monotonic() + 1.0

    def _costs(self) -> list[dict[str, Any]]:
        """Return the measured and the estimated costs. Inside iterations, only some calls are measured."""
        rows = self._run.hooks.costs()
        names = ("callback", "point", "calls", "seconds")
        iterations = self._clocks.iteration - (self._first_iteration or 0)
        return [
            {
                **{name: getattr(row, name) for name in names},
                "callback": masked(row.callback),
                "estimated_seconds": row.seconds * self.share.calls_per_sample(row.point, iterations),
            }
            for row in rows
        ]

    def plan(self, epochs: int | None) -> None:
        self._write(epochs=epochs)

    def note_failure(self, failure: BaseException) -> None:
        """Send the run's failure to the monitors as an event."""
        self._run.put_event("exception", type=type(failure).__name__, text=masked(str(failure)))

    def end(self, failure: BaseException | None) -> None:
        status, reason = self._outcome(failure)
        crashes = self._crashed(failure, status)
        if self._describe is None:
            return
        try:
            facts = self._status()
        except Exception as error:  # the device of a logged value may have failed
            logger.warning("the final status of %s is unknown: %s", self._run.name, error)
            facts = {}
        facts |= {"costs": self._costs(), **({"data": data} if (data := self._described_data()) else {}), **crashes}
        self._write(status=status, reason=masked(reason), ended=_now(), **facts)
        if self._describe is not None:
            end_workdir(self._run.hooks)

    def _crashed(self, failure: BaseException | None, status: str) -> dict[str, Any]:
        """Count the exception that ended the run. Log an error if the number of crashes reaches `max_crashes`."""
        crashes, moment = self._crashes, self._clocks.moment
        had_any = bool(crashes.rows)
        if isinstance(failure, Exception):
            count = crashes.add(moment, type(failure).__name__, masked(str(failure)), _now())
            if count == crashes.limit and self._describe is not None and self._run.is_chief:
                text = (
                    "%s has failed %d times with the same error at the same point; "
                    "this is the limit set by max_crashes, and the run will not start again"
                )
                logger.error(text, self._run.name, count)
        elif status == "finished":
            crashes.rows = []
        else:
            crashes.reached(moment)
        return {"crashes": crashes.rows} if crashes.rows or had_any else {}

    def _outcome(self, failure: BaseException | None) -> tuple[str, str]:
        run, done = self._run, self._clocks.epochs_done
        if isinstance(failure, Exception):
            return "failed", f"{type(failure).__name__}: {failure}"
        if run.stop_reason is not None:
            return "finished" if isinstance(run.stop_reason, Reached) else "stopped", run.stop_reason
        if failure is not None:
            return "stopped", type(failure).__name__
        if run.max_epochs is not None and done < run.max_epochs:
            return "stopped", f"the loop ended after {done} of {run.max_epochs} epochs"
        return "finished", ""

    def _status(self) -> dict[str, Any]:
        run, clocks = self._run, self._clocks.state_dict()
        return {
            "epochs": run.max_epochs,
            **{name: clocks[name] for name in ("epoch", "epochs_done", "step", "samples")},
            "elapsed_seconds": round(clocks["elapsed"], 3),
            "metrics": dict(run.metrics),
            "best": {name: best for entry in run.hooks.entries for name, best in _best_of(entry.subject)},
        }

    def _write(self, **facts: Any) -> None:
        if self._describe is not None:
            try:
                self._describe(plain(facts))
            except Exception as error:
                logger.warning("the record of %s could not be written: %s", self._run.name, error)


def _schedule(hooks: Hooks) -> list[dict[str, str]]:
    """Return one row per point and callback. Each row says when the callback runs. Rows are in the order of the points."""
    return [
        {
            "callback": masked(call.entry.name),
            "point": point,
            "when": call.when or ("complete epochs" if call.complete_only else "always"),
        }
        for point in BY_NAME
        if point != "on_trigger"  # triggers are listed at the point where their schedule is checked
        for call in hooks.calls(point)
    ]


def config_of(config: Any) -> dict[str, Any]:
    """Convert the user's config (a mapping, a dataclass or a namespace) to a dict."""
    if config is None:
        return {}
    if is_dataclass(config) and not isinstance(config, type):
        return asdict(config)
    if isinstance(config, Mapping):
        return dict(config)
    if hasattr(config, "__dict__") and not isinstance(config, type):
        return dict(vars(config))
    raise BadArgument(f"config must be a dict, a dataclass or an argparse.Namespace, got {type(config).__name__}.")


def _best_of(subject: Any) -> list[tuple[str, dict[str, Any]]]:
    best, reads = getattr(subject, "best", None), tuple(getattr(subject, "reads", None) or ())
    if best is None or len(reads) != 1 or not all(hasattr(best, name) for name in ("value", "step", "mode")):
        return []
    moment = getattr(best, "moment", None)
    more = {} if moment is None else {"epoch": moment.epoch, "iteration": moment.iteration}
    return [(str(reads[0]), {"mode": best.mode, "value": best.value, "step": best.step, **more})]


def _reference_to(loader: Any) -> Callable[[], Any]:
    """Return a weak reference, because a loader that the script has replaced may hold workers. Lists do not have any."""
    try:
        return weakref.ref(loader)
    except TypeError:
        return lambda: loader


def _command() -> list[str]:
    return [os.path.basename(sys.executable or "python"), *(sys.orig_argv[1:] if len(sys.orig_argv) > 1 else sys.argv)]


def _now() -> str:
    return datetime.now().astimezone().isoformat(timespec="seconds")
