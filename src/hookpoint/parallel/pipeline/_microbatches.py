"""Microbatches: split a batch for a pipeline, and combine the losses of its microbatches."""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import nn

from hookpoint.core.errors import BadStrategy

Tensors = tuple[torch.Tensor, ...]


def microbatch_count(samples: int, limit: int) -> int:
    """Return the largest number of microbatches, up to `limit`, into which a batch of `samples` samples can be split evenly.

    >>> [microbatch_count(samples, 4) for samples in (32, 30, 13, 2)]
    [4, 3, 1, 2]
    """
    return next(number for number in range(min(limit, samples), 0, -1) if samples % number == 0)


def check_batch(tensors: Tensors) -> None:
    """Raise BadStrategy if a batch cannot be split along the first dimension."""
    for tensor in tensors:
        if not isinstance(tensor, torch.Tensor) or tensor.dim() == 0 or len(tensor) != len(tensors[0]) or not len(tensor):
            kinds = ", ".join(str(tuple(x.shape)) if isinstance(x, torch.Tensor) else type(x).__name__ for x in tensors)
            what = f"PipelineParallel: a batch of {kinds} cannot be split into microbatches."
            raise BadStrategy(what, give="inputs and targets that are tensors with one sample per row")


class MicrobatchLoss:
    """Compute the loss of each microbatch so that the mean of these losses is the loss of the batch.

    A criterion that averages over samples needs no change, because all microbatches have the same size. CrossEntropyLoss and
    NLLLoss may ignore some samples and may give each class a different weight. For these two criteria, the sum of a
    microbatch's losses is divided by the total weight of the batch and multiplied by the number of microbatches. The loss of a
    criterion with reduction="sum" is multiplied by the number of microbatches.
    """

    def __init__(self, criterion: Any) -> None:
        reduction = getattr(criterion, "reduction", "mean")
        if criterion is None or reduction not in ("mean", "sum", "batchmean"):
            what = "needs a criterion" if criterion is None else f"does not support reduction={reduction!r}"
            raise BadStrategy(f"PipelineParallel {what}.", give="a criterion that returns a mean or a sum")
        if isinstance(criterion, nn.Module) and any(True for _ in criterion.parameters()):
            raise BadStrategy("PipelineParallel does not train the criterion's parameters.", move="them into the last stage")
        self._criterion = criterion
        self._is_sum = reduction == "sum"
        self._has_weights = isinstance(criterion, nn.CrossEntropyLoss | nn.NLLLoss) and reduction == "mean"
        if self._has_weights:
            self._sum = copy.copy(criterion)
            self._sum.reduction = "sum"
        self._number = 1
        self._weight: torch.Tensor | None = None

    def begin(self, targets: torch.Tensor, number: int) -> None:
        """Prepare for a batch with these targets, which is split into `number` microbatches."""
        self._number, self._weight = number, None
        if self._has_weights and number > 1 and not targets.is_floating_point():
            counts: torch.Tensor = targets != self._criterion.ignore_index
            weights: torch.Tensor | None = self._criterion.weight
            self._weight = counts.sum() if weights is None else (weights[targets.where(counts, 0)] * counts).sum()

    def __call__(self, outputs: Any, targets: torch.Tensor) -> torch.Tensor:
        loss: torch.Tensor
        if self._weight is not None:
            loss = self._sum(outputs, targets) * (self._number / self._weight)
        else:
            loss = self._criterion(outputs, targets) * (self._number if self._is_sum else 1)
        return loss
