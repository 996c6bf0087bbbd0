"""Sharded: shard parameters, gradients and optimizer state over all ranks."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace
from typing import Any, Literal

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard

from hookpoint.core.errors import BadStrategy
from hookpoint.parallel.shared.buffer_sync import BufferSync
from hookpoint.parallel.shared.model_setup import modules_in, optimizers_in, send_weights
from hookpoint.parallel.shared.swap_parameters import swap_parameters
from hookpoint.parallel.strategy.strategy import StrategyDefaults

Wrap = Callable[[str, torch.nn.Module], bool] | tuple[type[torch.nn.Module], ...] | None
LISTS = (torch.nn.ModuleList, torch.nn.ModuleDict, torch.nn.Sequential)


class Sharded(StrategyDefaults):
    """Shard parameters, gradients and optimizer state over all ranks, with torch's FSDP2 (`fully_shard`).

    Each rank stores its shard of every parameter. A module's full parameters are gathered only while the module computes.
    `wrap` selects the modules that are gathered separately. It is a tuple of classes, or a function that takes a module's name
    and the module. By default, these modules are the children of the outermost ModuleList, ModuleDict or Sequential. With
    `precision="bf16"`, modules compute with bfloat16 copies of their parameters. The model's outputs are converted to float32,
    parameters are stored and updated in their own dtype, and gradients are averaged in float32. Autocast is not needed. In a
    single process, Sharded does nothing.

    `run.model` stays the module you passed, but its parameters become DTensors. The optimizer that you created for the dense
    parameters is updated to use the DTensors. You can also pass full tensors to `load_state_dict` of the model or
    the optimizer. In this case, every rank must pass all of them. Buffers are not sharded. Before each step, all ranks receive
    the chief's buffers.

    >>> model = torch.nn.Linear(2, 1)
    >>> runner = Runner(model, torch.optim.SGD(model.parameters(), lr=0.1), torch.nn.MSELoss(), strategy=Sharded())
    >>> runner.fit((torch.ones(8, 2), torch.ones(8, 1)), epochs=1, batch_size=4).step
    2
    """

    # `accumulating` is not overridden, so gradients are reduced after each batch. Without this reduction, each rank would need
    # memory for the gradients of the dense model.

    def __init__(self, *, wrap: Wrap = None, precision: Literal["32", "bf16"] = "32") -> None:
        if precision not in ("32", "bf16"):
            raise BadStrategy(f"Sharded: precision must be '32' or 'bf16', got {precision!r}.")
        if isinstance(wrap, type):
            wrap = (wrap,)
        if wrap is not None and not callable(wrap) and not (isinstance(wrap, tuple) and wrap):
            raise BadStrategy(f"Sharded: wrap must be module classes or a function, got {wrap!r}.", write="wrap=(Block,)")
        self.wrap, self.precision = wrap, precision
        self._modules: list[torch.nn.Module] = []

    def setup(self, model: Any, optimizer: Any, device: torch.device) -> Any:
        self._modules = modules = modules_in(model)
        if any(isinstance(module, FSDPModule) for module in modules):
            raise BadStrategy("Sharded: the model is already sharded.", drop="strategy=Sharded(), or your own fully_shard")
        units = [(module, [*_wrapped(module, self.wrap), module]) for module in modules]
        for module, parts in units:
            _check_tied(module, parts)
        send_weights(modules)
        mesh = init_device_mesh(device.type, (dist.get_world_size(),))
        policy = of_model = MixedPrecisionPolicy()
        if self.precision == "bf16":
            policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
            # As with autocast, losses are computed in float32. In torch 2.11, mse_loss has no gradient for mixed dtypes.
            of_model = replace(policy, output_dtype=torch.float32)
        with swap_parameters(modules, optimizers_in(optimizer)):
            for module, part in ((module, part) for module, parts in units for part in parts):
                # Also reshard the root module. Otherwise, it would still have its gathered parameters after a forward pass.
                # A step does not update gathered parameters.
                chosen = of_model if part is module else policy
                fully_shard(part, mesh=mesh, mp_policy=chosen, reshard_after_forward=True)
        BufferSync(modules).watch(optimizers_in(optimizer))
        return model

    def evaluating(self, *, same_batch_count: bool) -> AbstractContextManager[None]:
        """Return the context manager for a validation pass.

        If all ranks have the same number of batches, each forward pass gathers the parameters, as in training. Otherwise, all
        parameters are gathered once, at the beginning of the pass.
        """
        return nullcontext() if same_batch_count else _gathered(self._modules)


def _wrapped(model: torch.nn.Module, wrap: Wrap) -> list[torch.nn.Module]:
    """Return the submodules that are gathered separately, innermost first."""
    if wrap is None:
        lists = [module for module in model.modules() if isinstance(module, LISTS)]
        inside = {id(part) for module in lists for part in module.modules() if part is not module}
        found = [child for module in lists if id(module) not in inside for child in module.children()]
    else:
        fits = (lambda name, module: isinstance(module, wrap)) if isinstance(wrap, tuple) else wrap
        found = [module for name, module in model.named_modules() if module is not model and fits(name, module)]
        if not found:
            raise BadStrategy(f"Sharded: wrap={wrap!r} matches no module of {type(model).__name__}.", drop="wrap, or change it")
    return [
        module for module in reversed(found) if not isinstance(module, LISTS[:2]) and any(True for _ in module.parameters())
    ]


def _check_tied(model: torch.nn.Module, parts: list[torch.nn.Module]) -> None:
    """Raise BadStrategy if two separately gathered modules share a parameter. torch would fail in the first forward pass."""
    owners: dict[int, torch.nn.Module] = {}
    seen: set[torch.nn.Module] = set()
    for part in parts:
        inside = [module for module in part.modules() if module not in seen]
        seen.update(inside)
        for parameter in (parameter for module in inside for parameter in module.parameters(recurse=False)):
            if owners.setdefault(id(parameter), part) is not part:
                names = [name for name, tied in model.named_parameters(remove_duplicate=False) if tied is parameter]
                raise BadStrategy(
                    f"Sharded: {' and '.join(names)} are the same parameter, in modules that are gathered separately.",
                    give="wrap=, with modules that contain all of these names, or none of them",
                )


@contextmanager
def _gathered(modules: list[torch.nn.Module]) -> Iterator[None]:
    """Gather all parameters, and keep them until the `with` block ends, so that a forward pass does not need other ranks."""
    sharded = [part for module in modules for part in module.modules() if isinstance(part, FSDPModule)]
    for part in sharded:
        part.set_reshard_after_forward(False, recurse=False)
        part.unshard()
    try:
        yield
    finally:
        for part in sharded:
            part.set_reshard_after_forward(True, recurse=False)
            part.reshard()
