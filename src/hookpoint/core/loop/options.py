"""LoopOptions: what a loop is told, by a user's own `with Loop(...)` or by a Runner."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

from hookpoint.core.checkpoint.positions import PlainPositions, Positions
from hookpoint.core.checkpoint.randomness import Randomness
from hookpoint.core.checkpoint.stateful import user_state
from hookpoint.core.checkpoint.store import Resume, Store
from hookpoint.core.data.samples import counter
from hookpoint.core.errors import BadArgument
from hookpoint.core.hang.loader_stall import LoaderWorkers
from hookpoint.core.log.loss_check import OnNonFinite
from hookpoint.core.log.metric_names import UNKNOWN, MetricNames
from hookpoint.core.log.metrics import Floats, floats_one_by_one
from hookpoint.core.loop._run_record import config_of
from hookpoint.core.loop.host import Host
from hookpoint.core.run.run import Run
from hookpoint.core.run.stepper import Stepper
from hookpoint.core.team.team import Solo, Team

KEPT = ("model", "optimizer", "criterion", "lr_scheduler")  # of what a loop is given, in each checkpoint


def _as_it_is(part: Any) -> Any:
    return part


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class LoopOptions:
    """Everything a loop is told but its callbacks.

    The first group is what users give. The second is how a framework, a runner or a host does its part: `team` is called when
    the loop is entered, on every process at the same place; `begin` gets the run before its first point; without `run_points`
    the loop serves a validation or a prediction alone; `host` is the trainer of another library that drives it.
    """

    model: Any = None
    optimizer: Any = None
    criterion: Any = None
    lr_scheduler: Any = None
    device: Any = None
    workdir: str | os.PathLike[str] | None = None
    name: str = "run"
    log_every: int = 50
    max_retries: int = 3
    max_crashes: int | None = 5
    samples: Callable[[Any], int] | None = None
    config: Any = None
    store: Store | None = None
    resume: Resume = "auto"
    state: Mapping[str, Any] | None = None
    on_nonfinite: OnNonFinite = "warn"
    hang_report_seconds: float | None = 60.0
    data_timeout_seconds: float | None = None

    identity: Callable[[], Mapping[str, Any]] = dict
    randomness: Randomness | None = None
    positions: Callable[[Randomness], Positions] = PlainPositions
    after_load: Callable[[Run], None] | None = None
    unwrapped: Callable[[Any], Any] = _as_it_is
    may_wait: Callable[[], AbstractContextManager[None]] = nullcontext
    stepper: Stepper | None = None
    floats: Floats = floats_one_by_one
    prepare: Callable[[Any], Any] | None = None
    begin: Callable[[Run], None] | None = None
    run_points: bool = True
    names: MetricNames = UNKNOWN
    team: Callable[[], Team] = Solo
    host: Host | None = None
    loader_workers: LoaderWorkers | None = None

    def __post_init__(self) -> None:
        if self.log_every < 0 or self.max_retries < 0:
            raise BadArgument("log_every and max_retries are 0 or more.", got=f"{self.log_every} and {self.max_retries}")
        for name in ("hang_report_seconds", "data_timeout_seconds"):
            if (seconds := getattr(self, name)) is not None and not seconds > 0:
                raise BadArgument(f"{name} is more than 0, or None.", got=repr(seconds))
        if self.max_crashes is not None and (type(self.max_crashes) is not int or self.max_crashes < 0):
            raise BadArgument("max_crashes is an integer, or None or 0 for no limit.", got=repr(self.max_crashes))
        if self.on_nonfinite not in ("raise", "warn"):
            raise BadArgument(f"on_nonfinite={self.on_nonfinite!r}.", choose="'raise' or 'warn'")
        counter(self.samples)
        config_of(self.config)
        user_state(self.state)

    def given(self) -> dict[str, Any]:
        """Return what the run shows of this."""
        names = ("name", *KEPT, "device", "workdir")
        return {**{name: getattr(self, name) for name in names}, "config": config_of(self.config)}

    def stateful(self) -> dict[str, Any]:
        """Return the objects whose state a checkpoint keeps, by name; a host keeps its model and optimizer itself."""
        kept = {name: None if self.host is not None else self.unwrapped(getattr(self, name)) for name in KEPT}
        return {**kept, **user_state(self.state)}
