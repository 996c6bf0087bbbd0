"""ShapeInference: a model without numbers, by which each process knows the shapes of what all stages of a pipeline return."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._pytree import tree_leaves

from hookpoint.core.errors import BadStrategy

Shapes = tuple[torch.Tensor, ...]


class ShapeInference:
    """Keep the layers of a model and of its stages, with tensors that have a shape, a type and a device, and no memory.

    torch finds out the shapes between stages by a forward with real tensors, which batch norm would count as a batch. Here
    nothing is computed, and a batch that does not fit the model fails on all processes at once, instead of on one of them.
    """

    def __init__(self, model: nn.Module, stages: Sequence[nn.Module], device: torch.device) -> None:
        self._mode = FakeTensorMode(allow_non_fake_inputs=True)
        with self._mode:
            bare = {id(one): _bare(one, device) for one in (*model.parameters(), *model.buffers())}
        self.model, self.stages = copy.deepcopy((model, list(stages)), bare)
        for module in (*self.model.modules(), *(part for stage in self.stages for part in stage.modules())):
            for hooks in (module._forward_hooks, module._forward_pre_hooks, module._backward_hooks):
                hooks.clear()

    def shapes(self, inputs: Shapes, *, trains: bool) -> list[Shapes]:
        """Return empty tensors as the first stage takes them, and as each stage returns them."""
        found = []
        with self._mode, torch.random.fork_rng(devices=[]), torch.set_grad_enabled(trains):
            given: Any = tuple(torch.empty(one.shape, dtype=one.dtype, device=one.device) for one in inputs)
            found.append(given)
            for number, stage in enumerate(self.stages):
                stage.train(trains)
                given = _returned(number, stage, given)
                found.append(given)
                given = tuple(one.detach().requires_grad_(one.requires_grad) for one in given)
        return [tuple(_empty(one) for one in returned) for returned in found]


def _returned(number: int, stage: nn.Module, given: Shapes) -> Shapes:
    try:
        outputs = stage(*given)
    except Exception as error:
        shapes = ", ".join(str(tuple(one.shape)) for one in given)
        error.add_note(f"in stage {number} of the pipeline, given {shapes}; no numbers were computed yet, on any process")
        raise
    if isinstance(outputs, torch.Tensor):
        return (outputs,)
    if isinstance(outputs, tuple) and all(isinstance(one, torch.Tensor) for one in outputs):
        return outputs
    kinds = ", ".join(sorted({type(one).__name__ for one in tree_leaves(outputs)}))
    raise BadStrategy(
        f"stage {number} returns a {type(outputs).__name__} of {kinds}, which cannot be sent to the next.",
        let="it return a tensor, or a tuple of tensors",
    )


def _bare(tensor: torch.Tensor, device: torch.device) -> torch.Tensor:
    made = torch.empty(tensor.shape, dtype=tensor.dtype, device=device)
    return nn.Parameter(made, requires_grad=tensor.requires_grad) if isinstance(tensor, nn.Parameter) else made


def _empty(fake: torch.Tensor) -> torch.Tensor:
    """Return a tensor that says the same of itself, and takes no memory, either; torch's stages take no fake ones."""
    return torch.empty(fake.shape, dtype=fake.dtype, device="meta").requires_grad_(fake.requires_grad)
