"""Run: the object that callbacks receive. It provides the run's state and accepts requests."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from math import fsum
from operator import attrgetter
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal, TypeVar, overload

from hookpoint.core.errors import BadArgument, BadValue, HookpointWarning
from hookpoint.core.hooks.lookup import find_callback, named_callbacks
from hookpoint.core.log.embedding import Embedding, Metadata
from hookpoint.core.log.floats import as_scalar
from hookpoint.core.points import BY_NAME
from hookpoint.core.run._aliases import PeerNames, as_epochs_method, as_stop_request
from hookpoint.core.run._values import Values
from hookpoint.core.run._values import now_of as now_of
from hookpoint.core.run.iteration import Iteration

if TYPE_CHECKING:
    from typing import Unpack

    from hookpoint.core.checkpoint.store import Keep
    from hookpoint.core.run.run_loop import Batches, Epochs, EvaluateOptions, Mode, RunLoop
    from hookpoint.core.run.stepper import Stepper

T = TypeVar("T")
Op = Literal["sum", "mean", "max", "min"]
OPS: dict[str, Callable[[Sequence[float]], float]] = {
    "sum": fsum,
    "mean": lambda values: fsum(values) / len(values),
    "max": max,
    "min": min,
}


class Run(PeerNames):
    """A run. Callbacks read its model, options, counters and current batch, and call its methods to log, save or stop.

    `batch`, `batch_idx`, `outputs` and `loss` exist only during an iteration. `store` is a dict in which callbacks can share
    other values.
    """

    __slots__ = ()

    # Loops

    @as_epochs_method
    def epochs(self, number: int | None = None) -> Epochs:
        """Iterate over epoch numbers until the run has done `number` epochs in total, or forever if `number` is None."""
        return self._loop.epochs(number)

    def batches(self, loader: Iterable[Any], mode: Mode = "train") -> Batches:
        """Iterate over the batches of a loader as a training ("train"), validation ("val") or prediction ("pred") pass."""
        return self._loop.batches(loader, mode)

    def evaluate(self, data: Any, **options: Unpack[EvaluateOptions]) -> Mapping[str, Any]:
        """Run a validation pass that does not affect the run. Return the means of its logged values.

        If you pass a function as `results`, this method returns the mapping from that function instead of the means.
        """
        return self._loop.evaluate(data, **options)

    def set_step(self, step: int) -> None:
        """Count optimizer steps from `step` instead of 0. Call this at on_run_begin, or before the first epoch.

        Schedules, log steps and checkpoint names use this count. A resumed run keeps the step of its checkpoint.
        """
        self._loop.set_step(step)

    # The step

    def forward(self) -> None:
        """Compute `run.outputs`, and `run.loss` if there are targets."""
        self._stepper.forward(self)

    def backward(self) -> None:
        """Compute the gradients of `run.loss`.

        Fires on_backward_begin before the backward pass and on_backward_end after it.
        """
        self._stepper.backward(self)

    def optimizer_step(self) -> None:
        """Step the optimizer if a step is due. Fires on_step_begin before the step and on_step_end after it."""
        self._stepper.step(self)

    def adjust_lr(self) -> None:
        """Step the learning-rate scheduler, if there is one."""
        self._stepper.adjust_lr(self)

    def recapture(self) -> None:
        """Capture the step's CUDA graph again, after a change that cannot be detected, such as replaced parameters.

        Has no effect without `Runner(cuda_graph=...)`.
        """
        self._stepper.recapture()

    # Verdicts, honoured at the next boundary.
    # `same_on_all_ranks` (older name: `alike`) declares that every rank makes the same request at this point.
    # The request then takes effect immediately, without agreement between ranks.

    @as_stop_request
    def stop(self, reason: str = "run.stop() was called", *, alike: bool = False, same_on_all_ranks: bool = False) -> None:
        """Stop the run at the next boundary. No further iteration starts, but the end points still fire.

        With multiple ranks, all ranks stop one step later. If every rank makes this request at this point, pass
        `same_on_all_ranks=True` to stop without this delay. The same applies to `stop_epoch` and `save`.
        """
        self._loop.stop(reason, same_on_all_ranks=alike or same_on_all_ranks)

    def stop_epoch(self, *, alike: bool = False, same_on_all_ranks: bool = False) -> None:
        """End this epoch's training at the next boundary. In a validation or prediction pass, end only that pass."""
        self._loop.stop_epoch(same_on_all_ranks=alike or same_on_all_ranks)

    def skip_batch(self) -> None:
        """Skip this batch, and fire on_iter_skip. If called before the body of the iteration, the body does not run."""
        self._loop.skip("batch")

    def skip_backward(self) -> None:
        """Skip this iteration's backward pass and optimizer step. In your own loop, check `run.skipped` in the body."""
        self._loop.skip("backward")

    def skip_step(self) -> None:
        """Skip this iteration's optimizer step. In your own loop, check `run.skipped` in the body."""
        self._loop.skip("step")

    def retry(self) -> None:
        """Run this batch again from on_iter_begin, up to `max_retries` times. The current attempt fires on_iter_skip."""
        self._loop.retry()

    def save(
        self,
        tag: str = "manual",
        *,
        keep: Keep | None = None,
        in_background: bool = False,
        alike: bool = False,
        same_on_all_ranks: bool = False,
        measured: Mapping[str, Any] | None = None,
    ) -> None:
        """Request a checkpoint with this tag. It is written at a step boundary, after the current point's handlers have run.

        `keep` selects which checkpoints with this tag to keep. By default, all are kept. With `in_background`, the run waits
        only until the state is copied. `measured` is stored in the manifest. It contains the metric, mode and value that
        caused the save, and the epoch, iteration and step at which the value was measured.
        """
        self._loop.save(tag, keep, in_background, measured, same_on_all_ranks=alike or same_on_all_ranks)

    # Logging

    @overload
    def log(self, name: str, value: Any, /) -> None: ...
    @overload
    def log(self, values: Mapping[str, Any], /) -> None: ...
    @overload
    def log(self, **values: Any) -> None: ...
    def log(self, *given: Any, **values: Any) -> None:
        """Log values: `run.log("loss", loss)`, `run.log(loss=loss)` or `run.log({"loss": loss})`.

        Accepts numbers and one-element tensors, and never waits for a device. Within a pass, values are averaged over the
        pass, weighted by samples. In validation, plain names get the prefix `val_`.
        """
        if given:
            values = {**_as_mapping(given), **values}
        logbook, samples = self._logbook, self._now.samples
        for name, value in values.items():
            try:
                pending = logbook.recent[name]  # the name has already been logged since the last log step
            except KeyError:
                self._before_put("log", name)
                logbook.log(name, value, self._now.samples)
            else:
                pending.append((as_scalar(name, value), samples))

    def put_scalar(self, name: str, value: Any) -> None:
        """Log a single value under exactly this name, even in validation. Unlike `run.log`, this does not average values."""
        self._before_put("put_scalar", name)
        self._logbook.put({name: value}, self._now.samples)

    def put_image(self, name: str, image: Any) -> None:
        """Send an image to the monitors: height x width x channels, or a batch of such images."""
        self._before_put("put_image", name)
        self.monitors.put("image", {name: image})

    def put_histogram(self, name: str, values: Any) -> None:
        """Send values to the monitors, which show them as a histogram."""
        self._before_put("put_histogram", name)
        self.monitors.put("histogram", {name: values})

    def put_text(self, name: str, words: str) -> None:
        """Send a text to the monitors."""
        self._before_put("put_text", name)
        self.monitors.put("text", {name: words})

    def put_embedding(self, name: str, matrix: Any, metadata: Metadata | None = None, images: Any = None) -> None:
        """Send points to the monitors, for TensorBoard's projector.

        name: The name of the embedding. An earlier embedding with the same name is replaced.
        matrix: One row of numbers per point.
        metadata: A list with one label per point, or a mapping from column names to such lists.
        images: One small image per point, of shape height x width x channels.
        """
        self._before_put("put_embedding", name)
        self.monitors.put("embedding", {name: Embedding.of(name, matrix, metadata, images)})

    def put_event(self, name: str, **fields: Any) -> None:
        """Send an event to the monitors: `run.put_event("stop", reason="loss is low")`."""
        self._before_put("put_event", name)
        self.monitors.put("event", {name: fields})

    def _before_put(self, method: str, name: str) -> None:
        """Settle the loop. If the run has ended, warn the caller of the method, because monitors receive no more values."""
        self._loop.settle()
        if self._logbook.has_ended:
            text = f"run.{method}: the run has ended, so no monitor receives {name!r}. Call run.{method} before the run ends."
            warnings.warn(text, HookpointWarning, stacklevel=3)

    # Registering

    def at_log_step(self, function: Callable[[Mapping[str, Any]], Mapping[str, Any]]) -> None:
        """Register a function that receives the values sent at a log step.

        The values that the function returns are sent together with the values that it receives. All of these values may still
        be on a device.
        """
        self._logbook.at_log_step.append(function)

    def at_leave(self, function: Callable[[], object]) -> None:
        """Call a function once, when the current pass ends, is left with a `break`, or fails.

        Outside a pass, the function is called when the epoch or the run ends.
        """
        self._loop.at_leave(function)

    def summary(self, name: str, function: Callable[[], Any]) -> None:
        """Register a function. The callback `MergeAllSummaries` calls the function and logs its result."""
        self.summaries[name] = function

    def update_op(self, function: Callable[[], object]) -> None:
        """Register a function to call after each step."""
        is_first = not self._update_ops
        self._update_ops = (*self._update_ops, function)
        if is_first:  # RunUpdateOps is no longer idle
            self._loop.refresh()

    # Other callbacks

    @property
    def callbacks(self) -> Mapping[str, Any]:
        """The callbacks on this rank by name, in list order. A pipeline is replaced with its callbacks."""
        return MappingProxyType(named_callbacks(self.hooks.entries))

    @overload
    def callback(self, key: type[T]) -> T: ...
    @overload
    def callback(self, key: str) -> Any: ...
    def callback(self, key: str | type[Any]) -> Any:
        """Return the callback with this name, or the only one of this class. Raise UnknownCallback if none or several match."""
        return find_callback(self.hooks, key)

    # Custom points

    def fire(self, point: str, **payload: Any) -> Any:
        """Fire a point. A handler receives an item of the payload if the handler has a parameter with the item's name."""
        self._loop.settle()
        if point in BY_NAME and not payload:
            return self.hooks.fire(point, self)
        return self.hooks.fire_payload(point, {**self.offered(("epoch", "logs")), **payload, "run": self})

    # Collective calls. If one rank makes such a call, all other ranks must make it too. A callback that makes collective calls
    # sets `collective = True`. With one rank, no communication takes place.

    def reduce(self, value: Any, op: Op = "sum") -> float:
        """Return the sum, mean, max or min of a number over all ranks.

        If several ranks share a data shard, only the value of one of these ranks is used. This call waits for the other ranks
        and, if the value is a tensor, for its device. The result is bit-identical on all ranks.
        """
        if op not in OPS:
            raise BadArgument(f"run.reduce: unknown op {op!r}.", choose=", ".join(map(repr, OPS)))
        pairs = self._loop.gather([float(value), self.model_rank], f"run.reduce(op={op!r})")
        return OPS[op]([number for number, model_rank in pairs if model_rank == 0])

    def agree(self, flag: bool) -> bool:
        """Return whether the flag is true on any rank."""
        return any(self._loop.gather(bool(flag), "run.agree()"))

    def gather(self, value: Any) -> list[Any]:
        """Return the values of all ranks, in rank order. Values are sent as JSON."""
        return self._loop.gather(value, "run.gather()")

    def broadcast(self, value: Any, source: int = 0) -> Any:
        """Return the value from rank `source`. It is sent as JSON: numbers, strings, None, or lists and dicts of these."""
        return self._loop.gather(value if self.rank == source else None, f"run.broadcast(source={source})")[source]


# Internal access for the loop and the engine.
# A loop sets the iteration twice per batch, and bypassing __setattr__ is ten times as fast.
set_now: Callable[[Run, Iteration], None] = vars(Values)["_now"].__set__
set_loop: Callable[[Run, RunLoop], None] = vars(Values)["_loop"].__set__
set_stepper: Callable[[Run, Stepper], None] = vars(Values)["_stepper"].__set__
set_payload: Callable[[Run, dict[str, Any]], None] = vars(Values)["_payload"].__set__
loop_of: Callable[[Run], RunLoop] = attrgetter("_loop")
stepper_of: Callable[[Run], Stepper] = attrgetter("_stepper")


def _as_mapping(given: tuple[Any, ...]) -> Mapping[str, Any]:
    """Return the positional arguments of `run.log` as a mapping."""
    if len(given) == 2:
        return {given[0]: given[1]}
    if len(given) != 1 or not isinstance(given[0], Mapping):
        shown = ", ".join(map(repr, given))
        raise BadValue(f"run.log({shown}): no value given.", write='run.log("name", value) or run.log(name=value)')
    return given[0]
