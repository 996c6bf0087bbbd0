"""Evaluation: a validation pass that is made by the run, and not by a user's own loop."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING, Any

from hookpoint.core.data.array_batches import AUTO
from hookpoint.core.errors import BadData, StopRun
from hookpoint.core.loop.batches import BatchLoop, batches_over
from hookpoint.core.run.run import now_of, stepper_of

if TYPE_CHECKING:
    from typing import Unpack

    from hookpoint.core.checkpoint.randomness import Randomness
    from hookpoint.core.loop.machine import Machine
    from hookpoint.core.run.run_loop import EvaluateOptions

LOADER_CHECK = "that the loader is not empty, and is no generator that has ended"


def evaluate(machine: Machine, data: Any, *, is_side: bool = False, **options: Unpack[EvaluateOptions]) -> Mapping[str, Any]:
    """Make a validation pass, and return the means of what was logged in it, or its results where these are asked for.

    One that is made aside disturbs nothing: what is logged in it stays out of the metrics, random numbers are put back, and
    a stop that was asked for does not end it. There are no results where no batch counted, nor of a pass that a signal has
    cut off: they would be those of other data.
    """
    run, update = machine.running(), options.get("update")
    stepper = stepper_of(run)
    loader = stepper.batches(data, options.get("batch_size", AUTO))
    batches = batches_over(machine, loader, "val", is_side=is_side)
    apart = randomness_kept(machine.parts.randomness, loader) if is_side else nullcontext()
    counted = 0
    with left_on_error(batches), apart, stepper.evaluating(run):
        for batch in batches:
            del batch  # the run has it, and lets go of it when the iteration ends
            stepper.evaluate(run, options.get("forward"))
            if not now_of(run).is_discarded:
                counted += 1
                if update is not None:
                    update(run)
    one = batches.one
    batches_done, counted = _by_all(machine, one.is_shared, one.batches_done, counted)
    if not batches_done and not one.was_cut:
        raise BadData("the validation data gave no batch.", check=LOADER_CHECK)
    if "results" not in options:
        return batches.results
    if not counted or (one.was_cut and not one.wants_end):
        return {}
    values = options["results"](batches.results)
    machine.logbook.log_final(values, "val")
    return values


def _by_all(machine: Machine, is_shared: bool, *counts: int) -> tuple[int, ...]:
    """Return counts as all processes of the pass have them together: one of them may have had no data."""
    if machine.agreement is None or not is_shared:
        return counts
    said = machine.agreement.gather(counts, "the end of an evaluation")
    return tuple(sum(column) for column in zip(*said, strict=True))


@contextmanager
def left_on_error(batches: BatchLoop) -> Iterator[None]:
    """Leave a pass that failed: whoever contains the error goes on training."""
    try:
        yield
    except StopRun:
        raise
    except BaseException:
        batches.abort()
        raise


@contextmanager
def randomness_kept(randomness: Randomness, loader: Any) -> Iterator[None]:
    """Put every generator of random numbers back to where it was found: a loader's own may be that of another one too."""
    found = randomness.state_dict()
    owners = (loader, getattr(loader, "sampler", None), getattr(loader, "batch_sampler", None))
    generators: list[Any] = [one for owner in owners if hasattr(one := getattr(owner, "generator", None), "get_state")]
    states = [one.get_state() for one in generators]
    try:
        yield
    finally:
        randomness.load_state_dict(found)
        for generator, state in zip(generators, states, strict=True):
            generator.set_state(state)
