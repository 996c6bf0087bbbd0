"""PipelineRuntime: torch's stages and schedules for one process's layers, one for each shape of batch."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe
from torch.utils._pytree import tree_map_only

from hookpoint.core.team.checked_team import unanswered
from hookpoint.parallel.pipeline._microbatches import MicrobatchLoss, number_of
from hookpoint.parallel.pipeline._shape_inference import ShapeInference, Shapes
from hookpoint.parallel.team.peer_errors import is_peer_error

MOST_PIPES = 8  # of different shapes: each has room for what the stage before sends


class Pipe(NamedTuple):
    """A batch of one shape goes through this: in so many microbatches, by torch's schedule; the last stage returns `shapes`."""

    number: int
    stage: Any
    schedule: Any
    shapes: Shapes


class PipelineRuntime:
    """Let batches go through the stages. torch's stage takes one shape only: each shape has its own, and the last few are kept.

    All processes call the same methods with the same batch; the first stage takes the inputs, the last one the targets.
    """

    def __init__(
        self, own: nn.Module, skeleton: ShapeInference, device: torch.device, group: Any, *, microbatches: int, schedule: str
    ) -> None:
        self.rank, self.size = dist.get_rank(group), dist.get_world_size(group)
        self.is_first, self.is_last = self.rank == 0, self.rank == self.size - 1
        self.group = group
        self._own = own if self.is_last else Contiguous(own)
        self._skeleton = skeleton
        self.device = device
        self._microbatches = microbatches
        self._schedule = schedule
        self._pipes: OrderedDict[Any, Pipe] = OrderedDict()

    def train(self, inputs: Shapes, targets: torch.Tensor, loss: MicrobatchLoss, *, sends: bool) -> tuple[Any, torch.Tensor]:
        """Do forward and backward; return the outputs, where they are sent, and the mean of the microbatches' losses."""
        pipe = self._pipe(inputs, loss)
        given = inputs if self.is_first else ()
        losses: list[torch.Tensor] = []
        if self.is_last:
            loss.begin(targets, pipe.number)
        outputs = self._done(pipe, lambda: pipe.schedule.step(*given, target=targets if self.is_last else None, losses=losses))
        kind = torch.float64 if any(one.dtype == torch.float64 for one in pipe.shapes) else torch.float32
        mean = torch.empty((), dtype=kind, device=self.device)
        if self.is_last:
            mean = torch.stack(losses).detach().mean().to(kind)
        self._send_from_last(mean)
        return (self._sent(pipe, outputs) if sends else outputs), mean

    def outputs(self, inputs: Shapes) -> Any:
        """Do the forward alone; return the outputs on every process."""
        pipe = self._pipe(inputs, None)
        given = inputs if self.is_first else ()
        return self._sent(pipe, self._done(pipe, lambda: pipe.schedule.step(*given)))

    def _pipe(self, inputs: Shapes, loss: MicrobatchLoss | None) -> Pipe:
        precision = torch.get_autocast_dtype(self.device.type) if torch.is_autocast_enabled(self.device.type) else None
        key = (loss, precision, *((one.shape, one.dtype) for one in inputs))
        pipe = self._pipes.pop(key, None)
        if pipe is None:
            pipe = self._made(inputs, loss)
            if len(self._pipes) == MOST_PIPES:
                self._pipes.popitem(last=False)
        self._pipes[key] = pipe
        return pipe

    def _made(self, inputs: Shapes, loss: MicrobatchLoss | None) -> Pipe:
        number = number_of(len(inputs[0]), self._microbatches)
        part = tuple(one[: len(one) // number] for one in inputs)
        shapes = self._skeleton.shapes(part, trains=loss is not None)
        stage = PipelineStage(
            self._own,
            self.rank,
            self.size,
            self.device,
            input_args=shapes[self.rank],
            output_args=shapes[self.rank + 1],
            group=self.group,
        )
        # A short batch may have fewer parts than 1F1B wants; the other order gives the same numbers.
        kind = Schedule1F1B if self._schedule == "1F1B" and number >= self.size and loss is not None else ScheduleGPipe
        return Pipe(number, stage, kind(stage, number, loss_fn=loss), shapes[-1])

    def _done(self, pipe: Pipe, work: Callable[[], Any]) -> Any:
        """Let the stage do its work; on a failure, let those who wait for it know at once."""
        try:
            outputs = work()
            pipe.stage.clear_runtime_states()
        except Exception as error:
            self._pipes.clear()
            if is_peer_error(error):
                raise unanswered(self.rank, self.size, "a walk through the pipeline", error) from error
            dist.destroy_process_group(self.group)
            cause = error.__cause__
            if isinstance(cause, Exception) and "failed to run forward" in str(error):  # torch's words around the model's
                cause.add_note(f"in stage {self.rank} of the pipeline")
                raise cause from None
            raise
        return tree_map_only(torch.Tensor, torch.Tensor.detach, outputs)

    def _sent(self, pipe: Pipe, outputs: Any) -> Any:
        """Return the outputs, which the last stage has, on every process."""
        is_one = len(pipe.shapes) == 1
        if self.is_last:
            parts = [outputs] if isinstance(outputs, torch.Tensor) else list(outputs)
            is_one = isinstance(outputs, torch.Tensor)
        else:
            whole = [(pipe.number * one.shape[0], *one.shape[1:]) for one in pipe.shapes]
            parts = [
                torch.empty(shape, dtype=one.dtype, device=self.device) for shape, one in zip(whole, pipe.shapes, strict=True)
            ]
        sent = [self._send_from_last(one.contiguous()) for one in parts]
        return sent[0] if is_one else tuple(sent)

    def _send_from_last(self, tensor: torch.Tensor) -> torch.Tensor:
        try:
            dist.broadcast(tensor.view(-1).view(torch.uint8), group_src=self.size - 1, group=self.group)
        except RuntimeError as error:
            raise unanswered(self.rank, self.size, "a walk through the pipeline", error) from error
        return tensor


class Contiguous(nn.Module):
    """Let a module return tensors that can be sent."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module

    def forward(self, *inputs: torch.Tensor) -> Any:
        return tree_map_only(torch.Tensor, torch.Tensor.contiguous, self.module(*inputs))
