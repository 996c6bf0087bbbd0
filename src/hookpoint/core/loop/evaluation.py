"""Evaluation: a validation pass that the run itself starts, outside the user's loop."""

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

    from hookpoint.core.checkpoint.randomness import PlainRandomness
    from hookpoint.core.loop.machine import Machine
    from hookpoint.core.run.run_loop import EvaluateOptions

LOADER_CHECK = "that the loader is neither empty nor an exhausted generator"


def evaluate(machine: Machine, data: Any, *, is_side: bool = False, **options: Unpack[EvaluateOptions]) -> Mapping[str, Any]:
    """Run a validation pass. Return the means of its logged values, or the result of the `results` function.

    A side pass does not affect the run: its values do not become metrics, random generators are restored, and an earlier stop
    request does not end the pass.

    The `results` function is not called, and the result is empty, if every batch was skipped. The same applies if a stop or a
    signal ended the pass early, because the function would see only part of the data.
    """
    run, update = machine.running(), options.get("update")
    stepper, forward = stepper_of(run), options.get("forward")
    evaluate_batch = stepper.evaluate
    loader = stepper.batches(data, options.get("batch_size", AUTO))
    batches = batches_over(machine, loader, "val", is_side=is_side)
    isolated = preserved_randomness(machine.objects.randomness, loader) if is_side else nullcontext()
    counted = 0
    with abort_on_error(batches), isolated, stepper.evaluating(run):
        for batch in batches:
            del batch  # so that the run can release the batch when the iteration ends
            evaluate_batch(run, forward)
            now = now_of(run)
            if not (now.has_requests and now.is_discarded):
                counted += 1
                if update is not None:
                    update(run)
    pass_ = batches.pass_
    batches_done, counted = _total(machine, pass_.is_shared, pass_.batches_done, counted)
    if not batches_done and not pass_.was_cut:
        raise BadData("the validation data yielded no batch.", check=LOADER_CHECK)
    if "results" not in options:
        return batches.results
    if not counted or (pass_.was_cut and not pass_.wants_end):
        return {}
    values = options["results"](batches.results)
    machine.logbook.log_final(values, "val")
    return values


def _total(machine: Machine, is_shared: bool, *counts: int) -> tuple[int, ...]:
    """For each of these counts, return the sum over all ranks that share the pass. Some ranks may have had no data."""
    if machine.agreement is None or not is_shared:
        return counts
    gathered = machine.agreement.gather(counts, "the end of an evaluation")
    return tuple(sum(column) for column in zip(*gathered, strict=True))


@contextmanager
def abort_on_error(batches: BatchLoop) -> Iterator[None]:
    """Discard the pass if an error occurs in a `with` block. A caller that catches the error can then continue training."""
    try:
        yield
    except StopRun:
        raise
    except BaseException:
        batches.abort()
        raise


@contextmanager
def preserved_randomness(randomness: PlainRandomness, loader: Any) -> Iterator[None]:
    """Restore all random generators at the end of a `with` block.

    This includes the loader's generator, because another loader may use the same generator.
    """
    before = randomness.state_dict()
    owners = (loader, getattr(loader, "sampler", None), getattr(loader, "batch_sampler", None))
    candidates = (getattr(owner, "generator", None) for owner in owners)
    generators: list[Any] = [generator for generator in candidates if hasattr(generator, "get_state")]
    states = [generator.get_state() for generator in generators]
    try:
        yield
    finally:
        randomness.load_state_dict(before)
        for generator, state in zip(generators, states, strict=True):
            generator.set_state(state)
