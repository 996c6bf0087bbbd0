"""Resuming: how a run finds back to where a checkpoint left it.

A checkpoint is made between epochs, or inside a training pass. The run first gets back there, with `run.resuming` set and
nothing logged: epochs and passes that were over are left out, and what a user's code does on the way is undone when everything
is put back. That is when the next epoch opens, or, in the second case, when the epoch and the pass are open again: state first,
then the place in the data, last the generators of random numbers.

The state is therefore loaded twice. The first load comes before any code of the user's, which may look at the model, and before
on_load. The second one undoes what that code, and begin points that come again, have changed since. The first load gets a copy.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any

from hookpoint.core.checkpoint.own_copy import own_copy
from hookpoint.core.checkpoint.positions import Entered
from hookpoint.core.checkpoint.rank_state import share_of
from hookpoint.core.checkpoint.script_rates import changed_rate, rates_of, saved_optimizers
from hookpoint.core.checkpoint.stateful import has_state, load_state, put_gradients
from hookpoint.core.checkpoint.store import Checkpoint, ResumableStore, Resume
from hookpoint.core.errors import BadLoop, CannotResume
from hookpoint.core.run.run import stepper_of
from hookpoint.core.text.terminal import say

if TYPE_CHECKING:
    from hookpoint.core.checkpoint.crashes import Crashes
    from hookpoint.core.loop._agreement import Agreement
    from hookpoint.core.loop._saving import Saving
    from hookpoint.core.loop.passes import Pass
    from hookpoint.core.loop.run_components import RunComponents
    from hookpoint.core.run.run import Run

logger = logging.getLogger("hookpoint")

BETWEEN_EPOCHS = {"in_epoch": False}


class Resuming:
    """What is left to be put back. `place` is where the checkpoint was made, as long as the run is not back there."""

    def __init__(
        self,
        parts: RunComponents,
        saving: Saving,
        agreement: Agreement | None,
        *,
        crashes: Crashes,
        after_load: Callable[[Run], None] | None = None,
        is_quiet: bool = False,
    ) -> None:
        self.place: Mapping[str, Any] = BETWEEN_EPOCHS
        self.identity: Mapping[str, Any] = {}
        self.has_resumed = False
        self.moved: Mapping[str, int] | None = None
        self._shared, self._saving, self._agreement = parts, saving, agreement
        self._after_load, self._is_quiet, self._crashes = after_load, is_quiet, crashes
        self._run, self._clocks, self._parts = parts.run, parts.clocks, parts.stateful
        self._found: Checkpoint | None = None
        self._epochs_over = 0

    def open(self, resume: Resume, identity: Callable[[], Mapping[str, Any]]) -> None:
        """Look for a checkpoint; where there is one, set the clocks, and log nothing until all is put back."""
        run = self._run
        self._saving.script_rates = rates_of(run.optimizers)
        store = self._saving.resumable
        if self._agreement is not None:
            _refuse_different(self._agreement.gather(store is not None, "the workdir"))
        if store is None and resume not in ("auto", "never"):
            raise CannotResume(
                f"resume={str(resume)!r} needs a workdir, from which a run resumes and to which it writes.",
                give='workdir="runs/name"',
                start="or from weights alone, with init_weights=hookpoint.load_weights(...) of a Runner",
            )
        if store is not None:
            self._refuse_crash_loop(store, resume)
            self.identity = identity()
            self._found = store.open(resume, self.identity)
        if self._found is not None:
            self._found = Checkpoint(self._found.path, share_of(self._found.state, run.rank, run.world_size))
            self.moved = self._found.state.get("moved")
            self._clocks.load_state_dict(self._found.state["clocks"])
            self._crashes.reached(self._clocks.moment)
            self.place = self._found.state["place"]
            self.has_resumed = run.resuming = True
            self._shared.logbook.is_muted = run.monitors.is_muted = True

    def _refuse_crash_loop(self, store: ResumableStore, resume: Resume) -> None:
        """Raise CannotResume if the run keeps crashing at one moment; whoever gives `resume` by hand wants to try again."""
        described = getattr(store, "described", None)
        if described is not None:
            facts = described(resume)
            self._crashes.load(facts)
            again = 'resume="must"' if facts.get("has_checkpoint") else 'resume="never"'
            self._crashes.refuse(str(self._run.workdir or self._run.name), again)

    def inexact(self) -> list[str]:
        """Return what makes a run that goes on another one than it would have been, where anything does."""
        why, run = [], self._run
        if self.moved is not None:
            why.append(f"from step {run.step} on by {self.moved['to']} processes, before by {self.moved['from']}")
        if self.has_resumed and run.team.inexact:
            why.append(f"gone on with from step {run.step}: {run.team.inexact}")
        return why

    def put_back(self) -> Checkpoint | None:
        """Restore what was saved, after the begin points of the run; say so, and return it. A fresh run has none."""
        found, run = self._found, self._run
        if found is None:
            return None
        fill = getattr(self._saving.resumable, "fill", None)
        if fill is not None:  # now, not before: it takes the model as the processes share it to know what each has to read
            found = self._found = fill(found, self._parts)
        where = f"epoch {run.epoch}, step {run.step}"
        if not self._is_quiet and not self._is_finished(run.max_epochs):
            say(f'{run.name} goes on from {found.path} ({where}); resume="never" starts anew')
        if run.is_chief:
            self._report(found)
        saved = list(saved_optimizers(found.state["parts"].get("optimizer")))
        rates = self._saving.script_rates
        if rates == rates_of(saved):  # as it is when one process trains on: the script's are those of before
            self._saving.script_rates = found.state.get("script_rates", rates)
        self._load(found.state, is_last=False)
        self._shared.positions.load_state_dict(found.state["data"])
        self._put_generators(found.state)
        self._saving.keep_at()
        return found

    # Back to the pass

    @property
    def is_under_way(self) -> bool:
        """Whether the run is still on its way back into the epoch that the checkpoint was made in."""
        return bool(self.place["in_epoch"])

    @property
    def epochs_opened(self) -> int:
        """How many epochs were opened; the one in which the checkpoint was made is to be opened again."""
        return self._clocks.epoch - self.is_under_way

    def is_over(self) -> bool:
        """Say whether the epoch that a pass without `run.epochs()` would open was over before the checkpoint.

        The last such pass is where the checkpoint was made: what follows it in the script is no longer on the way back.
        """
        if not self.has_resumed:
            return False
        self._epochs_over += 1
        over = self.epochs_opened
        if self._epochs_over == over:
            if self.is_under_way:
                self.repeat_body()
            else:
                self.leave_epochs()
        return self._epochs_over <= over

    def repeat_body(self) -> None:
        """Let what a user's code does before the pass be what it was: the order of the data may be drawn there."""
        if self.is_under_way and self.place["rng"] is not None:
            self._shared.randomness.load_state_dict(self.place["rng"])
            self._saving.rng_of_body = dict(self.place["rng"])

    def results_of(self, number: int) -> Mapping[str, Any] | None:
        """Return what is known of a pass that was over before the checkpoint, or None for one that is to run."""
        if self.is_under_way and number < len(self.place["passes"]):
            done: Mapping[str, Any] = self.place["passes"][number]
            if done["rng"] is not None:
                self._shared.randomness.load_state_dict(done["rng"])
            return done
        return None

    def enter_epoch(self) -> None:
        """Put everything back, where the checkpoint was made between epochs, before one opens or the run ends."""
        if self._found is not None and not self.is_under_way:
            self._load(self._found.state)
            self._finish(self._found.state)

    def leave_epochs(self) -> None:
        """Put everything back when all epochs are over, unless the checkpoint was made later, at the very end."""
        if not self.place.get("is_end"):
            self.enter_epoch()

    def arrive(self) -> None:
        """Put everything back in an epoch whose passes were over: a host that resumes there ends it without another pass."""
        if self.is_under_way and self._found is not None and self.place["batches"] is None:
            self._load(self._found.state)
            self._finish(self._found.state)

    def enter_data(self, one: Pass) -> None:
        """Begin to iterate over the loader of a pass: in its middle, with everything put back, if that is where it resumes."""
        positions, epoch = self._shared.positions, self._run.epoch
        if not one.is_train:
            one.source = iter(one.loader) if one.is_side else positions.visit(one.loader)
        elif self.is_under_way:
            one.source, one.batches_seen, total = self._enter_pass(one.loader)
            one.total = one.total if total is None else total
            one.steps_before = self._clocks.step
            one.sampled_next += one.batches_seen
        else:
            one.source = positions.begin(one.loader, epoch)
        if positions.notes:
            self._report_data()

    def _enter_pass(self, loader: Iterable[Any]) -> Entered:
        """Put everything back, now that the pass is open; return what is left of it."""
        assert self._found is not None
        positions, state, batches = self._shared.positions, self._found.state, self.place["batches"]
        self._saving.passes_done = [dict(one) for one in self.place["passes"]]
        entered = None
        with self._shared.may_wait():
            self._load(state, in_pass=batches is not None)
            if batches is not None:
                enter = positions.resume if self.moved is None else positions.resume_in_team
                entered = enter(loader, self._clocks.epoch, batches, state["data"])
            self._finish(state)
        return Entered(positions.begin(loader, self._clocks.epoch), 0) if entered is None else entered

    def _report_data(self) -> None:
        """Say how the data of a resumed run differs from that of its checkpoint."""
        notes, self._shared.positions.notes = self._shared.positions.notes, []
        for note in notes:
            if self._run.is_chief:
                logger.warning("%s", note)
            self._run.put_event("inexact_resume", reason=note)

    def refuse_if_lost(self) -> None:
        """Say that the epoch ended, and the pass that was to be gone on with never came."""
        if self.is_under_way and not self._shared.verdicts.stop:
            found, number = self._found, len(self.place["passes"]) + 1
            assert found is not None
            raise CannotResume(
                f"{found.path} was made in pass {number} of epoch {self._run.epoch}, and this epoch has fewer passes.",
                run="the script as it was",
                start='anew with resume="never"',
            )

    def say_finished(self, epochs: int | None) -> None:
        """Say that there is nothing left to do, where that is so."""
        done = self._clocks.epochs_done
        if epochs is not None and self._is_finished(epochs):
            more = f'epochs={done + epochs} goes on with it, resume="never" starts anew'
            how_many = (
                f"{done} of {epochs} epochs are done" if done == epochs else f"{done} epochs are done, of {epochs} asked for"
            )
            say(f"{self._run.name} is finished: {how_many}, and its state is loaded; {more}")

    def _is_finished(self, epochs: int | None) -> bool:
        done = self._clocks.epochs_done
        return self.has_resumed and epochs is not None and done >= epochs and not self.is_under_way

    def _finish(self, state: Mapping[str, Any]) -> None:
        assert self._found is not None
        path, self.place, self._found = self._found.path, BETWEEN_EPOCHS, None
        self._run.resuming = self._shared.logbook.is_muted = self._run.monitors.is_muted = False
        self._clocks.load_state_dict(state["clocks"])  # now: the way back is no training time
        self._run.put_event("resume", path=str(path))
        if self.moved is not None:
            self._run.put_event("world_change", made_by=self.moved["from"], processes=self.moved["to"])
        if self._run.team.inexact:
            self._run.put_event("inexact_resume", reason=self._run.team.inexact)
        self._put_generators(state)
        if self._agreement is not None:
            self._agreement.talk_next()

    def _put_generators(self, state: Mapping[str, Any]) -> None:
        if state["rng"] is not None:  # made by another number of processes, it has none for this one: they begin afresh
            self._shared.randomness.load_state_dict(state["rng"])

    def _load(self, state: Mapping[str, Any], *, in_pass: bool = False, is_last: bool = True) -> None:
        shared, run, parts = self._shared, self._run, state["parts"]
        given: Callable[[Any], Any] = _as_it_is if is_last else own_copy
        for name, part in self._parts.items():
            if name in parts:
                try:
                    load_state(part, parts[name], is_last=is_last)
                except Exception as error:
                    error.add_note(f"while the {name} of a checkpoint was put back; was it made with another one?")
                    raise
        run.hyper.rates.load_state_dict(state.get("rates"))  # older checkpoints have none
        stepper_of(run).load_state_dict(run, given(parts["stepper"]))
        if "gradients" in parts:
            put_gradients(self._parts["model"], parts["gradients"])
        self._saving.finite_buffers = state.get("finite_buffers") or self._saving.finite_buffers
        shared.hooks.load_state_dict(given(state["callbacks"]))
        shared.logbook.load_state_dict(given(state["logbook"]), in_pass=in_pass)
        if self._after_load is not None:
            self._after_load(run)

    def _report(self, found: Checkpoint) -> None:
        """Say what the checkpoint and the run do not have in common; what nobody takes is kept for later checkpoints."""
        saved = found.state["parts"]
        if self.moved is not None:
            logger.warning(
                "%s was made by %d processes, and %d go on: from here on the run is inexact; no sample is lost or repeated, but"
                " random numbers begin afresh, and a step is made of other samples",
                found.path,
                self.moved["from"],
                self.moved["to"],
            )
        for name in saved:
            if name not in ("stepper", "gradients") and name not in self._parts:
                logger.warning("the checkpoint has a state of '%s', which this run has no use for", name)
        for name, part in self._parts.items():
            if has_state(part) and name not in saved:
                logger.warning("the checkpoint has no state of '%s': it starts as it is", name)
        optimizers = list(saved_optimizers(saved.get("optimizer")))
        if line := changed_rate(self._saving.script_rates, found.state.get("script_rates"), optimizers):
            logger.warning("%s", line)
        table = self._shared.hooks.compared(found.state["callbacks"])
        if table:
            logger.warning("callbacks and the checkpoint:\n%s", table)


def _as_it_is(state: Any) -> Any:
    return state


def _refuse_different(workdirs: list[bool]) -> None:
    """Raise BadLoop where some processes keep checkpoints and others do not: they would wait for each other."""
    if len(set(workdirs)) > 1:
        one, other = workdirs.index(True), workdirs.index(False)
        raise BadLoop(
            f"rank {one} has a workdir, and rank {other} has none.", give="all of them the same: what one writes is settled"
        )
