"""ProcessTensors: call a function with tensors of each step."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import TYPE_CHECKING

from hookpoint.callbacks.tensors._tensor_reader import TensorReader
from hookpoint.core.errors import BadArgument
from hookpoint.core.schedule.when import Every

if TYPE_CHECKING:
    from typing import Unpack

    from hookpoint.callbacks.tensors._named_tensors import Names
    from hookpoint.core.callback.callback import Options
    from hookpoint.core.run.run import Run


class ProcessTensors(TensorReader):
    """Call `fn` with the tensors of these names after each step: `ProcessTensors(["loss", "fc.weight.grad"], fn)`.

    Names are "loss", "outputs", "batch", "targets", what is inside of them ("outputs/logits", "batch/0"), parameters and
    buffers of the model ("fc.weight"), gradients that the step used ("fc.weight.grad"; in a loop of one's own they need
    `optimizer=`), and metrics. A mapping gives them other names, or has functions of the run: `{"logits": lambda run:
    run.outputs[0]}`. What is not there is refused, before the first step where that can be known, else when it is first read.

    Values are detached, on their device, and not copied: a function that keeps one clones it. Only gradients are copies. A
    function that makes floats of them waits for the device.

    Triggered after each optimizer step, unless `.when(...)` says otherwise: at the end of an epoch the function gets what
    belongs to its last iteration. Listens to on_train_iter_end, and for gradients to on_step_begin. Keeps nothing in the
    checkpoint. Runs on the chief. A step pays for the function, for two microseconds and one more per name, and for a copy of
    each gradient.

    >>> with Loop([ProcessTensors(["batch/x", "loss"], print).when(Every(steps=2))]) as run:
    ...     for batch in run.batches([{"x": 1}, {"x": 2}]):
    ...         run.loss = batch["x"] / 2
    2 1.0
    """

    def __init__(self, names: Names, fn: Callable[..., object], **options: Unpack[Options]) -> None:
        super().__init__(names, **options)
        if not callable(fn):
            raise BadArgument(f"ProcessTensors takes a function, not {fn!r}.", write="lambda loss: ...")
        _refuse_wrong_number(fn, list(self.tensors.sources))
        self.fn = fn
        self.when(Every(steps=1))

    def on_trigger(self, run: Run) -> None:
        values = self.tensors.read(run)
        if values is not None:
            self.fn(*values.values())


def _refuse_wrong_number(function: Callable[..., object], names: list[str]) -> None:
    try:
        signature = inspect.signature(function)
    except ValueError:  # some that are written in C do not say what they take
        return
    try:
        signature.bind(*names)
    except TypeError as error:
        words = f"ProcessTensors calls its function with {len(names)} values, which it does not take: {error}."
        raise BadArgument(words, give=f"a function of {', '.join(names)}") from None
