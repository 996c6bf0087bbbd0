"""PipelineRuntime: run one rank's layers. It creates a torch pipeline stage and a schedule for each batch shape."""

from __future__ import annotations

import copy
from collections import OrderedDict
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe
from torch.utils._pytree import tree_leaves, tree_map_only

from hookpoint.core.errors import BadStrategy
from hookpoint.core.team.checked_team import unanswered
from hookpoint.parallel.pipeline._microbatches import MicrobatchLoss, Tensors, microbatch_count
from hookpoint.parallel.team.peer_errors import is_peer_error

MAX_PIPES = 8  # maximum number of batch shapes to keep; each shape needs its own receive buffers
PASS = "a pass through the pipeline"


class Pipe(NamedTuple):
    """torch's stage and schedule for batches of one shape. `shapes` contains the shapes of the last stage's outputs."""

    microbatches: int
    stage: Any
    schedule: Any
    shapes: Tensors


class PipelineRuntime:
    """Run batches through the stages of the pipeline.

    A torch stage supports only one batch shape. This class therefore creates a stage for each shape, and keeps the stages for
    the shapes that were used most recently.

    All ranks must call the same methods with the same batch. The first stage uses the inputs, and the last stage uses the
    targets.
    """

    def __init__(
        self, own: nn.Module, inference: ShapeInference, device: torch.device, group: Any, *, microbatches: int, schedule: str
    ) -> None:
        self.rank, self.size = dist.get_rank(group), dist.get_world_size(group)
        self.is_first, self.is_last = self.rank == 0, self.rank == self.size - 1
        self.group, self.device = group, device
        self._own = own if self.is_last else Contiguous(own)
        self._inference = inference
        self._microbatches, self._schedule = microbatches, schedule
        self._pipes: OrderedDict[Any, Pipe] = OrderedDict()

    def train(self, inputs: Tensors, targets: torch.Tensor, loss: MicrobatchLoss, *, sends: bool) -> tuple[Any, torch.Tensor]:
        """Run the forward and backward passes. Return the outputs and the mean loss of the microbatches.

        With `sends=True`, all ranks get the outputs. Otherwise, only the last rank gets them.
        """
        pipe = self._pipe(inputs, loss)
        losses: list[torch.Tensor] = []
        if self.is_last:
            loss.begin(targets, pipe.microbatches)
        outputs = self._run(pipe, inputs, target=targets if self.is_last else None, losses=losses)
        dtype = torch.float64 if any(tensor.dtype == torch.float64 for tensor in pipe.shapes) else torch.float32
        mean = torch.empty((), dtype=dtype, device=self.device)
        if self.is_last:
            mean = torch.stack(losses).detach().mean().to(dtype)
        self._broadcast(mean)
        return (self._on_all_ranks(pipe, outputs) if sends else outputs), mean

    def outputs(self, inputs: Tensors) -> Any:
        """Run the forward pass, and return the outputs on all ranks."""
        pipe = self._pipe(inputs, None)
        return self._on_all_ranks(pipe, self._run(pipe, inputs))

    def _pipe(self, inputs: Tensors, loss: MicrobatchLoss | None) -> Pipe:
        precision = torch.get_autocast_dtype(self.device.type) if torch.is_autocast_enabled(self.device.type) else None
        key = (loss, precision, *((tensor.shape, tensor.dtype) for tensor in inputs))
        pipe = self._pipes.pop(key, None)
        if pipe is None:
            pipe = self._build(inputs, loss)
            if len(self._pipes) == MAX_PIPES:
                self._pipes.popitem(last=False)
        self._pipes[key] = pipe
        return pipe

    def _build(self, inputs: Tensors, loss: MicrobatchLoss | None) -> Pipe:
        number = microbatch_count(len(inputs[0]), self._microbatches)
        microbatch = tuple(tensor[: len(tensor) // number] for tensor in inputs)
        shapes = self._inference.shapes(microbatch, trains=loss is not None)
        options = {"input_args": shapes[self.rank], "output_args": shapes[self.rank + 1], "group": self.group}
        stage = PipelineStage(self._own, self.rank, self.size, self.device, **options)
        # A short batch may have too few microbatches for 1F1B. GPipe computes the same results.
        kind = Schedule1F1B if self._schedule == "1F1B" and number >= self.size and loss is not None else ScheduleGPipe
        return Pipe(number, stage, kind(stage, number, loss_fn=loss), shapes[-1])

    def _run(self, pipe: Pipe, inputs: Tensors, **options: Any) -> Any:
        """Run the schedule of this stage. If it fails, destroy the process group, so that other ranks fail immediately."""
        try:
            outputs = pipe.schedule.step(*(inputs if self.is_first else ()), **options)
            pipe.stage.clear_runtime_states()
        except Exception as error:
            self._pipes.clear()
            if is_peer_error(error):
                raise unanswered(self.rank, self.size, PASS, error) from error
            dist.destroy_process_group(self.group)
            cause = error.__cause__
            # torch wraps an exception from the model in its own exception. Raise the model's exception.
            if isinstance(cause, Exception) and "failed to run forward" in str(error):
                cause.add_note(f"in stage {self.rank} of the pipeline")
                raise cause from None
            raise
        return tree_map_only(torch.Tensor, torch.Tensor.detach, outputs)

    def _on_all_ranks(self, pipe: Pipe, outputs: Any) -> Any:
        """Return the last stage's outputs on all ranks."""
        if self.is_last:
            is_tensor = isinstance(outputs, torch.Tensor)
            tensors = [outputs] if is_tensor else list(outputs)
        else:
            is_tensor = len(pipe.shapes) == 1
            shapes = [(pipe.microbatches * tensor.shape[0], *tensor.shape[1:]) for tensor in pipe.shapes]
            pairs = zip(shapes, pipe.shapes, strict=True)
            tensors = [torch.empty(shape, dtype=tensor.dtype, device=self.device) for shape, tensor in pairs]
        received = [self._broadcast(tensor.contiguous()) for tensor in tensors]
        return received[0] if is_tensor else tuple(received)

    def _broadcast(self, tensor: torch.Tensor) -> torch.Tensor:
        try:
            dist.broadcast(tensor.view(-1).view(torch.uint8), group_src=self.size - 1, group=self.group)
        except RuntimeError as error:
            raise unanswered(self.rank, self.size, PASS, error) from error
        return tensor


class Contiguous(nn.Module):
    """Make a module return contiguous tensors, because only contiguous tensors can be sent."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module

    def forward(self, *inputs: torch.Tensor) -> Any:
        return tree_map_only(torch.Tensor, torch.Tensor.contiguous, self.module(*inputs))


class ShapeInference:
    """Infer the shapes of the tensors that the stages send to each other. Every rank infers the shapes of all stages.

    This class runs the stages with fake tensors, which have a shape, a dtype and a device but no data. torch itself infers
    shapes with a real forward pass, which would change batch norm statistics. This class computes only shapes. If a batch does
    not fit the model, all ranks raise an error at the same time.
    """

    def __init__(self, model: nn.Module, stages: Sequence[nn.Module], device: torch.device) -> None:
        self._mode = FakeTensorMode(allow_non_fake_inputs=True)
        with self._mode:
            fakes = {id(tensor): _fake(tensor, device) for tensor in (*model.parameters(), *model.buffers())}
        self.model, self.stages = copy.deepcopy((model, list(stages)), fakes)
        for module in (*self.model.modules(), *(part for stage in self.stages for part in stage.modules())):
            for hooks in (module._forward_hooks, module._forward_pre_hooks, module._backward_hooks):
                hooks.clear()

    def shapes(self, inputs: Tensors, *, trains: bool) -> list[Tensors]:
        """Return meta tensors with the shapes of the first stage's inputs and each stage's outputs."""
        with self._mode, torch.random.fork_rng(devices=[]), torch.set_grad_enabled(trains):
            values: Any = tuple(torch.empty(tensor.shape, dtype=tensor.dtype, device=tensor.device) for tensor in inputs)
            outputs = [values]
            for number, stage in enumerate(self.stages):
                stage.train(trains)
                values = _outputs(number, stage, values)
                outputs.append(values)
                values = tuple(tensor.detach().requires_grad_(tensor.requires_grad) for tensor in values)
        return [tuple(_meta(tensor) for tensor in values) for values in outputs]


def _outputs(number: int, stage: nn.Module, inputs: Tensors) -> Tensors:
    try:
        outputs = stage(*inputs)
    except Exception as error:
        shapes = ", ".join(str(tuple(tensor.shape)) for tensor in inputs)
        error.add_note(f"in stage {number} of the pipeline with inputs of shape {shapes}; no rank has computed anything yet")
        raise
    if isinstance(outputs, torch.Tensor):
        return (outputs,)
    if isinstance(outputs, tuple) and all(isinstance(tensor, torch.Tensor) for tensor in outputs):
        return outputs
    kinds = ", ".join(sorted({type(leaf).__name__ for leaf in tree_leaves(outputs)}))
    what = (
        f"PipelineParallel: stage {number} returns a {type(outputs).__name__} of {kinds}, which cannot be sent to other ranks."
    )
    raise BadStrategy(what, **{"return": "a tensor, or a tuple of tensors"})


def _fake(tensor: torch.Tensor, device: torch.device) -> torch.Tensor:
    fake = torch.empty(tensor.shape, dtype=tensor.dtype, device=device)
    return nn.Parameter(fake, requires_grad=tensor.requires_grad) if isinstance(tensor, nn.Parameter) else fake


def _meta(fake: torch.Tensor) -> torch.Tensor:
    """Return a meta tensor with the shape of a fake tensor, because torch's stages do not accept fake tensors."""
    return torch.empty(fake.shape, dtype=fake.dtype, device="meta").requires_grad_(fake.requires_grad)
