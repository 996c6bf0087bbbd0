"""The public Loop: the core's Loop with the default callbacks and monitors."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from importlib.util import find_spec
from os import PathLike
from typing import TYPE_CHECKING, Any

from hookpoint.core.errors import BadArgument
from hookpoint.core.loop import loop as core
from hookpoint.core.team.team import Team, place_from_environment

if TYPE_CHECKING:
    from hookpoint.core.checkpoint.store import Resume, Store


class Loop(core.Loop):
    """Run callbacks in your own training loop. Enter a `with` block and iterate over `run.epochs(...)` and `run.batches(...)`.

    The defaults are a progress bar, moving averages and a printout of each epoch's metrics, plus JSON lines and TensorBoard
    files if there is a `workdir`. `extra_callbacks=` and `monitors=` replace them; `[]` disables them.

    The constructor compiles the callbacks, so mistakes in them raise an error before training starts. In the main thread,
    entering the loop installs handlers for Ctrl-C, SIGTERM and SIGHUP, and leaving the loop restores the previous handlers. The
    first signal ends the run after the current iteration; the second ends it immediately. Entering a loop again starts a new
    run.

    samples: A function that returns the number of samples in a batch. By default, the number is read from the tensors in the
        batch.
    max_crashes: How many times a run in a workdir may fail with the same exception at the same point in training. After that,
        the run refuses to start. None means no limit.
    checkpoint_key: Path of a file that contains the key for encrypting checkpoints, or "env:NAME" for a key in an
        environment variable.
        Needs the extra `crypto`.
    wait_seconds: How long a rank waits for other ranks. After that, it raises an error that says where it was waiting.
    hang_report_seconds: Log a report if the run waits longer than this for data or for other ranks.
    data_timeout_seconds: Raise an error if the run waits longer than this for data.
    control: Accept commands from `hookpoint ctl` during training, if there is a workdir.

    Under `torchrun`, or with torch.distributed initialized, the loops of all ranks form one run. A request from any rank takes
    effect on all ranks at the same step, means are computed over all ranks, and only the chief prints and writes files. All
    ranks must enter the loop and have the same number of training batches.

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
        checkpoint_key: str | PathLike[str] | None = None,
        wait_seconds: float = 600.0,
        hang_report_seconds: float | None = 60.0,
        data_timeout_seconds: float | None = None,
        control: bool = True,
    ) -> None:
        from hookpoint.core.loop.options import LoopOptions, is_duration
        from hookpoint.presets._defaults import new_profile, with_defaults
        from hookpoint.presets._step_check import StepCheck
        from hookpoint.steering.steering_option import steering_for

        if store is not None and checkpoint_key is not None:
            raise BadArgument(
                "Loop: checkpoint_key has no effect on the store passed as store=.", give="the key to the store itself"
            )
        if not is_duration(wait_seconds):
            raise BadArgument(f"Loop: wait_seconds must be a number > 0, got {wait_seconds!r}.")
        backend = _backend_options(workdir, model, optimizer, allow_world_change, checkpoint_key)
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
            team=partial(_team, wait_seconds),
            control=steering_for(workdir, control=control, new_profile=new_profile()),
            **{**backend, "store": backend.get("store") if store is None else store},
        )
        checks = [] if optimizer is None and lr_scheduler is None else [StepCheck()]
        super().__init__([*with_defaults(callbacks, extra_callbacks, monitors), *checks], options)


def _uses_torch() -> bool:
    """Return whether torch is already imported, or is needed because a launcher has started multiple processes."""
    return "torch" in sys.modules or (place_from_environment()["world_size"] > 1 and find_spec("torch") is not None)


def _team(seconds: float) -> Team:
    """Return a team of all ranks if torch.distributed is in use or torchrun has started this process, else a team of one."""
    if not _uses_torch():
        return Team()
    from hookpoint.parallel.team.init_process import join_team

    return join_team(seconds=seconds)


def _backend_options(workdir: Any, model: Any, optimizer: Any, allow_world_change: bool, key: Any) -> dict[str, Any]:
    """Return the options that depend on whether torch is in use: `stepper`, `floats` and the options for checkpoints."""
    if _uses_torch():
        from hookpoint.core.data.array_batches import as_batches
        from hookpoint.core.run.stepper import Stepper
        from hookpoint.engine.checkpoint_options import checkpoint_options
        from hookpoint.engine.data.as_loader import as_loader
        from hookpoint.engine.device_floats import device_floats
        from hookpoint.engine.step.modules import evaluating, modules_of

        batches = partial(as_loader, shuffle=False) if modules_of(model) else as_batches
        stepper = Stepper(evaluating=evaluating, batches=batches)
        store_options = {"allow_world_change": allow_world_change, "checkpoint_key": key}
        checkpoints = checkpoint_options(workdir, model, optimizer, **store_options)
        return {"stepper": stepper, "floats": device_floats, **checkpoints}
    if key is not None:
        from hookpoint.storage.checkpoint.encryption import key_for_workdir

        key = key_for_workdir(key, workdir)
    if workdir is None:
        return {}
    from hookpoint.storage.checkpoint_store import CheckpointStore
    from hookpoint.storage.workdir.identity import collect

    store = CheckpointStore(workdir, allow_world_change=allow_world_change, key=key)
    return {"store": store, "identity": partial(collect, world_size=1, seed=None)}
