"""Run: what a callback sees of the run, and what it may ask of it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from math import fsum
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Literal, overload

from hookpoint.core.errors import BadArgument, BadValue
from hookpoint.core.points import BY_NAME
from hookpoint.core.run._aliases import PeerNames, as_epochs_method, as_stop_request
from hookpoint.core.run._values import Values
from hookpoint.core.run.iteration import Iteration

if TYPE_CHECKING:
    from typing import Unpack

    from hookpoint.core.checkpoint.store import Keep
    from hookpoint.core.run.run_loop import Batches, Epochs, EvaluateOptions, Mode, RunLoop
    from hookpoint.core.run.stepper import Stepper

Op = Literal["sum", "mean", "max", "min"]
OPS: dict[str, Callable[[Sequence[float]], float]] = {
    "sum": fsum,
    "mean": lambda values: fsum(values) / len(values),
    "max": max,
    "min": min,
}


class Run(PeerNames):
    """The run as callbacks know it: what was given, the clocks, this iteration's values, and services.

    `batch`, `batch_idx`, `outputs` and `loss` are there during an iteration only. Anything else that callbacks want to share
    goes into `store`, a dict.
    """

    __slots__ = ()

    # The loop: what a user's own `for` runs over

    @as_epochs_method
    def epochs(self, number: int | None = None) -> Epochs:
        """Iterate over epoch numbers, from the one after the last until `number` are done; None means until stopped."""
        return self._loop.epochs(number)

    def batches(self, loader: Iterable[Any], mode: Mode = "train") -> Batches:
        """Iterate over a loader's batches as a training, validation ("val") or prediction ("pred") pass."""
        return self._loop.batches(loader, mode)

    def evaluate(self, data: Any, **options: Unpack[EvaluateOptions]) -> Mapping[str, Any]:
        """Make a validation pass aside, which disturbs nothing; return the means of what is logged in it, or its results."""
        return self._loop.evaluate(data, **options)

    # The step

    def forward(self) -> None:
        """Compute `run.outputs`, and `run.loss` where there are targets."""
        self._stepper.forward(self)

    def backward(self) -> None:
        """Compute the gradients of `run.loss`, with on_backward_begin and on_backward_end around it."""
        self._stepper.backward(self)

    def optimizer_step(self) -> None:
        """Step the optimizer, where a step is due, with on_step_begin and on_step_end around it."""
        self._stepper.step(self)

    def adjust_lr(self) -> None:
        """Step the learning-rate scheduler, if there is one."""
        self._stepper.adjust_lr(self)

    # Verdicts, honoured at the next boundary. Whoever says `same_on_all_ranks` (or `alike`, its older name) knows that every
    # process asks for the same at this point, and is not kept waiting until all of them have heard of it.

    @as_stop_request
    def stop(self, reason: str = "run.stop() was called", *, alike: bool = False, same_on_all_ranks: bool = False) -> None:
        """Stop the run at the next boundary: no further iteration starts; the end points still fire.

        In a run of several processes all of them stop, one step later; at once if all of them ask for it at this point, which
        is what `same_on_all_ranks` says. The same holds for `stop_epoch` and `save`.
        """
        self._loop.settle()
        self._loop.stop(reason, same_on_all_ranks=alike or same_on_all_ranks)

    def stop_epoch(self, *, alike: bool = False, same_on_all_ranks: bool = False) -> None:
        """End this epoch's training at the next boundary; in a validation or prediction pass, end that pass."""
        self._loop.settle()
        self._loop.stop_epoch(same_on_all_ranks=alike or same_on_all_ranks)

    def skip_batch(self) -> None:
        """Leave this batch out: asked before the iteration's body, the body does not run; on_iter_skip fires."""
        self._loop.settle()
        self._loop.skip("batch")

    def skip_backward(self) -> None:
        """Leave out the backward pass and the step of this iteration. In a loop of one's own the body asks `run.skipped`."""
        self._loop.settle()
        self._loop.skip("backward")

    def skip_step(self) -> None:
        """Leave out the optimizer's step of this iteration. In a loop of one's own the body asks `run.skipped`."""
        self._loop.settle()
        self._loop.skip("step")

    def retry(self) -> None:
        """Run this batch again, from on_iter_begin, as often as the loop allows; on_iter_skip fires for this attempt."""
        self._loop.settle()
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
        """Ask for a checkpoint with this tag; it is written after the last handler of this point, at a step boundary.

        `keep` says which of the checkpoints with this tag are kept; without it all are. In the background, the run waits
        only until the state is copied. `measured` is the value that it is saved for, which its manifest then has: metric,
        mode, value, and the epoch, iteration and step it was measured at.
        """
        self._loop.settle()
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

        Takes numbers and tensors of one element, and never waits for a device. In a pass, values are averaged over it, by
        samples; in validation, plain names get `val_` in front.
        """
        self._loop.settle()
        if len(given) == 2:
            self._logbook.log(given[0], given[1], self._now.samples)
        elif given:
            if len(given) != 1 or type(given[0]) is not dict:
                _check_mapping(given)
            for name, value in given[0].items():
                self._logbook.log(name, value, self._now.samples)
        if values:
            for name, value in values.items():
                self._logbook.log(name, value, self._now.samples)

    def put_scalar(self, name: str, value: Any) -> None:
        """Log a value under just this name, also in validation. It keeps its step: only `run.log` averages."""
        self._loop.settle()
        self._logbook.put({name: value}, self._now.samples)

    def put_image(self, name: str, image: Any) -> None:
        """Send an image, height x width x channels or a batch of such, to the monitors."""
        self._loop.settle()
        self.monitors.put("image", {name: image})

    def put_histogram(self, name: str, values: Any) -> None:
        """Send values, whose spread is to be shown, to the monitors."""
        self._loop.settle()
        self.monitors.put("histogram", {name: values})

    def put_text(self, name: str, words: str) -> None:
        """Send a text to the monitors."""
        self._loop.settle()
        self.monitors.put("text", {name: words})

    def put_event(self, name: str, **fields: Any) -> None:
        """Send word of something that happened to the monitors: `run.put_event("stop", reason="loss is low")`."""
        self._loop.settle()
        self.monitors.put("event", {name: fields})

    # Registering

    def at_log_step(self, function: Callable[[Mapping[str, Any]], Mapping[str, Any]]) -> None:
        """Register a function of the values a log step sends; what it returns is sent with them, and may be floats later."""
        self._logbook.at_log_step.append(function)

    def at_leave(self, function: Callable[[], object]) -> None:
        """Have a function called once, when the pass now running ends, breaks off or fails; outside of one, see `Cleanup`."""
        self._loop.at_leave(function)

    def summary(self, name: str, function: Callable[[], Any]) -> None:
        """Register a function whose value is logged whenever summaries are merged."""
        self.summaries[name] = function

    def update_op(self, function: Callable[[], object]) -> None:
        """Register a function to be called after each step."""
        self.update_ops.append(function)

    # Points of one's own

    def fire(self, point: str, **payload: Any) -> Any:
        """Fire a point: the run's callbacks that have a handler for it are called with what they name of the payload."""
        self._loop.settle()
        if point in BY_NAME and not payload:
            return self.hooks.fire(point, self)
        return self.hooks.fire_payload(point, {**self.offered(("epoch", "logs")), **payload, "run": self})

    # Words with the other processes. Each of these calls is made by all of them, or by none; a callback that makes one says
    # `collective = True`. In one process each returns what it was given.

    def reduce(self, value: Any, op: Op = "sum") -> float:
        """Return the sum of a number over the processes with different data; or the mean, the largest, the smallest.

        Waits for the device of a tensor, and for the others; the answer is the same everywhere, bit for bit.
        """
        if op not in OPS:
            raise BadArgument(f"run.reduce() knows no {op!r}.", choose=", ".join(map(repr, OPS)))
        said = self._loop.gather([float(value), self.model_rank], f"run.reduce(op={op!r})")
        return OPS[op]([one for one, part in said if part == 0])

    def agree(self, flag: bool) -> bool:
        """Return whether any process says so."""
        return any(self._loop.gather(bool(flag), "run.agree()"))

    def gather(self, value: Any) -> list[Any]:
        """Return what each process has, in the order of ranks; it travels as JSON."""
        return self._loop.gather(value, "run.gather()")

    def broadcast(self, value: Any, source: int = 0) -> Any:
        """Return what one process has: numbers, texts, None, lists and dicts of them. It travels as JSON."""
        return self._loop.gather(value if self.rank == source else None, f"run.broadcast(source={source})")[source]


# What hookpoint's own loop and engine reach of a run, and users do not. A loop changes the iteration twice per batch: the way
# past __setattr__ takes a tenth of the time.
set_now: Callable[[Run, Iteration], None] = vars(Values)["_now"].__set__
set_loop: Callable[[Run, RunLoop], None] = vars(Values)["_loop"].__set__
set_stepper: Callable[[Run, Stepper], None] = vars(Values)["_stepper"].__set__
set_payload: Callable[[Run, dict[str, Any]], None] = vars(Values)["_payload"].__set__
now_of: Callable[[Run], Iteration] = attrgetter("_now")
loop_of: Callable[[Run], RunLoop] = attrgetter("_loop")
stepper_of: Callable[[Run], Stepper] = attrgetter("_stepper")


def _check_mapping(given: tuple[Any, ...]) -> None:
    if len(given) != 1 or not isinstance(given[0], Mapping):
        shown = ", ".join(map(repr, given))
        raise BadValue(f"run.log({shown}): there is no value.", write='run.log("name", value) or run.log(name=value)')
