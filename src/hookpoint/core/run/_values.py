"""Values: the attributes of a run, such as options, clocks, values of the current iteration, and logged metrics."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Final

from hookpoint.core.errors import NotAssignable, OutsideIteration
from hookpoint.core.run.hyper import Hyper
from hookpoint.core.run.iteration import NO_ITERATION, Iteration

if TYPE_CHECKING:
    from hookpoint.core.hooks.hooks import Hooks
    from hookpoint.core.log.logbook import Logbook
    from hookpoint.core.log.metrics import Logs, Metrics
    from hookpoint.core.log.monitors import Monitors
    from hookpoint.core.run.run_loop import Mode, Progress, RunLoop
    from hookpoint.core.run.stepper import Stepper
    from hookpoint.core.run.verdicts import Verdicts
    from hookpoint.core.schedule.clocks import Clocks
    from hookpoint.core.schedule.moment import Moment
    from hookpoint.core.team.team import Team

ARGS = ("name", "model", "optimizer", "criterion", "lr_scheduler", "device", "workdir", "train_loader", "val_loader", "config")
PLACE = ("rank", "local_rank", "world_size")
PRIVATE = ("_clocks", "_logbook", "_loop", "_now", "_payload", "_stepper", "_update_ops", "_verdicts")
STATE = ("epoch_complete", "max_epochs", "mode", "resuming", "store", "summaries")
SERVICES = ("hooks", "hyper", "monitors", "team")
CALLS = {
    "stop": 'run.stop("why")',
    "request_stop": "run.request_stop()",
    "log": 'run.log("name", value)',
    "save": 'run.save("tag")',
    "update_ops": "run.update_op(function)",
    **dict.fromkeys(("step", "global_step"), "run.set_step(n) at on_run_begin, to begin a new run at step n"),
}

now_of: Callable[[Values], Iteration] = attrgetter("_now")


def read_only(path: str, doc: str) -> Any:
    """Return a property that reads an attribute such as "_clocks.step". This is faster than a Python function."""
    return property(attrgetter(path), doc=doc)


def iteration_value(name: str, doc: str) -> Any:
    """Return a property for a value of the current iteration."""

    def put(run: Values, value: Any) -> None:
        setattr(now_of(run), name, value)

    return property(attrgetter(f"_now.{name}"), put, doc=doc)


class Values:
    """The attributes of a run. `Run` adds the methods."""

    __slots__ = (*ARGS, *PLACE, *PRIVATE, *STATE, *SERVICES)

    name: str
    model: Any
    optimizer: Any
    criterion: Any
    lr_scheduler: Any
    device: Any
    workdir: Any
    train_loader: Any
    val_loader: Any
    config: dict[str, Any]
    rank: int
    local_rank: int
    world_size: int
    mode: Mode | None
    max_epochs: int | None
    epoch_complete: bool
    resuming: bool
    hooks: Hooks
    hyper: Hyper
    monitors: Monitors
    store: dict[str, Any]
    team: Team
    summaries: dict[str, Callable[[], Any]]
    _loop: RunLoop
    _stepper: Stepper

    def __init__(self, hooks: Hooks, clocks: Clocks, logbook: Logbook, verdicts: Verdicts, **options: Any) -> None:
        for name in ARGS:
            setattr(self, name, options.get(name))
        self.rank, self.local_rank, self.world_size = options["rank"], options["local_rank"], options["world_size"]
        self.team = options["team"]
        self.hooks = hooks
        self.hyper = Hyper(self.optimizer)
        self.mode = self.max_epochs = None
        self.epoch_complete = self.resuming = False
        self.store, self.summaries = {}, {}
        self._update_ops: tuple[Callable[[], object], ...] = ()
        self._clocks = clocks
        self._logbook = logbook
        self._verdicts = verdicts
        self._now: Iteration = NO_ITERATION
        self._payload: dict[str, Any] = {}

    # Clocks

    epoch: Final[int] = read_only("_clocks.epoch", "The current epoch, counted from 1, or 0 before the first epoch.")
    step: Final[int] = read_only("_clocks.step", "The number of optimizer steps done.")
    iteration: Final[int] = read_only("_clocks.iteration", "The number of training batches done.")
    samples: Final[int] = read_only("_clocks.samples", "The number of training samples seen.")
    moment: Final[Moment] = read_only("_clocks.moment", "The current epoch, iteration and step. Moments can be compared.")

    @property
    def elapsed(self) -> float:
        """The training time in seconds. A resumed run continues counting."""
        return self._clocks.elapsed()

    @property
    def current_iteration(self) -> int:
        """The number of the current or last training iteration, counted from 1."""
        return self._clocks.iteration + (self.mode == "train" and self._now is not NO_ITERATION and not self._now.has_ended)

    @property
    def progress(self) -> Progress | None:
        """The current pass: mode, batches done and total. None between passes. Safe to read from any thread."""
        return self._loop.progress

    @property
    def stop_reason(self) -> str | None:
        """The reason why the run is stopping or has stopped, or None if no stop was requested."""
        return self._verdicts.reason if self._verdicts.stop else None

    # Ranks

    @property
    def is_chief(self) -> bool:
        """Whether this rank prints, prompts and writes files."""
        return self.rank == 0

    data_rank: Final[int] = read_only("team.data_rank", "The index of this rank's data shard.")
    model_rank: Final[int] = read_only("team.model_rank", "The index of this rank's model shard.")

    # The current iteration

    batch_idx: Final[int] = read_only("_now.batch_idx", "The index of this batch in its pass, from 0.")

    batch: Any = iteration_value("batch", "The current batch.")
    outputs: Any = iteration_value("outputs", "The outputs of the forward pass.")
    targets: Any = iteration_value("targets", "The targets of the batch.")
    loss: Any = iteration_value("loss", "The loss for the batch.")

    @property
    def skipped(self) -> frozenset[str]:
        """What was skipped in this iteration: "batch", "backward", "step"."""
        if self._now is not NO_ITERATION:
            self._now.skips_were_read = True
        return self._now.skipped

    # Logged values

    metrics: Final[Metrics] = read_only("_logbook.metrics", "The latest value of each metric, converted to a float when read.")

    @property
    def logs(self) -> Logs:
        """The metrics with a value from the current epoch. At on_train_epoch_end, validation metrics are omitted."""
        return self._logbook.logs()

    update_ops: Final[tuple[Callable[[], object], ...]] = read_only("_update_ops", "The functions to call after each step.")

    def offered(self, names: Iterable[str]) -> dict[str, Any]:
        """Return a dict from these names to their current values. Names without a current value are left out."""
        values: dict[str, Any] = {}
        for name in names:
            if name in self._payload:
                values[name] = self._payload[name]
            elif name == "run":
                values[name] = self
            else:
                try:
                    values[name] = getattr(self, name)
                except (OutsideIteration, AttributeError):
                    continue
        return values

    def __setattr__(self, name: str, value: Any) -> None:
        attribute = getattr(type(self), name, None)
        if callable(attribute):
            call = CALLS.get(name, f"run.{name}(...)")
            raise NotAssignable(f"run.{name} is a method and cannot be assigned.", call=call)
        if attribute is None:
            raise NotAssignable(f"the run has no attribute '{name}'.", share=f"run.store['{name}'] = value")
        if isinstance(attribute, property) and attribute.fset is None:
            cures = {"call": CALLS[name]} if name in CALLS else {}
            raise NotAssignable(f"run.{name} is read-only: the loop sets it.", **cures)
        object.__setattr__(self, name, value)

    def __repr__(self) -> str:
        return f"Run({self.name!r}, epoch={self.epoch}, step={self.step})"
