"""TensorPrinter: print tensors of each step."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from hookpoint.callbacks._shared.arguments import whole
from hookpoint.callbacks.tensors._shown_tensor import ShownTensor
from hookpoint.callbacks.tensors._tensor_reader import TensorReader
from hookpoint.core.schedule.when import Every
from hookpoint.core.text.terminal import printable, say

if TYPE_CHECKING:
    from typing import Unpack

    from hookpoint.callbacks.tensors._named_tensors import Names
    from hookpoint.core.callback.callback import Options
    from hookpoint.core.run.run import Run

MOST_WAITING = 48  # lines whose values may be on their way


class TensorPrinter(TensorReader):
    """Print the tensors of these names after each step, as in `step 3: loss 0.5, outputs 4 x 10 [0.1 -0.2 ...]`.

    Names are those of `ProcessTensors`. Of a tensor with more than `most` elements the first of them are printed, and only they
    are copied. What is on a GPU is read when it has come, without waiting for it: the line comes a step or so later, at the end
    of the epoch at the latest. bfloat16 is printed as float32. Lines go to stderr, above a progress bar.

    Triggered after each optimizer step, unless `.when(...)` says otherwise. Listens to on_train_iter_end, on_train_epoch_end
    and on_run_end, and for gradients to on_step_begin. Keeps nothing in the checkpoint. Runs on the chief. A step pays for a
    small copy per tensor, and for the printing.

    >>> TensorPrinter(["loss", "fc.weight.grad"], most=4).when(Every(steps=100)).name
    'TensorPrinter(loss,fc.weight.grad)'
    """

    def __init__(self, names: Names, *, most: int = 10, **options: Unpack[Options]) -> None:
        super().__init__(names, **options)
        self.most = whole("TensorPrinter", "most", most, least=1)
        self.when(Every(steps=1))
        self._waiting: deque[tuple[int, list[ShownTensor]]] = deque()

    def on_run_begin(self, run: Run) -> None:
        super().on_run_begin(run)
        self._waiting.clear()

    def on_trigger(self, run: Run) -> None:
        values = self.tensors.read(run)
        if values is not None:
            shown = [ShownTensor(printable(name), value, self.most) for name, value in values.items()]
            self._waiting.append((run.step, shown))
            self._say()

    def on_train_iter_end(self, run: Run) -> None:
        super().on_train_iter_end(run)
        if self._waiting:
            self._say()

    def on_train_epoch_end(self) -> None:
        self._say(wait=True)

    def on_run_end(self) -> None:
        super().on_run_end()
        self._say(wait=True)  # what an exception has cut off is what one wants to see

    def _say(self, *, wait: bool = False) -> None:
        waiting = self._waiting
        while waiting and (wait or len(waiting) > MOST_WAITING or all(one.is_there for one in waiting[0][1])):
            step, shown = waiting.popleft()
            say(f"step {step}: {', '.join(map(str, shown))}")
