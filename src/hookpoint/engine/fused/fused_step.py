"""FusedStep: check a Runner's options `compile` and `cuda_graph`, and create the stepper for them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

import torch

from hookpoint.core.callback.main_callback import overrides
from hookpoint.engine.data.as_loader import move
from hookpoint.engine.fused._copy_stream import CopyStream
from hookpoint.engine.fused._graph_options import CudaGraph, graph_options
from hookpoint.engine.step.torch_stepper import TorchStepper

if TYPE_CHECKING:
    from hookpoint.core.hooks.hooks import Hooks
    from hookpoint.engine.step.forward import Forward

COMPILED = "forward and loss are compiled, except while modules have hooks; uncompiled results may differ in the last bits"


class FusedStep:
    """Decide before training how the step runs: eager, compiled, as a CUDA graph, or both."""

    def __init__(
        self,
        compile: bool | Mapping[str, Any],
        cuda_graph: CudaGraph,
        *,
        device: torch.device,
        optimizer: Any,
        precision: str,
        strategy: Any,
        main: Any,
    ) -> None:
        self._device = device
        self._compile: dict[str, Any] | None = None
        self._compiled: dict[bool, tuple[Forward, Any]] = {}
        if compile is not False:
            from hookpoint.engine.fused._compiled_forward import compile_options

            self._compile = compile_options(compile, device, strategy, main)
        self._cuda_graph = graph_options(
            cuda_graph, device=device, optimizer=optimizer, precision=precision, strategy=strategy, main=main
        )
        self._copies = CopyStream(device) if self._cuda_graph else None

    def mover(self) -> Callable[[Any], Any] | None:
        """Return the function that moves a batch to the device, or None on the CPU, where batches are not moved."""
        if self._device.type == "cpu":
            return None
        return partial(move, device=self._device) if self._copies is None else self._copies

    def stepper(self, forward: Forward, model: Any, hooks: Hooks, **options: Any) -> TorchStepper:
        if self._compile is not None:
            from hookpoint.engine.fused._compiled_forward import CompiledForward

            hooks.remarks.append(lambda: ["", COMPILED])
            detaches = not hooks.calls("on_backward_begin") and not overrides(hooks.main, "on_iter_backward")
            if detaches not in self._compiled:  # later runs of this Runner reuse the code that was compiled for the first run
                compiled = CompiledForward(forward, self._compile, [model, forward.criterion], detaches=detaches)
                self._compiled[detaches] = forward, compiled
            forward, options["compiled"] = self._compiled[detaches]
        if self._cuda_graph is False:
            return TorchStepper(forward, hooks, self._device, **options)
        from hookpoint.engine.fused._graph_stepper import GraphStepper

        assert self._copies is not None
        return GraphStepper(forward, hooks, self._device, policy=self._cuda_graph, copies=self._copies, **options)
