"""DataParallel: the whole model on every process, each with its own part of the data."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from inspect import signature
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from hookpoint.core.team.team import Team
from hookpoint.parallel.shared.buffers import SharedBuffers
from hookpoint.parallel.shared.parts_by_name import modules_in, optimizers_in
from hookpoint.parallel.team.init_process import joined

# Its name since torch 2.13, and before: buffers are shared by us.
UNSHARED_BUFFERS = next(
    name for name in ("forward_sync_buffers", "broadcast_buffers") if name in signature(DistributedDataParallel).parameters
)


class DataParallel:
    """Train with torch's DistributedDataParallel: every process has the whole model, and gradients are averaged over them.

    `run.model` stays the module that was given, with its own names, and gradients are averaged however it is called: by the
    Runner, or by a MainCallback. While batches are accumulated, only the last of a window waits for the others. Buffers, as the
    statistics of batch norm, are those of the chief, from each step on. `options` are those of DistributedDataParallel, as
    `find_unused_parameters=True` where a forward leaves parameters out. In one process it does nothing.

    A gradient is the mean of the processes' means: the same as one process would have of the joint batch, if all of them have
    as many samples in it, as they do but for the last batch of an epoch.

    >>> model = torch.nn.Linear(2, 1)
    >>> runner = Runner(model, torch.optim.SGD(model.parameters(), lr=0.1), torch.nn.MSELoss(), strategy=DataParallel())
    >>> runner.fit((torch.ones(8, 2), torch.ones(8, 1)), epochs=1, batch_size=4).step
    2
    """

    def __init__(self, **options: Any) -> None:
        self.options = options
        self._around: list[DistributedDataParallel] = []

    def team(self) -> Team:
        return joined()

    def setup(self, model: Any, optimizer: Any, device: torch.device) -> Any:
        modules = modules_in(model)
        given = {**({} if device.type == "cpu" else {"device_ids": [device]}), UNSHARED_BUFFERS: False, **self.options}
        for module in modules:
            if any(parameter.requires_grad for parameter in module.parameters()):
                around = DistributedDataParallel(module, **given)
                self._around.append(around)
                _stand_in(module, around)
        SharedBuffers(modules).watch(optimizers_in(optimizer))
        return model

    def accumulating(self) -> AbstractContextManager[None]:
        return _without_merging(self._around)

    def merge_gradients(self, parameters: Iterable[torch.nn.Parameter]) -> None:
        for parameter in parameters:
            if parameter.grad is None:  # of a parameter that this process has left out
                parameter.grad = torch.zeros_like(parameter)
            dist.all_reduce(parameter.grad)
            parameter.grad /= dist.get_world_size()

    def clip_grad_norm(self, parameters: Iterable[torch.nn.Parameter], max_norm: float) -> None:
        torch.nn.utils.clip_grad_norm_(parameters, max_norm)

    def evaluating(self, *, is_even: bool) -> AbstractContextManager[None]:
        return nullcontext()  # without gradients, nothing is said to the others

    def close(self) -> None:
        pass

    def __reduce__(self) -> tuple[Any, ...]:
        return _again, (self.options,)


def _again(options: dict[str, Any]) -> DataParallel:
    return DataParallel(**options)


def _stand_in(module: torch.nn.Module, around: DistributedDataParallel) -> None:
    """Let a call of the module itself do what a call of the wrapper does; torch's own `replicate` does it in this way."""

    def begin(_: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
        if not torch.is_grad_enabled():
            return None
        found: tuple[tuple[Any, ...], dict[str, Any]] = around._pre_forward(*args, **kwargs)  # type: ignore[no-untyped-call]
        return found

    def end(_: Any, args: tuple[Any, ...], output: Any) -> Any:
        return around._post_forward(output) if torch.is_grad_enabled() else None  # type: ignore[no-untyped-call]

    module.register_forward_pre_hook(begin, with_kwargs=True)
    module.register_forward_hook(end)


@contextmanager
def _without_merging(wrappers: list[DistributedDataParallel]) -> Iterator[None]:
    with ExitStack() as stack:
        for one in wrappers:
            stack.enter_context(one.no_sync())
        yield
