"""Evaluation: a validation pass that is made by the run, and not by a user's own loop."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING, Any, TypedDict

from hookpoint.core.data.array_batches import AUTO, BatchSize
from hookpoint.core.errors import BadLoop, StopRun, text

if TYPE_CHECKING:
    from typing import Unpack

    from hookpoint.core.checkpoint.randomness import Randomness
    from hookpoint.core.hooks.dispatch import Dispatch
    from hookpoint.core.loop.batches import Batches
    from hookpoint.core.run.run import Run

LOADER_CHECK = "that the loader is not empty, and is no generator that has ended"


class EvaluateOptions(TypedDict, total=False):
    """What an evaluation may be told.

    `batch_size` is for a tuple of arrays or a data set. `forward` takes the run and sets its outputs, in place of its own.
    `update` gets the run for each batch that counts. `results` gets the means of what was logged, by name; what it returns is
    logged as final values, under just these names.
    """

    batch_size: BatchSize
    forward: Dispatch | None
    update: Callable[[Run], object]
    results: Callable[[Mapping[str, Any]], Mapping[str, Any]]


def evaluate(run: Run, data: Any, *, aside: bool = False, **options: Unpack[EvaluateOptions]) -> Mapping[str, Any]:
    """Make a validation pass, and return the means of what was logged in it, or its results where these are asked for.

    One that is made `aside` disturbs nothing: what is logged in it stays out of the metrics, random numbers are put back, and
    a stop that was asked for does not end it. There are no results where no batch counted, nor of a pass that a signal has
    cut off: they would be those of other data.
    """
    stepper, loop, update = run._stepper, run._loop, options.get("update")
    loader = stepper.batches(data, options.get("batch_size", AUTO))
    batches = loop.batches(loader, "val", aside=aside)
    apart = randomness_kept(loop.randomness, loader) if aside else nullcontext()
    counted = 0
    with left_on_error(batches), apart, stepper.evaluating(run):
        for batch in batches:
            del batch  # the run has it, and lets go of it when the iteration ends
            stepper.evaluate(run, options.get("forward"))
            if not run._now.is_off:
                counted += 1
                if update is not None:
                    update(run)
    this = batches._pass
    batches_done, counted = _by_all(run, this.is_shared, this.batches_done, counted)
    if not batches_done and not this.was_cut:
        raise BadLoop(text("the validation data gave no batch.", check=LOADER_CHECK))
    if "results" not in options:
        return batches.results
    if not counted or (this.was_cut and not this.wants_end):
        return {}
    values = options["results"](batches.results)
    loop.logbook.log_final(values, "val")
    return values


def _by_all(run: Run, is_shared: bool, *counts: int) -> tuple[int, ...]:
    """Return counts as all processes of the pass have them together: one of them may have had no data."""
    agreement = run._loop.agreement
    if agreement is None or not is_shared:
        return counts
    return tuple(sum(column) for column in zip(*agreement.talk.gather(counts, "the end of an evaluation"), strict=True))


@contextmanager
def left_on_error(batches: Batches) -> Iterator[None]:
    """Leave a pass that failed: whoever contains the error goes on training."""
    try:
        yield
    except StopRun:
        raise
    except BaseException:
        batches._pass.abort()
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
