"""Strategy: how the processes of a run share the work on one model."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import AbstractContextManager
from typing import Any, Literal, Protocol, runtime_checkable

import torch

from hookpoint.core.callback.callback import Callback
from hookpoint.core.errors import BadStrategy
from hookpoint.core.team.team import Team


@runtime_checkable
class Strategy(Protocol):
    """Say how a model is trained by several processes. All of them call the same methods at the same places.

    The model stays the object that it was, and is called as before: in training, gradients are those of all processes. The
    `state_dict` of model and optimizer may have tensors in parts, as DTensors; their `load_state_dict` takes whole ones, which
    every process has.
    """

    def team(self) -> Team:
        """Join the other processes, and return the team of a run."""

    def setup(self, model: Any, optimizer: Any, device: torch.device) -> Any:
        """Make the model one that is shared, once, before the first run; return what to call in training."""

    def accumulating(self) -> AbstractContextManager[None]:
        """Let gradients add up on each process, in a forward and backward that no step follows."""

    def merge_gradients(self, parameters: Iterable[torch.nn.Parameter]) -> None:
        """Make gradients that have added up on each process those of all."""

    def clip_grad_norm(self, parameters: Iterable[torch.nn.Parameter], max_norm: float) -> None:
        """Clip gradients by the norm of all of them, wherever they lie."""

    def evaluating(self, *, is_even: bool) -> AbstractContextManager[None]:
        """Let the model be called without gradients; by some more often than by others, where it `is_even` not."""

    def close(self) -> None:
        """Leave the model as it is, and let go of everything else."""


@runtime_checkable
class Apart(Protocol):
    """A strategy whose processes have different models: parts of one, or copies that are merged now and then.

    A checkpoint keeps the parts of each process for itself, beside the whole, which is what other programs read of it.
    """

    def rank_state(self, parts: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return what this process alone has of a checkpoint's parts, as {"model": its state dict}."""

    def full_state(self, parts: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return the parts with the model as one process would have it. All processes call it; the chief's answer counts."""


@runtime_checkable
class Staged(Protocol):
    """A strategy whose processes have different layers: forward and backward of a batch are one walk through all of them."""

    def walk(self, arguments: tuple[Any, ...], targets: Any, criterion: Any) -> tuple[Any, torch.Tensor]:
        """Return outputs and loss, the same on every process; the loss's backward lets go of gradients that are computed."""

    def outputs(self, arguments: tuple[Any, ...]) -> Any:
        """Return the outputs without gradients, the same on every process."""

    def layout(self, model: Any) -> str:
        """Return what tells one cut of a model from another."""

    def whole_model(self, model: Any) -> Any:
        """Return a model with the names and shapes of all stages; its tensors need no values."""


@runtime_checkable
class Loose(Protocol):
    """A strategy whose processes step on gradients of their own, each on its own copy of the model.

    `callbacks` are in each run, before the user's. What it counts is in the checkpoint.
    """

    callbacks: list[Callback]

    def begin_batch(self) -> None:
        """Take note that a batch is about to be computed."""

    def drop_batch(self) -> None:
        """Take note that no step follows the batches since the last one."""

    def state_dict(self) -> dict[str, Any]: ...

    def load_state_dict(self, state: Mapping[str, Any]) -> None: ...


def chosen(strategy: Strategy | Literal["auto"] | None) -> Strategy | None:
    """Return the strategy of a run, or None in one process, which needs none; refuse what is no strategy."""
    from hookpoint.parallel.strategy.data_parallel import DataParallel
    from hookpoint.parallel.team.init_process import is_shared

    if isinstance(strategy, type):  # it has the methods of a strategy, too
        raise BadStrategy(f"strategy={strategy.__name__} is a class.", give=f"strategy={strategy.__name__}()")
    if strategy != "auto" and strategy is not None and not isinstance(strategy, Strategy):
        raise BadStrategy(
            f"strategy={strategy!r}.", choose='"auto", hookpoint.DataParallel() or another strategy of docs/parallel.md'
        )
    if not is_shared():
        return None
    return DataParallel() if isinstance(strategy, str) or strategy is None else strategy
