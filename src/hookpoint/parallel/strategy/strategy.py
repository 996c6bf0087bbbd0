"""Strategy: the protocol for training one model on multiple ranks."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any, Protocol, Self, runtime_checkable

import torch

from hookpoint.core.callback.callback import Callback
from hookpoint.core.team.team import Team
from hookpoint.parallel.team.init_process import join_team


@runtime_checkable
class Strategy(Protocol):
    """Define how multiple ranks train one model. All ranks must call the same methods in the same order.

    The model stays the same object and is called as usual. In training, its gradients are the gradients of the global
    batch. The model's and the optimizer's `state_dict` may contain DTensors. The model's and the
    optimizer's `load_state_dict` also accepts full tensors. In that case, every rank must pass all of the full tensors. Methods
    with a body are defaults that most strategies use.
    """

    def team(self) -> Team:
        """Join the process group and return the run's team."""
        return join_team()

    def setup(self, model: Any, optimizer: Any, device: torch.device) -> Any:
        """Distribute the model once, before the first run. Return the callable to use in training."""

    def accumulating(self) -> AbstractContextManager[None]:
        """Return a context manager for a forward and backward pass that only accumulates gradients locally, without a step."""
        return nullcontext()

    def merge_gradients(self, parameters: Iterable[torch.nn.Parameter]) -> None:
        """Average locally accumulated gradients over all ranks. By default, this method does nothing."""
        return None

    def clip_grad_norm(self, parameters: Iterable[torch.nn.Parameter], max_norm: float) -> None:
        """Clip gradients by their global norm, which includes shards on other ranks."""
        torch.nn.utils.clip_grad_norm_(parameters, max_norm)

    def evaluating(self, *, same_batch_count: bool) -> AbstractContextManager[None]:
        """Return a context manager for model calls without gradients.

        Pass `same_batch_count=True` only if all ranks call the model the same number of times.
        """
        return nullcontext()


class StrategyDefaults(Strategy):
    """The base class of hookpoint's strategies. Copying or unpickling gives a new, unused strategy with the same arguments."""

    _arguments: tuple[tuple[Any, ...], dict[str, Any]]

    def __new__(cls, *args: Any, **kwargs: Any) -> Self:
        self = super().__new__(cls)
        self._arguments = args, kwargs
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        args, kwargs = self._arguments
        return partial(type(self), *args, **kwargs), ()


@runtime_checkable
class PerRankModel(Protocol):
    """A strategy whose ranks hold different weights: different layers, or replicas that diverge until they are averaged.

    A checkpoint stores the full model, so that other programs can load it, and also the state of each rank.
    """

    def rank_state(self, parts: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return the checkpoint entries for this rank, such as {"model": ...} with this rank's state dict."""

    def full_state(self, parts: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return the checkpoint entries with the full model, as a single process would save it.

        All ranks must call this method, but only the chief's result is used.
        """


@runtime_checkable
class Pipelined(Protocol):
    """A strategy whose ranks hold different layers. The forward and backward passes of a batch run through all stages."""

    def forward_backward(self, arguments: tuple[Any, ...], targets: Any, criterion: Any) -> tuple[Any, torch.Tensor]:
        """Compute outputs, loss and gradients. Outputs and loss are identical on all ranks.

        Calling backward on the loss adds the computed gradients to the parameters' gradients.
        """

    def outputs(self, arguments: tuple[Any, ...]) -> Any:
        """Compute the outputs without gradients. They are identical on all ranks."""

    def layout(self, model: Any) -> str:
        """Return a string that describes where the model is split."""

    def full_model(self, model: Any) -> Any:
        """Return a model that has the tensors of all stages, with their names and shapes.

        The values of these tensors are not used.
        """


@runtime_checkable
class LocalUpdates(Protocol):
    """A strategy in which each rank steps its own replica with its own gradients.

    `callbacks` run before the user's callbacks. The strategy's state dict is stored in checkpoints.
    """

    callbacks: list[Callback]

    def begin_batch(self) -> None:
        """Prepare for a batch's forward pass."""

    def drop_batch(self) -> None:
        """Discard the results of the batches since the last step, because their step is skipped."""

    def state_dict(self) -> dict[str, Any]: ...

    def load_state_dict(self, state: Mapping[str, Any]) -> None: ...
