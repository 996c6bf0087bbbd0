"""StepGraph: one captured step, and the cleanup after a failed capture."""

from __future__ import annotations

import os
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

from hookpoint.core.errors import BadLoop, HookpointError, StopRun

NOT_THE_USERS = (f"{Path(torch.__file__).parent}{os.sep}", f"{Path(__file__).parent.parent.parent}{os.sep}")

AS_THEY_ARE = (HookpointError, StopRun, torch.OutOfMemoryError)  # these errors already explain the problem


class StepGraph:
    """A captured step. `replay` runs its kernels again on the current contents of the static buffers.

    A replay writes each parameter's gradient to its buffer in `gradients`. `adds` contains a flag for each parameter: if True,
    a replay adds to the existing gradient instead of overwriting it.
    """

    def __init__(
        self, work: Callable[[], Any], parameters: Sequence[Any], adds: Sequence[bool], device: torch.device, pool: Any
    ) -> None:
        self._parameters, self._adds = parameters, adds
        self._graph = torch.cuda.CUDAGraph()
        generator = torch.cuda.default_generators[device.index]
        random_state = generator.get_state()
        # Other threads may call CUDA during the capture: a loader thread may pin memory, and a monitor may wait for a value.
        self._graph.capture_begin(pool=pool, capture_error_mode="thread_local")
        try:
            self.results = work()
            self._graph.capture_end()
        except BaseException as error:
            _abandon(self._graph, device, pool)
            # After a failed capture, the generator raises an error for every random number until it gets a new state.
            generator.graphsafe_set_state(torch.Generator(device))
            generator.set_state(random_state)
            if isinstance(error, AS_THEY_ARE) or not isinstance(error, Exception):
                raise
            raise _failed(error) from error
        self.gradients = [parameter.grad for parameter in parameters]

    def replay(self) -> None:
        """Run the captured step. The parameters' gradients are in the captured buffers afterwards."""
        self.bind_gradients()
        self._graph.replay()

    def bind_gradients(self, *, adds: bool = False) -> None:
        """Set the parameters' gradients to the captured buffers.

        If the step adds to an existing gradient, copy this gradient to its buffer first.
        """
        for parameter, buffer, adds_here in zip(self._parameters, self.gradients, self._adds, strict=True):
            gradient = parameter.grad
            if gradient is not buffer:
                if adds or adds_here:
                    if buffer is None:
                        continue  # this step does not use the parameter
                    if gradient is None:
                        buffer.zero_()
                    else:
                        buffer.copy_(gradient)
                parameter.grad = buffer

    def release(self) -> None:
        """Free the graph. Gradients that parameters still use are first copied out of the graph's memory."""
        for parameter, buffer in zip(self._parameters, self.gradients, strict=True):
            if buffer is not None and parameter.grad is buffer:
                parameter.grad = buffer.clone()
        self._graph.reset()
        self.results, self.gradients = None, []


def _abandon(graph: Any, device: torch.device, pool: Any) -> None:
    """End a failed capture. If CUDA has invalidated it, also end the allocator's capture mode, which torch does not do."""
    try:
        graph.capture_end()
    except RuntimeError:
        torch._C._cuda_endAllocateToPool(device.index, pool)
        torch._C._cuda_releasePool(device.index, pool)


def _failed(error: Exception) -> BadLoop:
    """Return an error that shows the line of the user's code that cannot be captured."""
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if not frame.filename.startswith(NOT_THE_USERS)]
    where = f" at {frames[-1].filename}:{frames[-1].lineno}: {frames[-1].line}" if frames else ""
    reason = str(error).splitlines()[0] if str(error) else type(error).__name__
    return BadLoop(
        f"the step cannot be captured in a CUDA graph{where} ({reason}).",
        avoid=".item(), .cpu(), print(tensor) and branches on tensor values in the forward and the loss",
        drop='cuda_graph=True, or pass cuda_graph="auto" to train without a graph in this case',
    )
