"""Count the FLOPs of one iteration with torch's counter. Importing this module imports torch."""

from __future__ import annotations

from contextlib import ExitStack
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode

from hookpoint.callbacks.progress._batch_signature import Flops


class FlopCount:
    """Count FLOPs between `start` and `stop`. Both methods may be called several times; the counts are added up."""

    def __init__(self) -> None:
        self.flops = Flops()
        self._counter: FlopCounterMode | None = None
        self._recomputation: Recomputation | None = None
        self._modes = ExitStack()

    def start(self) -> None:
        with ExitStack() as modes:
            self._counter = modes.enter_context(FlopCounterMode(display=False))
            self._recomputation = modes.enter_context(Recomputation(self._counter))
            self._modes = modes.pop_all()

    def stop(self) -> None:
        """Stop counting, if counting has started."""
        if self._counter is not None and self._recomputation is not None:
            self._modes.close()
            total = self._counter.get_total_flops()
            self.flops = self.flops.plus(Flops(total - self._recomputation.flops, total))
            self._counter = self._recomputation = None


class Recomputation(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Sum the FLOPs of the forward operations that activation checkpointing repeats during a backward pass.

    Activation checkpointing runs the forward pass again with gradients enabled. Other operations in a backward pass run without
    gradients, unless the backward pass itself is differentiated (`create_graph=True`).
    """

    supports_higher_order_operators = True

    def __init__(self, counter: FlopCounterMode) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.flops = 0
        self._counter = counter

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if not torch.is_grad_enabled() or torch._C._current_graph_task_id() == -1:
            return func(*args, **(kwargs or {}))
        before = self._counter.get_total_flops()
        try:
            return func(*args, **(kwargs or {}))
        finally:
            self.flops += self._counter.get_total_flops() - before
