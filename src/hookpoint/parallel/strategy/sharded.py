"""Sharded: parameters, gradients and the optimizer's state in parts, one on every process."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, Literal

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard

from hookpoint.core.errors import BadStrategy
from hookpoint.core.team.team import Team
from hookpoint.parallel.shared.buffers import SharedBuffers
from hookpoint.parallel.shared.parts_by_name import modules_in, optimizers_in, send_weights
from hookpoint.parallel.shared.swap_parameters import replaced
from hookpoint.parallel.team.init_process import joined

Wrap = Callable[[str, torch.nn.Module], bool] | tuple[type[torch.nn.Module], ...] | None
LISTS = (torch.nn.ModuleList, torch.nn.ModuleDict, torch.nn.Sequential)


class Sharded:
    """Train with torch's FSDP2, `fully_shard`: each process keeps its part of every parameter, and has all of it when used.

    `wrap` says which modules are gathered on their own, so that not all of the model is there at a time: classes, or a function
    of a module's name and itself; by default those that stand in the outermost ModuleList, ModuleDict or Sequential. With
    `precision="bf16"` parameters are gathered and used as bfloat16, and kept, averaged and stepped in their own type; it needs
    no autocast. In one process it does nothing.

    The optimizer that was made for the dense parameters goes on with their parts, matched by name. `run.model` stays the module
    that was given; its parameters are DTensors, and its `load_state_dict`, as the optimizer's, takes whole tensors, too, which
    every process has. Buffers are whole, and those of the chief, from each step on.

    >>> model = torch.nn.Linear(2, 1)
    >>> runner = Runner(model, torch.optim.SGD(model.parameters(), lr=0.1), torch.nn.MSELoss(), strategy=Sharded())
    >>> runner.fit((torch.ones(8, 2), torch.ones(8, 1)), epochs=1, batch_size=4).step
    2
    """

    def __init__(self, *, wrap: Wrap = None, precision: Literal["32", "bf16"] = "32") -> None:
        if precision not in ("32", "bf16"):
            raise BadStrategy(f"Sharded(precision={precision!r}).", choose="'32' or 'bf16'")
        if isinstance(wrap, type):
            wrap = (wrap,)
        if wrap is not None and not callable(wrap) and not (isinstance(wrap, tuple) and wrap):
            raise BadStrategy(f"Sharded(wrap={wrap!r}).", give="classes of modules, as (Block,), or a function")
        self.wrap, self.precision = wrap, precision
        self._modules: list[torch.nn.Module] = []

    def team(self) -> Team:
        return joined()

    def setup(self, model: Any, optimizer: Any, device: torch.device) -> Any:
        self._modules = modules = modules_in(model)
        if any(isinstance(module, FSDPModule) for module in modules):
            raise BadStrategy("the model is sharded already.", drop="strategy=Sharded(), or your own fully_shard")
        for module in modules:
            _refuse_tied(module, self._parts(module))
        send_weights(modules)
        mesh = init_device_mesh(device.type, (dist.get_world_size(),))
        with replaced(modules, optimizers_in(optimizer)):
            for module in modules:
                self._shard(module, mesh)
        SharedBuffers(modules).watch(optimizers_in(optimizer))
        return model

    def accumulating(self) -> AbstractContextManager[None]:
        return nullcontext()  # each batch's gradients go to where they lie: whole ones would take a dense model's memory

    def merge_gradients(self, parameters: Iterable[torch.nn.Parameter]) -> None:
        pass  # they are never apart

    def clip_grad_norm(self, parameters: Iterable[torch.nn.Parameter], max_norm: float) -> None:
        torch.nn.utils.clip_grad_norm_(parameters, max_norm)

    def evaluating(self, *, is_even: bool) -> AbstractContextManager[None]:
        """Gather parameters for each forward, as in training; once for all of them, where some have more batches."""
        return nullcontext() if is_even else _gathered(self._modules)

    def close(self) -> None:
        self._modules = []

    def _shard(self, module: torch.nn.Module, mesh: DeviceMesh) -> None:
        policy = MixedPrecisionPolicy()
        if self.precision == "bf16":
            policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
        for part in self._parts(module):
            # After each forward, also that of the whole: nobody is to find parameters that the next step does not change.
            fully_shard(part, mesh=mesh, mp_policy=policy, reshard_after_forward=True)

    def _parts(self, module: torch.nn.Module) -> list[torch.nn.Module]:
        return [*_wrapped(module, self.wrap), module]

    def __reduce__(self) -> tuple[Any, ...]:
        return _again, (self.wrap, self.precision)


def _again(wrap: Wrap, precision: Literal["32", "bf16"]) -> Sharded:
    return Sharded(wrap=wrap, precision=precision)


def _wrapped(model: torch.nn.Module, wrap: Wrap) -> list[torch.nn.Module]:
    """Return the modules inside of a model that are gathered on their own, the innermost first."""
    found = []
    if wrap is None:
        lists = [one for _, one in model.named_modules() if isinstance(one, LISTS)]
        inside = {id(part) for one in lists for part in one.modules() if part is not one}
        found = [part for one in lists if id(one) not in inside for part in one.children()]
    else:
        for name, module in model.named_modules():
            if module is not model and (isinstance(module, wrap) if isinstance(wrap, tuple) else wrap(name, module)):
                found.append(module)
        if not found:
            raise BadStrategy(f"Sharded(wrap={wrap!r}) fits no module of {type(model).__name__}.", give="others, or None")
    return [
        module for module in reversed(found) if not isinstance(module, LISTS[:2]) and any(True for _ in module.parameters())
    ]


def _refuse_tied(model: torch.nn.Module, parts: list[torch.nn.Module]) -> None:
    """Refuse a parameter that two parts have: torch would, in the middle of the first forward."""
    owners: dict[int, torch.nn.Module] = {}
    seen: set[torch.nn.Module] = set()
    for part in parts:
        inside = [module for module in part.modules() if module not in seen]
        seen.update(inside)
        for parameter in (one for module in inside for one in module.parameters(recurse=False)):
            if owners.setdefault(id(parameter), part) is not part:
                names = [name for name, one in model.named_parameters(remove_duplicate=False) if one is parameter]
                raise BadStrategy(
                    f"{' and '.join(names)} are one parameter, of modules that Sharded() gathers apart.",
                    give="wrap=, with modules that have all of its names, or none of them",
                )


@contextmanager
def _gathered(modules: list[torch.nn.Module]) -> Iterator[None]:
    """Gather all, and keep it until the end: a forward asks nothing of processes that have no batch, or have none any more."""
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
