"""Strategy: how multiple ranks train one model."""

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
    """Define how multiple ranks train one model. All ranks call the same methods in the same order.

    The model stays the same object and is called as before. In training, its gradients belong to the global batch. The
    `state_dict` of the model and the optimizer may contain DTensors. Their `load_state_dict` also accepts full tensors, which
    every rank must have. Methods with a body are defaults that most strategies use.
    """

    def team(self) -> Team:
        """Join the process group and return the run's team."""
        return join_team()

    def setup(self, model: Any, optimizer: Any, device: torch.device) -> Any:
        """Distribute the model once, before the first run. Return the callable to use in training."""

    def accumulating(self) -> AbstractContextManager[None]:
        """Accumulate gradients locally, in a forward and backward pass without a step."""
        return nullcontext()

    def merge_gradients(self, parameters: Iterable[torch.nn.Parameter]) -> None:
        """Average locally accumulated gradients over all ranks. By default, there are none."""
        return None

    def clip_grad_norm(self, parameters: Iterable[torch.nn.Parameter], max_norm: float) -> None:
        """Clip gradients by their global norm, including shards on other ranks."""
        torch.nn.utils.clip_grad_norm_(parameters, max_norm)

    def evaluating(self, *, same_batch_count: bool) -> AbstractContextManager[None]:
        """Allow model calls without gradients. With `same_batch_count`, all ranks make the same number of calls."""
        return nullcontext()


class StrategyDefaults(Strategy):
    """The base of hookpoint's strategies. A copy or a pickle is a new, unused strategy with the same arguments."""

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
    """A strategy whose ranks hold different weights: different layers, or replicas that diverge between averages.

    A checkpoint stores the state of each rank next to the full model, so that other programs can load the model.
    """

    def rank_state(self, parts: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return the checkpoint entries that only this rank has, as {"model": its state dict}."""

    def full_state(self, parts: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return the entries with the model as in a single process. All ranks call this; only the chief's result is used."""


@runtime_checkable
class Pipelined(Protocol):
    """A strategy whose ranks hold different layers. A batch's forward and backward passes run through all stages together."""

    def forward_backward(self, arguments: tuple[Any, ...], targets: Any, criterion: Any) -> tuple[Any, torch.Tensor]:
        """Return outputs and loss, identical on all ranks. Calling backward on the loss adds the computed gradients."""

    def outputs(self, arguments: tuple[Any, ...]) -> Any:
        """Return the outputs without gradients, identical on all ranks."""

    def layout(self, model: Any) -> str:
        """Return a string that identifies where the model is split."""

    def full_model(self, model: Any) -> Any:
        """Return a model with the names and shapes of all stages. Its tensors need no data."""


@runtime_checkable
class LocalUpdates(Protocol):
    """A strategy whose ranks step with their own gradients, each on its own replica.

    `callbacks` run before the user's callbacks. The strategy's state dict is stored in the checkpoint.
    """

    callbacks: list[Callback]

    def begin_batch(self) -> None:
        """Prepare for a batch's forward pass."""

    def drop_batch(self) -> None:
        """Discard the batches since the last step, because no step follows."""

    def state_dict(self) -> dict[str, Any]: ...

    def load_state_dict(self, state: Mapping[str, Any]) -> None: ...
