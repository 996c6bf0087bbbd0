"""The public Loop: the core's, with the default callbacks and monitors."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from importlib.util import find_spec
from os import PathLike
from typing import Any

from hookpoint.core.checkpoint.store import Resume, Store
from hookpoint.core.data.array_batches import as_batches
from hookpoint.core.log.metrics import Floats, floats_one_by_one
from hookpoint.core.loop import loop as core
from hookpoint.core.loop.options import LoopOptions
from hookpoint.core.run.stepper import PlainStepper
from hookpoint.core.team.team import Solo, Team, place_by_environment
from hookpoint.presets._defaults import with_defaults
from hookpoint.presets._scheduler_check import SchedulerCheck


class Loop(core.Loop):
    """Run callbacks around loops of one's own: enter it, and iterate over `run.epochs(...)` and `run.batches(...)`.

    A progress bar, moving averages and the printing of each epoch's metrics come with it, and with a `workdir` JSON lines and
    TensorBoard files; `extra_callbacks=` and `monitors=` replace them, `[]` leaves them out.

    Callbacks are compiled here, so that their mistakes show before anything runs. Entering installs handlers for Ctrl-C,
    SIGTERM and SIGHUP in the main thread, and leaving puts the old ones back; the first signal ends the run at the next
    boundary, the second at once. A loop may be entered again after it was left: that is a fresh run. `samples` is a function
    of the batch that returns how many samples it has, where that cannot be seen from its tensors. `max_crashes` is how often a
    run in a workdir may end with the same exception at the same moment before it refuses to start again; None is no limit.

    Under `torchrun`, or with torch.distributed initialised, the loops of all processes are one run: what any of them asks for
    happens on all at the same step, means are those of all of the data, and only the chief prints and writes. All processes
    enter the loop and have the same number of training batches. One that waits longer than `wait_seconds` for the others says
    where it is, and fails. A wait for data or other processes is reported after `hang_report_seconds`; `data_timeout_seconds`
    ends a wait for data.

    >>> with Loop([LambdaCallback(on_epoch_end=lambda run: print(run.epoch, run.metrics["loss"]))]) as run:
    ...     for epoch in run.epochs(2):
    ...         for batch in run.batches([1.0, 3.0]):
    ...             run.log(loss=batch / epoch)
    1 2.0
    2 1.0
    """

    def __init__(
        self,
        callbacks: Iterable[Any] = (),
        *,
        extra_callbacks: Iterable[Any] | None = None,
        monitors: Iterable[Any] | None = None,
        model: Any = None,
        optimizer: Any = None,
        criterion: Any = None,
        lr_scheduler: Any = None,
        device: Any = None,
        workdir: str | PathLike[str] | None = None,
        name: str = "run",
        log_every: int = 50,
        max_retries: int = 3,
        max_crashes: int | None = 5,
        samples: Callable[[Any], int] | None = None,
        config: Any = None,
        store: Store | None = None,
        resume: Resume = "auto",
        state: Mapping[str, Any] | None = None,
        allow_world_change: bool = False,
        wait_seconds: float = 600.0,
        hang_report_seconds: float | None = 60.0,
        data_timeout_seconds: float | None = None,
    ) -> None:
        kept = _kept_in(workdir, model, optimizer, allow_world_change)
        options = LoopOptions(
            model=model,
            optimizer=optimizer,
            criterion=criterion,
            lr_scheduler=lr_scheduler,
            device=device,
            workdir=workdir,
            name=name,
            log_every=log_every,
            max_retries=max_retries,
            max_crashes=max_crashes,
            samples=samples,
            config=config,
            resume=resume,
            state=state,
            hang_report_seconds=hang_report_seconds,
            data_timeout_seconds=data_timeout_seconds,
            stepper=_stepper(model),
            floats=_floats(),
            team=partial(_team, wait_seconds),
            **{**kept, "store": kept.get("store") if store is None else store},
        )
        checks = [] if lr_scheduler is None else [SchedulerCheck()]
        super().__init__([*with_defaults(callbacks, extra_callbacks, monitors), *checks], options)


def _uses_torch() -> bool:
    """Say whether torch is in use already, or a launcher has started several processes, which talk through it."""
    return "torch" in sys.modules or (place_by_environment()["world_size"] > 1 and find_spec("torch") is not None)


def _team(seconds: float) -> Team:
    """Return the team of a loop of one's own: that of torch.distributed where it is in use, or where torchrun started us."""
    if not _uses_torch():
        return Solo()
    from hookpoint.parallel.team.init_process import join_team

    return join_team(seconds=seconds)


def _floats() -> Floats:
    """Return the way to turn logged values into floats: torch's where torch is in use already."""
    if not _uses_torch():
        return floats_one_by_one
    from hookpoint.engine.async_floats import device_floats

    return device_floats


def _stepper(model: Any) -> PlainStepper:
    """Return the step of a loop of one's own: one that knows how torch evaluates where torch is in use already."""
    if not _uses_torch():
        return PlainStepper()
    from hookpoint.engine.data.as_loader import as_loader
    from hookpoint.engine.module_modes import evaluating, modules_of

    batches = partial(as_loader, shuffle=False) if modules_of(model) else as_batches
    return PlainStepper(evaluating=evaluating, batches=batches)


def _kept_in(workdir: Any, model: Any, optimizer: Any, allow_world_change: bool) -> dict[str, Any]:
    """Return the options for checkpoints in this workdir: torch's where torch is in use already."""
    if _uses_torch():
        from hookpoint.engine.checkpoint_options import checkpoint_options

        return checkpoint_options(workdir, model, optimizer, allow_world_change=allow_world_change)
    if workdir is None:
        return {}
    from hookpoint.storage.checkpoint_store import CheckpointStore
    from hookpoint.storage.workdir.identity import collect

    store = CheckpointStore(workdir, allow_world_change=allow_world_change)
    return {"store": store, "identity": partial(collect, world_size=1, seed=None)}
