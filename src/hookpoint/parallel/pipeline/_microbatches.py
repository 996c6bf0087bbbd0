"""Microbatches: in how many equal parts a batch goes through a pipeline, and what their losses are to that of the batch."""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import nn

from hookpoint.core.errors import BadStrategy

Tensors = tuple[torch.Tensor, ...]


def number_of(samples: int, wanted: int) -> int:
    """Return the largest number, up to the one that is wanted, of equal parts that so many samples can be divided into.

    >>> [number_of(samples, 4) for samples in (32, 30, 13, 2)]
    [4, 3, 1, 2]
    """
    return next(number for number in range(min(wanted, samples), 0, -1) if samples % number == 0)


def samples_in(tensors: Tensors) -> int:
    """Return how many samples tensors have along their first dimension; refuse what cannot be divided into microbatches."""
    for one in tensors:
        if not isinstance(one, torch.Tensor) or one.dim() == 0 or len(one) != len(tensors[0]) or not len(one):
            what = ", ".join(str(tuple(one.shape)) if isinstance(one, torch.Tensor) else type(one).__name__ for one in tensors)
            raise BadStrategy(
                f"a batch of {what} cannot be divided into microbatches.",
                give="tensors with a sample in each row, as inputs and as targets",
            )
    return len(tensors[0])


class MicrobatchLoss:
    """Compute the loss of each microbatch, so that their mean is the loss of the batch.

    It is where the criterion takes the mean over samples, and all microbatches have as many. Of CrossEntropyLoss and NLLLoss,
    which leave samples out and weigh classes, it is made so: their sum is divided by the weight of the whole batch. A criterion
    with reduction="sum" is taken by as many times as there are microbatches.
    """

    def __init__(self, criterion: Any) -> None:
        reduction = getattr(criterion, "reduction", "mean")
        if criterion is None or reduction not in ("mean", "sum", "batchmean"):
            what = "there is no criterion" if criterion is None else f"the criterion has reduction={reduction!r}"
            raise BadStrategy(
                f"{what}; the last stage of a pipeline computes the loss.", give="a criterion that returns a mean or a sum"
            )
        if isinstance(criterion, nn.Module) and any(True for _ in criterion.parameters()):
            raise BadStrategy(
                "the criterion has parameters; of a pipeline only the model is trained.", move="them into its last stage"
            )
        self._criterion = criterion
        self._is_sum = reduction == "sum"
        self._weighs = isinstance(criterion, nn.CrossEntropyLoss | nn.NLLLoss) and reduction == "mean"
        if self._weighs:
            self._sum = copy.copy(criterion)
            self._sum.reduction = "sum"
        self._number = 1
        self._weight: torch.Tensor | None = None

    def begin(self, targets: torch.Tensor, number: int) -> None:
        """Take the targets of a whole batch, which goes through in so many microbatches."""
        self._number = number
        self._weight = self._weight_of(targets) if self._weighs and number > 1 and not targets.is_floating_point() else None

    def __call__(self, outputs: Any, targets: torch.Tensor) -> torch.Tensor:
        loss: torch.Tensor
        if self._weight is not None:
            loss = self._sum(outputs, targets) * (self._number / self._weight)
        else:
            loss = self._criterion(outputs, targets) * (self._number if self._is_sum else 1)
        return loss

    def _weight_of(self, targets: torch.Tensor) -> torch.Tensor:
        counts: torch.Tensor = targets != self._criterion.ignore_index
        weights: torch.Tensor | None = self._criterion.weight
        return counts.sum() if weights is None else (weights[targets.where(counts, 0)] * counts).sum()
