"""ParameterAveraging: a copy of the model on every process, trained alone and averaged now and then."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
import torch.distributed as dist

from hookpoint.core.callback.callback import Callback
from hookpoint.core.checkpoint.plain_names import plain_state
from hookpoint.core.checkpoint.stateful import state_of
from hookpoint.core.errors import BadStrategy
from hookpoint.core.team.team import Team
from hookpoint.parallel.averaging.all_reduce_mean import means_of, put, waiting_for
from hookpoint.parallel.averaging.sync_callback import Merging
from hookpoint.parallel.shared.buffers import SharedBuffers
from hookpoint.parallel.shared.parts_by_name import modules_in, optimizers_in, send_weights
from hookpoint.parallel.team.init_process import joined


class ParameterAveraging:
    """Let every process step on its own gradients, and average the parameters over all of them every `period` steps.

    This is local SGD: it sends a `period`-th of what DataParallel sends, and the processes' copies of the model are apart in
    between. During the first `warmup` steps gradients are averaged in each, as DataParallel does. With `optimizer_state` the
    momentum of the optimizer, and whatever else it keeps in the shape of a parameter, is averaged along with the parameters,
    which sends as much again: without it, each process goes on from the average in a direction of its own. Buffers are
    averaged too; of whole numbers, the chief's are taken. After an average all copies are the same, bit for bit.

    What is measured and kept is one model, the average: copies are averaged at the end of each training pass also, and a
    validation in the middle of one has the average in the model, and then each process goes on with its own. A checkpoint's
    model is the average; beside it there is the copy of each process, so that a run goes on bit for bit, also from between two
    averages. A step counts for all, a gradient and its norm are those of one process. In one process it does nothing.

    >>> model = torch.nn.Linear(2, 1)
    >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    >>> runner = Runner(model, optimizer, torch.nn.MSELoss(), strategy=ParameterAveraging(period=4, warmup=10))
    >>> runner.fit((torch.ones(8, 2), torch.ones(8, 1)), epochs=1, batch_size=4).step
    2
    """

    def __init__(self, period: int = 8, warmup: int = 0, *, optimizer_state: bool = True) -> None:
        for name, value, least in (("period", period, 1), ("warmup", warmup, 0)):
            if not isinstance(value, int) or isinstance(value, bool) or value < least:
                raise BadStrategy(f"ParameterAveraging({name}={value!r}).", give=f"a number of steps, {least} or more")
        self.period, self.warmup, self.optimizer_state = period, warmup, optimizer_state
        self.callbacks: list[Callback] = [Merging(self)]
        self._model: Any = None
        self._modules: list[torch.nn.Module] = []
        self._optimizers: list[Any] = []
        self._steps: list[int] = []
        self._is_merged = self._gradients_are_merged = self._is_in_run = False
        self._watched: list[Any] = []

    def team(self) -> Team:
        self._steps = [0] * len(self._steps)
        return joined()

    def setup(self, model: Any, optimizer: Any, device: torch.device) -> Any:
        self._model, self._modules, self._optimizers = model, modules_in(model), optimizers_in(optimizer)
        self._steps = [0] * len(self._optimizers)
        send_weights(self._modules)
        for handle in self._watched:  # of a Runner before
            handle.remove()
        self._watched = []
        for one in self._optimizers:
            if not hasattr(one, "register_step_post_hook"):
                raise BadStrategy(
                    f"ParameterAveraging cannot follow the steps of {type(one).__name__}.", give="a torch.optim.Optimizer"
                )
            self._watched += [one.register_step_pre_hook(self._before_step), one.register_step_post_hook(self._after_step)]
        self._buffers = SharedBuffers(self._modules)
        return model

    def begin_batch(self) -> None:
        self._is_in_run = True
        self._is_merged = False  # a forward changes the statistics of batch norm

    def drop_batch(self) -> None:
        pass  # nobody waits for it

    def accumulating(self) -> AbstractContextManager[None]:
        return nullcontext()

    def merge_gradients(self, parameters: Iterable[torch.nn.Parameter]) -> None:
        """Average gradients while the run warms up; after that, each process steps on its own."""
        if self._steps[0] < self.warmup:
            self._average_gradients(parameters)

    def clip_grad_norm(self, parameters: Iterable[torch.nn.Parameter], max_norm: float) -> None:
        torch.nn.utils.clip_grad_norm_(parameters, max_norm)

    def evaluating(self, *, is_even: bool) -> AbstractContextManager[None]:
        return nullcontext() if self._is_merged else self._averaged()

    def close(self) -> None:
        pass

    # Merging

    def settle(self) -> None:
        """Make all copies the average of all of them."""
        if not self._is_merged:
            for one in self._optimizers:
                self._merge(one)
            self._is_merged = True

    def leave(self) -> None:
        """Take steps that come after the run for what they are: those of one process."""
        self._is_in_run = False

    def means(self, tensors: list[torch.Tensor]) -> list[torch.Tensor]:
        return means_of(tensors)

    def _before_step(self, optimizer: Any, *_: Any) -> None:
        if self._is_in_run and self._steps[self._number(optimizer)] < self.warmup:
            if not self._gradients_are_merged:  # by whoever steps without the Runner
                self._average_gradients(_parameters_of(optimizer))
            self._buffers.share()
        self._gradients_are_merged = False

    def _after_step(self, optimizer: Any, *_: Any) -> None:
        if not self._is_in_run:
            return
        number = self._number(optimizer)
        self._steps[number] += 1
        since = self._steps[number] - self.warmup
        if since > 0 and since % self.period == 0:
            self._merge(optimizer)
        self._is_merged = len(self._optimizers) == 1 and (since <= 0 or since % self.period == 0)

    def _merge(self, optimizer: Any) -> None:
        tensors: list[torch.Tensor] = [
            *_parameters_of(optimizer),
            *(one for module in self._modules for one in module.buffers()),
        ]
        if self.optimizer_state:
            moments = _moments_of(optimizer)
            if not _are_alike(moments):
                raise BadStrategy(
                    f"{type(optimizer).__name__} has a state of other parameters on one process than on another, as some"
                    " had no gradient there.",
                    give="ParameterAveraging(optimizer_state=False), or each parameter a gradient",
                )
            tensors += moments
        put(tensors, means_of(tensors))

    def _average_gradients(self, parameters: Iterable[torch.nn.Parameter]) -> None:
        gradients = []
        for parameter in parameters:
            if parameter.grad is None:  # of a parameter that this process has left out
                parameter.grad = torch.zeros_like(parameter)
            gradients.append(parameter.grad)
        put(gradients, means_of(gradients))
        self._gradients_are_merged = True

    @contextmanager
    def _averaged(self) -> Iterator[None]:
        """Have the average in the model for a while, then this process's own copy again, to the last bit."""
        tensors = _tensors_of(self._modules)
        own, averages = [one.detach().clone() for one in tensors], means_of(tensors)
        try:
            put(tensors, averages)
            yield
        finally:
            put(tensors, own)

    def _number(self, optimizer: Any) -> int:
        return next(number for number, one in enumerate(self._optimizers) if one is optimizer)

    # Checkpoints

    def rank_state(self, parts: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return this process's copy of the model and its optimizer's state, as far as they are not the same everywhere."""
        own = () if self._is_merged and self.optimizer_state else ("optimizer",) if self._is_merged else ("model", "optimizer")
        return {name: parts[name] for name in own if name in parts}

    def full_state(self, parts: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return the parts with the averages of all copies."""
        whole = dict(parts)
        if not self._is_merged:
            tensors = _tensors_of(self._modules)
            averages = dict(zip(map(id, tensors), means_of(tensors), strict=True))
            whole["model"] = _with(self._model, averages)
        moments = [one for optimizer in self._optimizers for one in _moments_of(optimizer)]
        if "optimizer" in parts and not (self._is_merged and self.optimizer_state) and _are_alike(moments):
            averages = {one.data_ptr(): mean.clone() for one, mean in zip(moments, means_of(moments), strict=True)}
            whole["optimizer"] = _replaced(parts["optimizer"], averages)
        return whole

    def state_dict(self) -> dict[str, Any]:
        return {"steps": list(self._steps)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._steps, self._is_merged = list(state["steps"]), False

    def __reduce__(self) -> tuple[Any, ...]:
        return _again, (self.period, self.warmup, self.optimizer_state)


def _again(period: int, warmup: int, optimizer_state: bool) -> ParameterAveraging:
    return ParameterAveraging(period, warmup, optimizer_state=optimizer_state)


def _parameters_of(optimizer: Any) -> list[torch.nn.Parameter]:
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]


def _tensors_of(modules: list[torch.nn.Module]) -> list[torch.Tensor]:
    return [one for module in modules for some in (module.parameters(), module.buffers()) for one in some]


def _moments_of(optimizer: Any) -> list[torch.Tensor]:
    """Return what an optimizer keeps in the shape of a parameter; its counts are the same everywhere."""
    kept = [(one, value) for one in _parameters_of(optimizer) for value in optimizer.state.get(one, {}).values()]
    tensors = [(one, value) for one, value in kept if isinstance(value, torch.Tensor) and value.is_floating_point()]
    return [value for one, value in tensors if value.dim() and value.shape == one.shape]


def _are_alike(tensors: list[torch.Tensor]) -> bool:
    """Say whether all processes have as many of these, of the same size in all."""
    mine = torch.tensor([len(tensors), sum(one.numel() for one in tensors)])
    mine = torch.cat([mine, -mine]).to(tensors[0].device if tensors else "cpu")
    with waiting_for("an average over all processes"):
        dist.all_reduce(mine, op=dist.ReduceOp.MAX)
    return bool((mine[:2] == -mine[2:]).all())


def _with(model: Any, averages: Mapping[int, torch.Tensor]) -> Any:
    """Return the state of a model, or of a mapping of models, with other tensors in the places of its own."""
    if isinstance(model, Mapping):
        return {str(key): _with(one, averages) for key, one in model.items() if hasattr(one, "state_dict")}
    if not isinstance(model, torch.nn.Module):
        return state_of(model)
    state = model.state_dict()
    for name, tensor in model.state_dict(keep_vars=True).items():
        if id(tensor) in averages:
            state[name] = averages[id(tensor)].clone()
    return plain_state(state)


def _replaced(state: Any, averages: Mapping[int, torch.Tensor]) -> Any:
    if isinstance(state, torch.Tensor):
        return averages.get(state.data_ptr(), state)
    if isinstance(state, Mapping):
        return {key: _replaced(one, averages) for key, one in state.items()}
    return state
