"""ProcessTensors: call a function with the tensors of each step."""

from __future__ import annotations

from collections.abc import Callable
from typing import Unpack

from hookpoint.callbacks._shared.arguments import function, misfit
from hookpoint.callbacks.tensors._tensor_reader import Names, TensorReader
from hookpoint.core.callback.callback import Options
from hookpoint.core.errors import BadArgument
from hookpoint.core.run.run import Run
from hookpoint.core.schedule.when import Every


class ProcessTensors(TensorReader):
    """Call `fn` with named tensors after each step: `ProcessTensors(["loss", "fc.weight.grad"], fn)`.

    Names are "loss", "outputs", "batch", "targets", values inside them ("outputs/logits", "batch/0"), parameters and buffers of
    the model ("fc.weight"), the gradients that the step used ("fc.weight.grad"), and metrics. To read gradients in your own
    loop, pass `optimizer=` to the Loop. You can also pass a mapping from names of your choice to these names, or to functions
    of the run: `{"logits": lambda run: run.outputs[0]}`. An unknown name raises before the first step if possible, otherwise
    when it is first read.

    Values are detached and stay on their device. Only gradients are copied: clone any other value to keep it. Converting a
    value to a float waits for the device.

    Triggered after each optimizer step, unless `.when(...)` replaces this schedule. If it is triggered at the end of an epoch,
    the function receives the values of the epoch's last iteration. Listens to on_train_iter_end and, for gradients,
    on_step_begin.

    >>> with Loop([ProcessTensors(["batch/x", "loss"], print).when(Every(steps=2))]) as run:
    ...     for batch in run.batches([{"x": 1}, {"x": 2}]):
    ...         run.loss = batch["x"] / 2
    2 1.0
    """

    step_cost = (
        "the time that the function takes, plus two microseconds, plus one microsecond per name, "
        "plus a copy of each requested gradient"
    )

    def __init__(self, names: Names, fn: Callable[..., object], **options: Unpack[Options]) -> None:
        super().__init__(names, **options)
        self.fn = function("ProcessTensors", "fn", fn, write="lambda loss: ...")
        if problem := misfit(fn, *self.sources):
            give = f"a function of {', '.join(self.sources)}"
            raise BadArgument(f"ProcessTensors: fn must take {len(self.sources)} values: {problem}.", give=give)
        self.when(Every(steps=1))

    def on_trigger(self, run: Run) -> None:
        values = self.read(run)
        if values is not None:
            self.fn(*values.values())
