"""ParameterAveraging: train a replica on every rank, and average the replicas periodically."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
import torch.distributed as dist
from torch.utils._pytree import tree_map_only

from hookpoint.core.callback.callback import Callback
from hookpoint.core.checkpoint.plain_names import plain_state
from hookpoint.core.checkpoint.stateful import state_of
from hookpoint.core.errors import BadStrategy
from hookpoint.core.team.team import Team
from hookpoint.parallel.averaging.sync_callback import SyncCallback, all_reduce_mean, checked_weight, copy_into
from hookpoint.parallel.shared.buffer_sync import BufferSync
from hookpoint.parallel.shared.model_setup import modules_in, optimizers_in, parameters_of, send_weights, tensors_of
from hookpoint.parallel.strategy.strategy import StrategyDefaults
from hookpoint.parallel.team.peer_errors import waiting_in


class ParameterAveraging(StrategyDefaults):
    """Step with local gradients on each rank, and average the parameters over all ranks every `period` steps (local SGD).

    ParameterAveraging sends 1/`period` of the data that DataParallel sends. Between averaging steps, the replicas diverge.

        period: Number of steps between averages.
        warmup: Number of initial steps in which gradients are averaged instead, as in DataParallel.
        optimizer_state: Also average the optimizer's momentum and any other state that has the shape of a parameter. This at
            least doubles the amount of data sent. If False, each rank continues from the average with its own momentum.

        weight: This rank's weight in an average, such as its number of samples, or a function that returns the weight. A rank
            with weight 0 does not contribute, but receives the average. By default, all ranks have the same weight.

    Floating-point buffers are averaged. Integer buffers are copied from the chief. After averaging, all replicas are
    bit-identical.

    Validation and checkpoints use the average. Replicas are also averaged at the end of each training pass. Validation in the
    middle of a training pass uses the average temporarily. Afterwards, each rank restores its replica. A checkpoint stores the
    average as the model, and also each rank's replica, so a run resumes bit for bit even between two averages. All ranks run
    the same number of steps. Gradients and their norms are local to each rank. In a single process, ParameterAveraging does
    nothing.

    >>> model = torch.nn.Linear(2, 1)
    >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    >>> runner = Runner(model, optimizer, torch.nn.MSELoss(), strategy=ParameterAveraging(period=4, warmup=10))
    >>> runner.fit((torch.ones(8, 2), torch.ones(8, 1)), epochs=1, batch_size=4).step
    2
    """

    def __init__(
        self,
        period: int = 8,
        warmup: int = 0,
        *,
        optimizer_state: bool = True,
        weight: float | Callable[[], float] | None = None,
    ) -> None:
        for name, value, minimum in (("period", period, 1), ("warmup", warmup, 0)):
            if not isinstance(value, int) or isinstance(value, bool) or value < minimum:
                raise BadStrategy(f"ParameterAveraging: {name} must be an integer >= {minimum}, got {value!r}.")
        if weight is not None and not callable(weight):
            checked_weight(weight)
        self.period, self.warmup, self.optimizer_state, self.weight = period, warmup, optimizer_state, weight
        self.callbacks: list[Callback] = [SyncCallback(self)]
        self._model: Any = None
        self._modules: list[torch.nn.Module] = []
        self._optimizers: list[Any] = []
        self._steps: list[int] = []
        self._is_averaged = self._gradients_are_averaged = self._is_in_run = False
        self._hooks: list[Any] = []

    def team(self) -> Team:
        self._steps = [0] * len(self._steps)
        return super().team()

    def setup(self, model: Any, optimizer: Any, device: torch.device) -> Any:
        self._model, self._modules, self._optimizers = model, modules_in(model), optimizers_in(optimizer)
        self._steps = [0] * len(self._optimizers)
        send_weights(self._modules)
        for handle in self._hooks:  # an earlier Runner may have registered hooks
            handle.remove()
        self._hooks = []
        for each in self._optimizers:
            if not hasattr(each, "register_step_post_hook"):
                raise BadStrategy(f"ParameterAveraging does not support {type(each).__name__}.", give="a torch.optim.Optimizer")
            self._hooks += [each.register_step_pre_hook(self._before_step), each.register_step_post_hook(self._after_step)]
        self._buffers = BufferSync(self._modules)
        return model

    def begin_batch(self) -> None:
        self._is_in_run = True
        self._is_averaged = False  # the forward pass updates batch norm statistics

    def drop_batch(self) -> None:
        """Do nothing, because no other rank waits for this batch."""

    def merge_gradients(self, parameters: Iterable[torch.nn.Parameter]) -> None:
        """Average gradients during the warmup. Afterwards, each rank steps with its own gradients."""
        if self._steps[0] < self.warmup:
            self._average_gradients(parameters)

    def evaluating(self, *, same_batch_count: bool) -> AbstractContextManager[None]:
        return nullcontext() if self._is_averaged else self._average_in_model()

    def synchronize(self) -> None:
        """Set all replicas to their average."""
        if not self._is_averaged:
            for optimizer in self._optimizers:
                self._average(optimizer)
            self._is_averaged = True

    def end_run(self) -> None:
        """Make later steps run as in a single process."""
        self._is_in_run = False

    def _before_step(self, optimizer: Any, *_: Any) -> None:
        if self._is_in_run and self._steps[self._index(optimizer)] < self.warmup:
            if not self._gradients_are_averaged:  # this step was not started by the Runner
                self._average_gradients(parameters_of(optimizer))
            self._buffers.sync()
        self._gradients_are_averaged = False

    def _after_step(self, optimizer: Any, *_: Any) -> None:
        if not self._is_in_run:
            return
        index = self._index(optimizer)
        self._steps[index] += 1
        since = self._steps[index] - self.warmup
        if since > 0 and since % self.period == 0:
            self._average(optimizer)
        self._is_averaged = len(self._optimizers) == 1 and (since <= 0 or since % self.period == 0)

    def _index(self, optimizer: Any) -> int:
        return next(index for index, known in enumerate(self._optimizers) if known is optimizer)

    def _average(self, optimizer: Any) -> None:
        tensors = [*parameters_of(optimizer), *(buffer for module in self._modules for buffer in module.buffers())]
        if self.optimizer_state:
            moments = _moments_of(optimizer)
            if not _match_on_all_ranks(moments):
                what = f"ParameterAveraging: {type(optimizer).__name__} has state for different parameters on each rank."
                raise BadStrategy(what, write="optimizer_state=False, or give each parameter a gradient")
            tensors += moments
        copy_into(tensors, self._mean(tensors))

    def _mean(self, tensors: list[torch.Tensor]) -> list[torch.Tensor]:
        return all_reduce_mean(tensors, self.current_weight())

    def current_weight(self) -> float | None:
        """Return this rank's weight, or None if all ranks have the same weight."""
        return self.weight if self.weight is None else checked_weight(self.weight() if callable(self.weight) else self.weight)

    def _average_gradients(self, parameters: Iterable[torch.nn.Parameter]) -> None:
        gradients = []
        for parameter in parameters:
            if parameter.grad is None:  # this rank did not use the parameter
                parameter.grad = torch.zeros_like(parameter)
            gradients.append(parameter.grad)
        copy_into(gradients, all_reduce_mean(gradients))
        self._gradients_are_averaged = True

    @contextmanager
    def _average_in_model(self) -> Iterator[None]:
        """Load the average into the model inside a `with` block, then restore this rank's replica bit for bit."""
        tensors = tensors_of(self._modules)
        own, averages = [tensor.detach().clone() for tensor in tensors], self._mean(tensors)
        try:
            copy_into(tensors, averages)
            yield
        finally:
            copy_into(tensors, own)

    # Checkpoints

    def rank_state(self, parts: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return this rank's replica and optimizer state. Return nothing if they are the same on all ranks."""
        differs = {"model": not self._is_averaged, "optimizer": not self._is_averaged or not self.optimizer_state}
        return {name: part for name, part in parts.items() if differs.get(name)}

    def full_state(self, parts: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return `parts` with the model and the optimizer's state averaged over all replicas, for a checkpoint."""
        full = dict(parts)
        if not self._is_averaged:
            tensors = tensors_of(self._modules)
            full["model"] = _model_state(self._model, dict(zip(map(id, tensors), self._mean(tensors), strict=True)))
        moments = [moment for optimizer in self._optimizers for moment in _moments_of(optimizer)]
        if "optimizer" in parts and not (self._is_averaged and self.optimizer_state) and _match_on_all_ranks(moments):
            pairs = zip(moments, self._mean(moments), strict=True)
            means = {moment.data_ptr(): mean.clone() for moment, mean in pairs}
            full["optimizer"] = tree_map_only(
                torch.Tensor, lambda moment: means.get(moment.data_ptr(), moment), full["optimizer"]
            )
        return full

    def state_dict(self) -> dict[str, Any]:
        return {"steps": list(self._steps)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._steps, self._is_averaged = list(state["steps"]), False


def _moments_of(optimizer: Any) -> list[torch.Tensor]:
    """Return the optimizer's state tensors that have the shape of their parameter.

    Step counts have a different shape. They need not be averaged, because they are equal on all ranks.
    """
    return [
        value
        for parameter in parameters_of(optimizer)
        for value in optimizer.state.get(parameter, {}).values()
        if isinstance(value, torch.Tensor) and value.is_floating_point() and value.dim() and value.shape == parameter.shape
    ]


def _match_on_all_ranks(tensors: list[torch.Tensor]) -> bool:
    """Return whether all ranks have the same number of tensors with the same total size."""
    sizes = torch.tensor([len(tensors), sum(tensor.numel() for tensor in tensors)])
    sizes = torch.cat([sizes, -sizes]).to(tensors[0].device if tensors else "cpu")
    with waiting_in("an average over all ranks"):
        dist.all_reduce(sizes, op=dist.ReduceOp.MAX)
    return bool((sizes[:2] == -sizes[2:]).all())


def _model_state(model: Any, averages: Mapping[int, torch.Tensor]) -> Any:
    """Return the state of a model, or of a mapping of models, with each tensor replaced by its average."""
    if isinstance(model, Mapping):
        return {str(key): _model_state(item, averages) for key, item in model.items() if hasattr(item, "state_dict")}
    if not isinstance(model, torch.nn.Module):
        return state_of(model)
    state = model.state_dict()
    for name, tensor in model.state_dict(keep_vars=True).items():
        if id(tensor) in averages:
            state[name] = averages[id(tensor)].clone()
    return plain_state(state)
