"""LoopOptions: the options of a loop. A Loop or a Runner sets them."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from numbers import Integral, Real
from typing import Any

from hookpoint.core.checkpoint.positions import Positions
from hookpoint.core.checkpoint.randomness import PlainRandomness
from hookpoint.core.checkpoint.stateful import OBJECTS, user_state
from hookpoint.core.checkpoint.store import Resume, Store
from hookpoint.core.control.control import Control
from hookpoint.core.control.controlled_loop import ControlledLoop
from hookpoint.core.data.samples import counter
from hookpoint.core.errors import BadArgument
from hookpoint.core.log.floats import Floats, MayWait, floats_one_by_one
from hookpoint.core.log.loss_check import OnNonFinite
from hookpoint.core.log.metric_names import UNKNOWN, MetricNames
from hookpoint.core.loop._run_record import config_of
from hookpoint.core.loop.host import Host
from hookpoint.core.run.run import Run
from hookpoint.core.run.stepper import Stepper
from hookpoint.core.team.team import Team


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class LoopOptions:
    """All options of a loop except its callbacks.

    Users set the first group of options. A framework, a Runner or a host sets the second group. All ranks call `team` together
    when they enter the loop. `begin` is called with the run, before the first point of the run fires. If `run_points` is False,
    the loop only validates or predicts. `host` is another library's trainer, which drives the loop. `control` creates the
    source of commands for the run.
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
    lineage: Sequence[Mapping[str, Any]] = ()  # the origin of the weights that a new run starts from
    randomness: PlainRandomness | None = None
    positions: Callable[[PlainRandomness], Positions] = Positions
    after_load: Callable[[Run], None] | None = None
    unwrapped: Callable[[Any], Any] = lambda model: model
    may_wait: MayWait = nullcontext
    stepper: Stepper | None = None
    floats: Floats = floats_one_by_one
    prepare: Callable[[Any], Any] | None = None
    begin: Callable[[Run], None] | None = None
    run_points: bool = True
    names: MetricNames = UNKNOWN
    team: Callable[[], Team] = Team
    host: Host | None = None
    control: Callable[[ControlledLoop], Control] | None = None
    loader_workers: Any = None

    def __post_init__(self) -> None:
        for name in ("log_every", "max_retries"):
            number = getattr(self, name)
            if not isinstance(number, Integral) or isinstance(number, bool) or number < 0:
                raise BadArgument(f"{name} must be an integer >= 0, got {number!r}.")
        for name in ("hang_report_seconds", "data_timeout_seconds"):
            if (seconds := getattr(self, name)) is not None and not is_duration(seconds):
                raise BadArgument(f"{name} must be a number > 0 or None, got {seconds!r}.")
        if self.max_crashes is not None and (type(self.max_crashes) is not int or self.max_crashes < 0):
            raise BadArgument(f"max_crashes must be an integer >= 0 or None, got {self.max_crashes!r}.", disable="it with 0")
        if self.on_nonfinite not in ("raise", "warn"):
            raise BadArgument(f"on_nonfinite must be 'raise' or 'warn', got {self.on_nonfinite!r}.")
        if not isinstance(self.resume, str | os.PathLike):
            choices = '"auto", "never", "must", or the path of a checkpoint or workdir'
            raise BadArgument(f"resume must be a string or a path, got {self.resume!r}.", choose=choices)
        counter(self.samples)
        config_of(self.config)
        user_state(self.state)

    def run_attributes(self) -> dict[str, Any]:
        """Return the options that become attributes of the run."""
        names = ("name", *OBJECTS, "device", "workdir")
        return {**{name: getattr(self, name) for name in names}, "config": config_of(self.config)}

    def stateful(self) -> dict[str, Any]:
        """Return the objects whose state is saved in checkpoints, by name. A host saves its model and optimizer itself."""
        saved = {name: None if self.host is not None else self.unwrapped(getattr(self, name)) for name in OBJECTS}
        return {**saved, **user_state(self.state)}


def is_duration(seconds: Any) -> bool:
    """Return whether a value is a positive number, possibly infinite."""
    return isinstance(seconds, Real) and not isinstance(seconds, bool) and float(seconds) > 0
