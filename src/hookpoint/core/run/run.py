"""Run: what a callback sees of the run."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, Literal, overload

from hookpoint.core.errors import NotAssignable, OutsideIteration
from hookpoint.core.log.metrics import Logs, Metrics
from hookpoint.core.points import BY_NAME
from hookpoint.core.run._aliases import OtherNames, as_epochs_method, as_stop_request
from hookpoint.core.run._collectives import Together
from hookpoint.core.run._mindspore_args import OriginalArgs
from hookpoint.core.run._requests import Asking
from hookpoint.core.run.evaluation import evaluate
from hookpoint.core.run.hyper import Hyper
from hookpoint.core.run.iteration import NO_ITERATION, Iteration
from hookpoint.core.run.stepper import PlainStepper, Stepper
from hookpoint.core.run.verdicts import Verdicts
from hookpoint.core.schedule.clocks import Clocks

if TYPE_CHECKING:
    from typing import Unpack

    from hookpoint.core.hooks.hooks import Hooks
    from hookpoint.core.log.logbook import Logbook
    from hookpoint.core.log.monitors import Monitors
    from hookpoint.core.loop.batches import Batches
    from hookpoint.core.loop.epochs import Epochs
    from hookpoint.core.loop.loop import Loop
    from hookpoint.core.loop.passes import Progress
    from hookpoint.core.run.evaluation import EvaluateOptions
    from hookpoint.core.schedule.moment import Moment
    from hookpoint.core.team.team import Team

Mode = Literal["train", "val", "pred"]

GIVEN = ("name", "model", "optimizer", "criterion", "lr_scheduler", "device", "workdir", "train_loader", "val_loader", "config")
PLACE = ("rank", "local_rank", "world_size")
CALLS = {
    "stop": 'run.stop("why")',
    "request_stop": "run.request_stop()",
    "log": 'run.log("name", value)',
    "save": 'run.save("tag")',
}


class Run(Asking, Together, OtherNames):
    """The run as callbacks know it: what was given, the clocks, this iteration's values, and services.

    `batch`, `batch_idx`, `outputs` and `loss` are there during an iteration only. Anything else that callbacks want to share
    goes into `store`, a dict.
    """

    __slots__ = (
        *GIVEN,
        *PLACE,
        "_args",
        "_clocks",
        "_logbook",
        "_loop",
        "_now",
        "_payload",
        "_stepper",
        "_verdicts",
        "epoch_complete",
        "hooks",
        "hyper",
        "max_epochs",
        "mode",
        "monitors",
        "resuming",
        "store",
        "summaries",
        "team",
        "update_ops",
    )

    name: str
    model: Any
    optimizer: Any
    criterion: Any
    lr_scheduler: Any
    device: Any
    workdir: Any
    train_loader: Any
    val_loader: Any
    config: dict[str, Any]
    rank: int
    local_rank: int
    world_size: int
    mode: Mode | None
    max_epochs: int | None
    epoch_complete: bool
    resuming: bool
    hooks: Hooks
    hyper: Hyper
    monitors: Monitors
    store: dict[str, Any]
    team: Team
    summaries: dict[str, Callable[[], Any]]
    update_ops: list[Callable[[], object]]

    def __init__(self, loop: Loop, hooks: Hooks, clocks: Clocks, logbook: Logbook, **given: Any) -> None:
        for name in GIVEN:
            setattr(self, name, given.get(name))
        self.rank, self.local_rank, self.world_size = given["rank"], given["local_rank"], given["world_size"]
        self.team = given["team"]
        self.hooks = hooks
        self.hyper = Hyper(self.optimizer)
        self.mode = self.max_epochs = None
        self.epoch_complete = self.resuming = False
        self.store, self.summaries, self.update_ops = {}, {}, []
        self._loop = loop
        self._clocks = clocks
        self._logbook = logbook
        self._verdicts = Verdicts()
        self._now: Iteration = NO_ITERATION
        self._payload: dict[str, Any] = {}
        self._stepper: Stepper = PlainStepper()
        self._args = OriginalArgs(self)

    stop = as_stop_request(Asking.stop)

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
        self._loop.settle()
        return evaluate(self, data, aside=True, **options)

    # Clocks

    @property
    def epoch(self) -> int:
        """The epoch now running, from 1; 0 before the first."""
        return self._clocks.epoch

    @property
    def step(self) -> int:
        """Optimizer steps done."""
        return self._clocks.step

    @property
    def iteration(self) -> int:
        """Training batches done."""
        return self._clocks.iteration

    @property
    def moment(self) -> Moment:
        """Epoch, iteration and step of now: what savers and readers of metrics compare."""
        return self._clocks.moment

    @property
    def samples(self) -> int:
        """Training samples seen."""
        return self._clocks.samples

    @property
    def elapsed(self) -> float:
        """Seconds of training, kept across a resume."""
        return self._clocks.elapsed()

    @property
    def current_iteration(self) -> int:
        """The number, from 1, of the training iteration now running, or of the last one."""
        return self._clocks.iteration + (self.mode == "train" and self._now is not NO_ITERATION and not self._now.has_ended)

    @property
    def progress(self) -> Progress | None:
        """Mode, batches done and number of batches of the pass now running; None between passes. Any thread may read it."""
        passes = self._loop.passes[-1:]
        return passes[0].progress if passes else None

    # This iteration

    @property
    def batch(self) -> Any:
        return self._now.batch

    @batch.setter
    def batch(self, value: Any) -> None:
        self._now.batch = value

    @property
    def batch_idx(self) -> int:
        return self._now.batch_idx

    @property
    def outputs(self) -> Any:
        return self._now.outputs

    @outputs.setter
    def outputs(self, value: Any) -> None:
        self._now.outputs = value

    @property
    def targets(self) -> Any:
        return self._now.targets

    @targets.setter
    def targets(self, value: Any) -> None:
        self._now.targets = value

    @property
    def loss(self) -> Any:
        return self._now.loss

    @loss.setter
    def loss(self, value: Any) -> None:
        self._now.loss = value

    @property
    def skipped(self) -> frozenset[str]:
        """What a verdict left out of this iteration: "batch", "backward", "step"."""
        if self._now is not NO_ITERATION:
            self._now.skips_were_read = True
        return self._now.skipped

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

    # What was logged

    @property
    def metrics(self) -> Metrics:
        """The latest value of each metric, as a float when read."""
        return self._logbook.metrics

    @property
    def logs(self) -> Logs:
        """The metrics of this moment: those with a value of the running epoch."""
        return Logs(self._logbook.metrics, self._clocks.epoch)

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
        else:
            for name, value in (given[0] if given else values).items():
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

    def at_log_step(self, function: Callable[[Mapping[str, Any]], Mapping[str, Any]]) -> None:
        """Register a function of the values a log step sends; what it returns is sent with them, and may be floats later."""
        self._logbook.at_log_step.append(function)

    def at_leave(self, function: Callable[[], object]) -> None:
        """Have a function called once, when the pass now running ends, breaks off or fails; outside of one, see `Leaving`."""
        self._loop.leaving.add(self._loop.passes[-1] if self._loop.passes else None, function)

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

    def offered(self, names: Iterable[str]) -> dict[str, Any]:
        """Return what is there of these arguments, by name."""
        values: dict[str, Any] = {}
        for name in names:
            if name in self._payload:
                values[name] = self._payload[name]
            elif name == "run":
                values[name] = self
            else:
                try:
                    values[name] = getattr(self, name)
                except (OutsideIteration, AttributeError):
                    continue
        return values

    def __setattr__(self, name: str, value: Any) -> None:
        attribute = getattr(type(self), name, None)
        if callable(attribute):
            raise NotAssignable.method(name, CALLS.get(name, f"run.{name}(...)"))
        if attribute is None:
            raise NotAssignable.unknown(name)
        if isinstance(attribute, property) and attribute.fset is None:
            raise NotAssignable.kept(name)
        object.__setattr__(self, name, value)

    def __repr__(self) -> str:
        return f"Run({self.name!r}, epoch={self.epoch}, step={self.step})"


# A loop changes the iteration twice per batch; this way past __setattr__ takes a tenth of the time.
set_now: Callable[[Run, Iteration], None] = Run.__dict__["_now"].__set__
