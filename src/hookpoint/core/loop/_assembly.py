"""Create the `Machine` that runs the training loop, together with the objects and components that it needs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any

from hookpoint.core.background.background_calls import background_calls
from hookpoint.core.checkpoint.crashes import Crashes
from hookpoint.core.checkpoint.randomness import PlainRandomness
from hookpoint.core.checkpoint.workdir_callbacks import begin_workdir
from hookpoint.core.control.control import Control, NoControl
from hookpoint.core.control.controlled_loop import ControlledLoop
from hookpoint.core.hang.hang_watch import HangWatch
from hookpoint.core.hooks.hooks import Hooks
from hookpoint.core.log.global_means import global_means
from hookpoint.core.log.logbook import Logbook
from hookpoint.core.log.loss_check import loss_check
from hookpoint.core.log.monitors import Monitors
from hookpoint.core.loop._agreement import Agreement
from hookpoint.core.loop._components import Components
from hookpoint.core.loop._model_stop import ModelStop
from hookpoint.core.loop._passes import END
from hookpoint.core.loop._resuming import Resuming
from hookpoint.core.loop._run_objects import RunObjects
from hookpoint.core.loop._run_record import RunRecord
from hookpoint.core.loop._saving import Saving
from hookpoint.core.loop._scopes import Scopes
from hookpoint.core.loop._signals import Signals
from hookpoint.core.loop._step_hooks import StepHooks
from hookpoint.core.loop.machine import Machine
from hookpoint.core.loop.missing_metrics import MissingMetrics, could_log_anything
from hookpoint.core.loop.options import LoopOptions
from hookpoint.core.loop.services import Services
from hookpoint.core.run.run import Run, set_loop, set_stepper
from hookpoint.core.run.stepper import Stepper
from hookpoint.core.run.verdicts import Verdicts
from hookpoint.core.schedule.clocks import Clocks
from hookpoint.core.team.checked_team import CheckedTeam
from hookpoint.core.team.team import Team
from hookpoint.core.team.team_clocks import TeamClocks


def assemble(hooks: Hooks, options: LoopOptions, stateful: dict[str, Any], team: Team, place: Mapping[str, int]) -> Machine:
    """Create the `Machine` for a new run, and make this run the current run."""
    clocks = Clocks() if team.size == 1 else TeamClocks()
    verdicts = Verdicts()
    waits, reads = options.may_wait, hooks.read_by_steps
    logbook = Logbook(clocks, log_every=options.log_every, floats=options.floats, read_by_steps=reads, may_wait=waits)
    run = Run(hooks, clocks, logbook, verdicts, team=team, **place, **options.run_attributes())
    run.monitors = logbook.monitors = Monitors(hooks, run, logbook.metrics, clocks)
    run.monitors.calls = calls = background_calls(run, hooks.entries)
    logbook.loss_check = loss_check(run, hooks.entries, options.on_nonfinite, waits)
    set_stepper(run, Stepper() if options.stepper is None else options.stepper)
    agreement = _agreement(run, verdicts, clocks, logbook, options)
    randomness = PlainRandomness() if options.randomness is None else options.randomness
    positions = options.positions(randomness)
    objects = RunObjects(run, hooks, clocks, logbook, verdicts, Scopes(), run.team, positions, randomness, waits, stateful)
    machine = Machine(objects, options, _components(objects, options, agreement))
    set_loop(run, Services(machine))
    if calls is not None:
        calls.wake = machine.saving.wake
    return machine


def find_checkpoint(machine: Machine) -> None:
    """Find the checkpoint to resume from, if any. Raise NothingToSaveTo if there is a saver, but no store."""
    try:
        if machine.options.run_points:
            machine.saving.check_store()
            begin_workdir(machine.hooks, machine.run, machine.options.resume)
            machine.resuming.open(machine.options.resume, machine.options.identity)
    except BaseException:
        machine.clean_up()
        raise


def _agreement(run: Run, verdicts: Verdicts, clocks: Clocks, logbook: Logbook, options: LoopOptions) -> Agreement | None:
    """Return the component that makes all ranks apply requests at the same step, or None for a single rank."""
    if not isinstance(clocks, TeamClocks):
        return None
    run.team = team = CheckedTeam(run.team, run)
    logbook.shared = partial(global_means, team, options.may_wait)
    logbook.windows.delay_all()
    return Agreement(run, team, verdicts, clocks)


def _components(objects: RunObjects, options: LoopOptions, agreement: Agreement | None) -> Components:
    run, clocks, hooks, host = objects.run, objects.clocks, objects.hooks, options.host
    missing = MissingMetrics(
        hooks.all_entries,
        hooks.entries,
        options.names,
        has_validated=lambda: objects.logbook.has_validated,
        gather=None if agreement is None else agreement.gather,
    )
    if options.run_points:
        missing.check_names(is_chief=run.is_chief)
    store = options.store if options.run_points else None
    objects.positions.remembers = store is not None
    agree: Callable[[str], None] = (lambda what: None) if agreement is None else agreement.agree
    signals = Signals(objects.verdicts.request_stop, is_in_team=agreement is not None, has_host=host is not None)
    saving = Saving(objects, store, signals, agree=agree)
    saving.is_resumed_later = saving.resumable is not None and options.resume in ("auto", "must")
    signals.saves, signals.plan = saving.saves, partial(_plan_after_signal, run, saves=saving.saves)
    if store is not None:
        signals.request_save = saving.request_by_signal if agreement is None else agreement.request_save_by_signal
    crashes = Crashes(options.max_crashes)
    resuming = Resuming(objects, saving, agreement, crashes, after_load=options.after_load, is_quiet=host is not None)
    loop = ControlledLoop(objects, saving, resuming, signals, agreement, host)
    control: Control = NoControl(loop) if options.control is None or not options.run_points else options.control(loop)
    saving.control = resuming.control = control
    if agreement is not None:
        agreement.connect(saving, signals, control)
    return Components(
        saving=saving,
        resuming=resuming,
        agreement=agreement,
        agree=agree,
        signals=signals,
        steps=StepHooks(run, clocks, has_host=host is not None),
        record=RunRecord(
            *(run, clocks, saving.resumable, crashes), describe_data=objects.positions.describe, lineage=options.lineage
        ),
        missing=missing,
        model_stop=ModelStop(has_user_callbacks=any(map(could_log_anything, hooks.entries))),
        control=control,
        watch=HangWatch(
            run,
            clocks,
            objects.scopes.passes,
            signals,
            options.loader_workers,
            report_seconds=options.hang_report_seconds if host is None else None,
            data_seconds=options.data_timeout_seconds if host is None else None,
            fetching=_is_fetching,
            loop_folder=str(Path(__file__).parent),
        ),
    )


def _plan_after_signal(run: Run, *, saves: bool) -> str:
    """Return what a run does after a signal. If it saves, it cannot stop in the middle of a validation pass."""
    if not saves:
        return "stopping after this step"
    return f"stopping after this {'step' if run.mode in (None, 'train') else 'pass'}, then saving"


def _is_fetching(frame: FrameType) -> bool:
    """Return whether the code in a stack frame is fetching a batch.

    Code that is generated from `Machine.iterate` has the same function name and file name as the original.
    """
    code, plain = frame.f_code, Machine.iterate.__code__
    if code.co_filename != plain.co_filename or code.co_name not in (plain.co_name, Machine.fetch.__name__):
        return False
    return frame.f_locals.get("batch", END) is END
