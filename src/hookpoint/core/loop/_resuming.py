"""Resuming: return a run to the position of a checkpoint.

A checkpoint is saved between epochs or inside a training pass. The run first returns to that position. Meanwhile,
`run.resuming` is set, nothing is logged, and finished epochs and passes are skipped.

The state is loaded twice. The first load happens before on_load and before the user's code, which may read the model. The first
load uses a copy of the checkpoint's state, so that the original is unchanged for the second load. The second load happens when
the run has returned to the checkpoint's position. For a checkpoint between epochs, this is when the next epoch opens. For a
checkpoint inside a pass, this is when the pass opens again. The second load restores the state first, then the position in the
data, and the random generators last. It is needed because, after the first load, the user's code runs again and begin points
fire again. Both may change the state.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any

from hookpoint.core.checkpoint.own_copy import own_copy
from hookpoint.core.checkpoint.positions import Entered
from hookpoint.core.checkpoint.rank_state import state_for_rank
from hookpoint.core.checkpoint.script_rates import changed_rate, rates_of, saved_optimizers
from hookpoint.core.checkpoint.script_schedules import changed_schedules
from hookpoint.core.checkpoint.stateful import has_state, load_state, not_saved, restore_gradients
from hookpoint.core.checkpoint.store import Checkpoint, ResumableStore, Resume
from hookpoint.core.data.list_digest import list_digest
from hookpoint.core.errors import BadLoop, CannotResume
from hookpoint.core.logger import logger
from hookpoint.core.run.run import stepper_of
from hookpoint.core.text.terminal import say

if TYPE_CHECKING:
    from hookpoint.core.checkpoint.crashes import Crashes
    from hookpoint.core.control.control import Control
    from hookpoint.core.loop._agreement import Agreement
    from hookpoint.core.loop._passes import Pass
    from hookpoint.core.loop._run_objects import RunObjects
    from hookpoint.core.loop._saving import Saving
    from hookpoint.core.run.run import Run


BETWEEN_EPOCHS = {"in_epoch": False}
CHANGED_LIST = (
    "the list of training batches differs from the list in the checkpoint: some batches may be used twice, others never. "
    "If the script shuffles the list in place, shuffle a copy: random.sample(data, len(data))"
)


class Resuming:
    """Restore a run from a checkpoint.

    `place` is the checkpoint's position. Once the run has returned to this position, `place` is BETWEEN_EPOCHS.
    """

    def __init__(
        self,
        objects: RunObjects,
        saving: Saving,
        agreement: Agreement | None,
        crashes: Crashes,
        *,
        after_load: Callable[[Run], None] | None = None,
        is_quiet: bool = False,
    ) -> None:
        self.place: Mapping[str, Any] = BETWEEN_EPOCHS
        self.identity: Mapping[str, Any] = {}
        self.has_resumed = self.has_other_data = False
        self.control: Control
        self.moved: Mapping[str, int] | None = None
        self._objects, self._saving, self._agreement = objects, saving, agreement
        self._after_load, self._is_quiet, self._crashes = after_load, is_quiet, crashes
        self._run, self._clocks, self._stateful = objects.run, objects.clocks, objects.stateful
        self._checkpoint: Checkpoint | None = None
        self._epochs_over = self._done_before = 0

    def open(self, resume: Resume, identity: Callable[[], Mapping[str, Any]]) -> None:
        """Look for a checkpoint. If there is one, set the clocks, and mute logging until the state is restored."""
        run = self._run
        self._saving.script_rates = rates_of(run.optimizers)
        store = self._saving.resumable
        if self._agreement is not None:
            _check_workdirs(self._agreement.gather(store is not None, "the workdir"))
        if store is None and resume not in ("auto", "never"):
            raise CannotResume(
                f"resume={str(resume)!r} needs a workdir.",
                give='workdir="runs/name"',
                start="from weights alone with Runner(init_weights=hookpoint.load_weights(...))",
            )
        if store is None:
            return
        self._check_crashes(store, resume)
        self.identity = identity()
        checkpoint = store.open(resume, self.identity)
        if checkpoint is not None:
            state = state_for_rank(checkpoint.state, run.rank, run.world_size)
            self._checkpoint, self.place, self.moved = checkpoint._replace(state=state), state["place"], state.get("moved")
            self._clocks.load_state_dict(state["clocks"])
            self._done_before = self._clocks.epochs_done
            self._crashes.reached(self._clocks.moment)
            self.has_resumed = run.resuming = True
            self._objects.logbook.is_muted = run.monitors.is_muted = True
        lacking = not_saved(self._stateful, resumes=self.has_resumed) if self._saving.saves else None
        if lacking is not None and run.is_chief and not self._is_quiet:
            logger.warning("%s", lacking)

    def _check_crashes(self, store: ResumableStore, resume: Resume) -> None:
        """Raise CannotResume if the run keeps crashing at the same point in training, unless the user sets `resume`."""
        described = getattr(store, "described", None)
        if described is not None:
            facts = described(resume)
            self._crashes.load(facts)
            again = 'resume="must"' if facts.get("has_checkpoint") else 'resume="never"'
            self._crashes.check(str(self._run.workdir or self._run.name), again)

    def inexact(self) -> list[str]:
        """Return the reasons why a resumed run may differ from an uninterrupted run, or an empty list."""
        why, run = [], self._run
        if self.moved is not None:
            why.append(f"from step {run.step} on: {self.moved['to']} ranks instead of {self.moved['from']}")
        if self.has_resumed and run.team.inexact:
            why.append(f"resumed at step {run.step}: {run.team.inexact}")
        return why

    def restore(self) -> Checkpoint | None:
        """Restore the state after the run's begin points have fired. Return the checkpoint, or None for a new run."""
        checkpoint, run = self._checkpoint, self._run
        if checkpoint is None:
            return None
        fill = getattr(self._saving.resumable, "fill", None)
        if fill is not None:  # what each rank reads depends on the model's shards, which exist only now
            checkpoint = self._checkpoint = fill(checkpoint, self._stateful)
        if not self._is_quiet and not self._is_finished(run.max_epochs):
            where = f"{checkpoint.path} (epoch {run.epoch}, step {run.step})"
            say(f'Resuming {run.name} from {where}. Pass resume="never" to start from scratch.')
        if run.is_chief:
            self._report(checkpoint)
        saved = list(saved_optimizers(checkpoint.state["parts"].get("optimizer")))
        rates = self._saving.script_rates
        # If the same process trains again, keep the learning rates that the script originally set.
        if rates == rates_of(saved):
            self._saving.script_rates = checkpoint.state.get("script_rates", rates)
        self._load(checkpoint.state, is_last=False)
        self._objects.positions.load_state_dict(checkpoint.state["data"])
        self._load_rng(checkpoint.state)
        self._saving.mark_saved()
        return checkpoint

    # Returning to the checkpoint's pass

    @property
    def is_returning(self) -> bool:
        """Whether the run is still returning to the checkpoint's epoch."""
        return bool(self.place["in_epoch"])

    @property
    def epochs_opened(self) -> int:
        """The number of epochs opened so far. The checkpoint's epoch does not count, because it is opened again."""
        return self._clocks.epoch - self.is_returning

    def is_over(self) -> bool:
        """Return whether a pass outside `run.epochs()` belongs to an epoch that ended before the checkpoint.

        Such a pass is skipped. Passes after the checkpoint run normally.
        """
        if not self.has_resumed:
            return False
        self._epochs_over += 1
        over = self.epochs_opened
        if self._epochs_over == over:
            if self.is_returning:
                self.repeat_body()
            else:
                self.leave_epochs()
        return self._epochs_over <= over

    def enter_body(self) -> None:
        """If the checkpoint was saved before the user's code in its epoch ran, restore everything before this code runs."""
        if self.is_returning and self._checkpoint is not None and not self.place.get("in_body", True):
            self._load_and_finish(self._checkpoint.state)

    def repeat_body(self) -> None:
        """Restore the random generators before the user's code runs again, because this code may shuffle the data."""
        if self.is_returning and self.place["rng"] is not None:
            self._objects.randomness.load_state_dict(self.place["rng"])
            self._saving.rng_of_body = dict(self.place["rng"])

    def results_of(self, number: int) -> Mapping[str, Any] | None:
        """Return the results of a pass that ended before the checkpoint, or None if the pass must run."""
        if self.is_returning and number < len(self.place["passes"]):
            done: Mapping[str, Any] = self.place["passes"][number]
            if done["rng"] is not None:
                self._objects.randomness.load_state_dict(done["rng"])
            return done
        return None

    def enter_epoch(self) -> None:
        """If the checkpoint was saved between epochs, restore everything before the next epoch opens or the run ends."""
        if self._checkpoint is not None and not self.is_returning:
            self._load_and_finish(self._checkpoint.state)

    def leave_epochs(self) -> None:
        """Restore everything when all epochs are done, unless the checkpoint was saved later, at the end of the run."""
        if not self.place.get("is_end"):
            self.enter_epoch()

    def restore_in_epoch(self) -> None:
        """If the checkpoint was saved inside an epoch, but not inside a pass, restore everything.

        A HostDriver calls this, because its host might not open another training pass in this epoch.
        """
        if self.is_returning and self._checkpoint is not None and self.place["batches"] is None:
            self._load_and_finish(self._checkpoint.state)

    def _load_and_finish(self, state: Mapping[str, Any]) -> None:
        self._load(state)
        self._finish(state)

    def enter_data(self, pass_: Pass) -> None:
        """Start iterating over a pass's loader.

        If the run resumes in this pass, restore everything and continue after the batches that are done.
        """
        positions, epoch = self._objects.positions, self._run.epoch
        if not pass_.is_train:
            pass_.source = iter(pass_.loader) if pass_.is_side else positions.visit(pass_.loader)
        elif self.is_returning:
            pass_.source, pass_.batches_seen, total = self._enter_pass(pass_.loader)
            pass_.total = pass_.total if total is None else total
            pass_.steps_before = self._clocks.step
            pass_.sampled_next += pass_.batches_seen
        else:
            pass_.source = positions.begin(pass_.loader, epoch)
        if positions.notes:
            self._report_data()

    def leave_data(self, pass_: Pass, *, is_cut: bool) -> None:
        """Record the end of a pass. If it was a pass of the epoch, a resumed run skips it."""
        self._objects.positions.leave(pass_.loader)
        if not self._objects.scopes.passes and not pass_.is_side:
            self._saving.add_pass(pass_.results, pass_.batches_seen, is_cut=is_cut)

    def exhaust_data(self, pass_: Pass) -> None:
        """Exhaust the loader of a pass that was stopped at its last batch, as if the pass had not been stopped."""
        if not pass_.is_side:
            self._objects.positions.exhaust(pass_.loader, pass_.source)

    def _enter_pass(self, loader: Iterable[Any]) -> Entered:
        """Restore everything now that the pass is open. Return the remaining batches and the position in the pass."""
        assert self._checkpoint is not None
        positions, state, batches = self._objects.positions, self._checkpoint.state, self.place["batches"]
        self._saving.passes_done = [dict(done) for done in self.place["passes"]]
        entered, is_changed = None, False
        with self._objects.may_wait():
            self._load(state, in_pass=batches is not None)
            if batches is not None:
                enter = positions.resume if self.moved is None else positions.resume_in_team
                entered = enter(loader, self._clocks.epoch, batches, state["data"])
                items = list_digest(loader, batches) if self.moved is None and self._run.is_chief else None
                is_changed = items is not None and self.place.get("items") not in (None, items)
            self._finish(state)
        if is_changed:  # only on the chief, because other ranks may have other lists
            logger.warning("%s", CHANGED_LIST)
            self._run.put_event("inexact_resume", reason=CHANGED_LIST)
        return Entered(positions.begin(loader, self._clocks.epoch), 0) if entered is None else entered

    def _report_data(self) -> None:
        """Report how the run's data differs from the data that the checkpoint describes."""
        notes, self._objects.positions.notes = self._objects.positions.notes, []
        self.has_other_data = True
        for note in notes:
            if self._run.is_chief:
                logger.warning("%s", note)
            self._run.put_event("inexact_resume", reason=note)

    def check_returned(self) -> None:
        """Raise CannotResume if the epoch ended before the run reached the pass to resume."""
        if self.is_returning and not self._objects.verdicts.stop:
            checkpoint, number = self._checkpoint, len(self.place["passes"]) + 1
            assert checkpoint is not None
            raise CannotResume(
                f"{checkpoint.path} was saved in pass {number} of epoch {self._run.epoch}, but this epoch has fewer passes.",
                run="the script unchanged",
                start='from scratch with resume="never"',
            )

    def report_finished(self, epochs: int | None) -> None:
        """Tell the user if all of these epochs are already done, in an earlier process or in an earlier loop of this run."""
        done = self._clocks.epochs_done
        if done > self._done_before:
            if epochs and done >= epochs and not self._objects.verdicts.stop and self._run.is_chief:
                logger.warning(
                    "run.epochs(%d) runs no epochs: epoch %d is already done; write run.epochs(%d) for %d more",
                    *(epochs, done, done + epochs, epochs),
                )
        elif epochs is not None and self._is_finished(epochs):
            count = f"{done} of {epochs} epochs" if done == epochs else f"{done} epochs, {epochs} requested"
            say(
                f"{self._run.name} has already finished ({count}). Its final state has been loaded. "
                f'Pass epochs={done + epochs} to train further, or resume="never" to start from scratch.'
            )

    def _is_finished(self, epochs: int | None) -> bool:
        done = self._clocks.epochs_done
        return self.has_resumed and epochs is not None and done >= epochs and not self.is_returning

    def _finish(self, state: Mapping[str, Any]) -> None:
        assert self._checkpoint is not None
        path, self.place, self._checkpoint = self._checkpoint.path, BETWEEN_EPOCHS, None
        self._run.resuming = self._objects.logbook.is_muted = self._run.monitors.is_muted = False
        # The clocks are restored after the state, so that the loading time does not count as training time.
        self._clocks.load_state_dict(state["clocks"])
        place = state["place"]  # older checkpoints lack `stops_epoch` and `is_cut`
        if place.get("stops_epoch"):
            self._objects.verdicts.request_stop_epoch()
        self._objects.scopes.cut_short |= any(done.get("is_cut") for done in place.get("passes", ()))
        self._run.put_event("resume", path=str(path))
        if self.moved is not None:
            self._run.put_event("world_change", made_by=self.moved["from"], processes=self.moved["to"])
        if self._run.team.inexact:
            self._run.put_event("inexact_resume", reason=self._run.team.inexact)
        self._load_rng(state)
        if self._agreement is not None:
            self._agreement.sync_next()
        self.control.restore()

    def _load_rng(self, state: Mapping[str, Any]) -> None:
        if state["rng"] is not None:  # None if the number of ranks has changed: the generators are then not restored
            self._objects.randomness.load_state_dict(state["rng"])

    def _load(self, state: Mapping[str, Any], *, in_pass: bool = False, is_last: bool = True) -> None:
        objects, run, saved = self._objects, self._run, state["parts"]
        copied: Callable[[Any], Any] = (lambda value: value) if is_last else own_copy
        for name, item in self._stateful.items():
            if name in saved:
                try:
                    load_state(item, saved[name], is_last=is_last)
                except Exception as error:
                    error.add_note(f"while restoring the {name} from a checkpoint; does the checkpoint match this {name}?")
                    raise
        run.hyper.rates.load_state_dict(state.get("rates"))  # None for older checkpoints
        stepper_of(run).load_state_dict(run, copied(saved["stepper"]))
        if "gradients" in saved:
            restore_gradients(self._stateful["model"], saved["gradients"])
        self._saving.finite_buffers = state.get("finite_buffers") or self._saving.finite_buffers
        objects.hooks.load_state_dict(copied(state["callbacks"]))
        objects.logbook.load_state_dict(copied(state["logbook"]), in_pass=in_pass)
        self.control.load_state_dict(copied(state.get("control", {})))
        if self._after_load is not None:
            self._after_load(run)

    def _report(self, checkpoint: Checkpoint) -> None:
        """Log the differences between the checkpoint and the run.

        If this run does not use a callback from the checkpoint, later checkpoints still keep the state of that callback.
        """
        saved = checkpoint.state["parts"]
        if self.moved is not None:
            logger.warning(
                "%s was saved by %d ranks and is resumed by %d: from here on, the run is not bitwise identical to the saved "
                "run. No sample is lost or repeated, but random generators start from scratch, and steps use different samples",
                checkpoint.path,
                self.moved["from"],
                self.moved["to"],
            )
        for name in saved:
            if name not in ("stepper", "gradients") and name not in self._stateful:
                logger.warning("the checkpoint has state for '%s', which this run does not use", name)
        for name, item in self._stateful.items():
            if has_state(item) and name not in saved:
                logger.warning("the checkpoint has no state for '%s', which stays unchanged", name)
        optimizers = list(saved_optimizers(saved.get("optimizer")))
        if line := changed_rate(self._saving.script_rates, checkpoint.state.get("script_rates"), optimizers):
            logger.warning("%s", line)
        for line in changed_schedules(self._stateful.get("lr_scheduler"), saved.get("lr_scheduler")):
            logger.warning("%s", line)
        table = self._objects.hooks.compared(checkpoint.state["callbacks"])
        if table:
            logger.warning("the callbacks of this run do not match the checkpoint:\n%s", table)


def _check_workdirs(workdirs: list[bool]) -> None:
    """Raise BadLoop if only some ranks have a workdir, because the ranks would wait for each other."""
    if len(set(workdirs)) > 1:
        ranks = workdirs.index(True), workdirs.index(False)
        raise BadLoop("rank {} has a workdir, but rank {} has none.".format(*ranks), give="all ranks the same workdir")
