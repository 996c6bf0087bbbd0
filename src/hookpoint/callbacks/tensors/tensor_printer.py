"""TensorPrinter: print the tensors of each step."""

from __future__ import annotations

import math
from collections import deque
from typing import Any, Unpack

from hookpoint.callbacks._shared.arguments import integer
from hookpoint.callbacks._shared.async_array import snapshot
from hookpoint.callbacks._shared.sharded_tensors import local_values
from hookpoint.callbacks.tensors._tensor_reader import Names, TensorReader
from hookpoint.core.callback.callback import Options
from hookpoint.core.run.run import Run
from hookpoint.core.schedule.when import Every
from hookpoint.core.text.terminal import printable, say

MAX_WAITING = 48  # lines whose values are still being copied


class TensorPrinter(TensorReader):
    """Print named tensors after each step, as in `step 3: loss 0.5, outputs 4 x 10 [0.1 -0.2 ...]`.

    `names` has the same form as in `ProcessTensors`. If a tensor has more than `most` elements, only its first `most` elements
    are copied and printed. Training does not wait for values on a GPU: they are printed once they are on the host, usually one
    step later, and by the end of the epoch at the latest. bfloat16 is printed as float32. Lines are written to stderr, above
    the progress bar.

    Triggered after each optimizer step, unless `.when(...)` says otherwise. Listens to on_train_iter_end, on_train_epoch_end,
    on_run_end and, for gradients, on_step_begin.

    >>> TensorPrinter(["loss", "fc.weight.grad"], most=4).when(Every(steps=100)).name
    'TensorPrinter(loss,fc.weight.grad)'
    """

    step_cost = "a small copy per tensor, plus the time to print"

    def __init__(self, names: Names, *, most: int = 10, **options: Unpack[Options]) -> None:
        super().__init__(names, **options)
        self.most = integer("TensorPrinter", "most", most, least=1)
        self.when(Every(steps=1))
        self._waiting: deque[tuple[int, list[ShownTensor]]] = deque()

    def on_run_begin(self, run: Run) -> None:
        super().on_run_begin(run)
        self._waiting.clear()

    def on_trigger(self, run: Run) -> None:
        values = self.read(run)
        if values is not None:
            shown = [ShownTensor(printable(name), value, self.most) for name, value in values.items()]
            self._waiting.append((run.step, shown))
            self._print()

    def on_train_iter_end(self, run: Run) -> None:
        super().on_train_iter_end(run)
        if self._waiting:
            self._print()

    def on_train_epoch_end(self) -> None:
        self._print(wait=True)

    def on_run_end(self) -> None:
        super().on_run_end()
        self._print(wait=True)  # print the remaining lines, even after an exception

    def _print(self, *, wait: bool = False) -> None:
        waiting = self._waiting
        while waiting and (wait or len(waiting) > MAX_WAITING or all(tensor.is_ready for tensor in waiting[0][1])):
            step, shown = waiting.popleft()
            say(f"step {step}: {', '.join(map(str, shown))}")


class ShownTensor:
    """Copy a number, or the first elements of a tensor or array. `str()` formats the copy, and waits for it if necessary.

    >>> str(ShownTensor("loss", 0.123456789, 10))
    'loss 0.123457'
    """

    def __init__(self, name: str, value: Any, limit: int) -> None:
        self._name = name
        self._shape: tuple[int, ...] = tuple(getattr(value, "shape", ()))
        value = local_values(value)
        self._is_cut = math.prod(getattr(value, "shape", ())) > limit
        self._values: Any = snapshot(first_elements(value, limit)) if hasattr(value, "shape") else value

    @property
    def is_ready(self) -> bool:
        """Whether the values can be read without waiting."""
        return getattr(self._values, "is_ready", True)

    def __str__(self) -> str:
        values = self._values.__array__().reshape(-1).tolist() if hasattr(self._values, "__array__") else [self._values]
        numbers = [f"{value:.6g}" if isinstance(value, float) else str(value) for value in values]
        if not self._shape:
            return f"{self._name} {numbers[0]}"
        return f"{self._name} {' x '.join(map(str, self._shape))} [{' '.join(numbers + ['...'] * self._is_cut)}]"


def first_elements(array: Any, limit: int) -> Any:
    """Return the first elements of a tensor or array in order, without copying the rest."""
    while array.ndim > 1 and array.shape[0] and math.prod(array.shape[1:]) >= limit:
        array = array[0]
    if array.ndim and array.shape[0]:
        array = array[: -(-limit // max(math.prod(array.shape[1:]), 1))]
    return array.reshape(-1)[:limit] if array.ndim else array
