"""DataParallel: train a replica of the model on every rank, each with its own shard of the data."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from inspect import signature
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from hookpoint.parallel.shared.buffer_sync import BufferSync
from hookpoint.parallel.shared.model_setup import modules_in, optimizers_in
from hookpoint.parallel.strategy.strategy import StrategyDefaults

# The name of DistributedDataParallel's option to sync buffers. The option was renamed in torch 2.13. DataParallel disables it,
# because BufferSync syncs buffers.
SYNC_BUFFERS = next(
    name for name in ("forward_sync_buffers", "broadcast_buffers") if name in signature(DistributedDataParallel).parameters
)


class DataParallel(StrategyDefaults):
    """Train a replica of the model on every rank and average the gradients, with torch's DistributedDataParallel.

    `run.model` stays the module you passed, with the same parameter names. Gradients are averaged whether the Runner or a
    MainCallback calls the model. With `accumulate`, ranks communicate only for the last batch of a window. Before each
    step, all ranks receive the chief's buffers, such as batch norm statistics. `options` are passed to DistributedDataParallel.
    Use `find_unused_parameters=True` if a forward pass does not use all parameters. In a single process, DataParallel does
    nothing.

    Each rank computes a mean gradient over its own samples, and these gradients are averaged over all ranks. The result equals
    the gradient of the global batch if all ranks have the same number of samples. In the last batch of an epoch, these numbers
    may differ.

    >>> model = torch.nn.Linear(2, 1)
    >>> runner = Runner(model, torch.optim.SGD(model.parameters(), lr=0.1), torch.nn.MSELoss(), strategy=DataParallel())
    >>> runner.fit((torch.ones(8, 2), torch.ones(8, 1)), epochs=1, batch_size=4).step
    2
    """

    def __init__(self, **options: Any) -> None:
        self.options = options
        self._wrappers: list[DistributedDataParallel] = []

    def setup(self, model: Any, optimizer: Any, device: torch.device) -> Any:
        modules = modules_in(model)
        options = {**({} if device.type == "cpu" else {"device_ids": [device]}), SYNC_BUFFERS: False, **self.options}
        for module in modules:
            if any(parameter.requires_grad for parameter in module.parameters()):
                wrapper = DistributedDataParallel(module, **options)
                self._wrappers.append(wrapper)
                _add_hooks(module, wrapper)
        BufferSync(modules).watch(optimizers_in(optimizer))
        return model

    @contextmanager
    def accumulating(self) -> Iterator[None]:
        with ExitStack() as stack:
            for wrapper in self._wrappers:
                stack.enter_context(wrapper.no_sync())
            yield

    def merge_gradients(self, parameters: Iterable[torch.nn.Parameter]) -> None:
        for parameter in parameters:
            if parameter.grad is None:  # this rank did not use the parameter
                parameter.grad = torch.zeros_like(parameter)
            dist.all_reduce(parameter.grad)
            parameter.grad /= dist.get_world_size()


def _add_hooks(module: torch.nn.Module, wrapper: DistributedDataParallel) -> None:
    """Make a call to the module behave like a call to its wrapper. torch's `replicate` uses the same technique."""

    def begin(_: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
        if not torch.is_grad_enabled():
            return None
        inputs: tuple[tuple[Any, ...], dict[str, Any]] = wrapper._pre_forward(*args, **kwargs)  # type: ignore[no-untyped-call]
        return inputs

    def end(_: Any, args: tuple[Any, ...], output: Any) -> Any:
        return wrapper._post_forward(output) if torch.is_grad_enabled() else None  # type: ignore[no-untyped-call]

    module.register_forward_pre_hook(begin, with_kwargs=True)
    module.register_forward_hook(end)
