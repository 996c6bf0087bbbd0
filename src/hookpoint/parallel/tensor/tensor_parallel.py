"""TensorParallel: each layer over several processes, which work on the same samples."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.parallel import parallelize_module

from hookpoint.core.errors import BadStrategy
from hookpoint.core.team.team import Team
from hookpoint.parallel.shared.buffers import SharedBuffers
from hookpoint.parallel.shared.parts_by_name import modules_in, optimizers_in, send_weights
from hookpoint.parallel.shared.swap_parameters import replaced
from hookpoint.parallel.team.init_process import joined
from hookpoint.parallel.team.world import world_size
from hookpoint.parallel.tensor._clipping import clip_sharded
from hookpoint.parallel.tensor._merged_gradients import MergedGradients
from hookpoint.parallel.tensor._replica_check import ReplicaCheck
from hookpoint.parallel.tensor._tensor_plan import Plan, Split, check_plan, splits


class TensorParallel:
    """Train with torch's tensor parallelism, `parallelize_module`: each process has a part of the layers that a plan names.

    `plan` maps names of modules, dot by dot with `*` as in torch, to "colwise" or "rowwise", or to a style of
    torch.distributed.tensor.parallel, which is taken as it is. Of a pair, as {"fc1": "colwise", "fc2": "rowwise"}, the first
    layer computes some of the numbers between them on each process, and the second adds up what they make of them. The words
    keep numbers apart only where that is right, and gather them elsewhere: in front of a layer of another width, of a norm, of
    an attention that counts its heads. Without a plan, layers with the usual names are split, as fc1 and fc2, up_proj and
    down_proj, q_proj and o_proj, embed_tokens and lm_head. What no plan names is whole on every process.

    `size` processes share one model and work on the same samples; by default all of them. With fewer, as 2 of 4, those with the
    same part of the model have different samples, and gradients are averaged over them. In one process it does nothing.

    The optimizer that was made for the dense parameters goes on with their parts, matched by name. `run.model` stays the module
    that was given; parameters that are split are DTensors, and its `load_state_dict`, as the optimizer's, takes whole tensors,
    too, which every process has. What it returns are plain, whole tensors. Buffers are those of the chief, from each step on.

    >>> model = torch.nn.Sequential(torch.nn.Linear(2, 8), torch.nn.ReLU(), torch.nn.Linear(8, 1))
    >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    >>> strategy = TensorParallel({"0": "colwise", "2": "rowwise"})
    >>> runner = Runner(model, optimizer, torch.nn.MSELoss(), strategy=strategy)
    >>> runner.fit((torch.ones(8, 2), torch.ones(8, 1)), epochs=1, batch_size=4).step
    2
    """

    def __init__(self, plan: Plan | None = None, *, size: int | None = None) -> None:
        check_plan(plan)
        if size is not None and (type(size) is not int or size < 1):
            raise BadStrategy(f"TensorParallel(size={size!r}).", give="how many processes share a model, or None for all")
        self.plan, self.size = plan, size
        self._mesh: DeviceMesh | None = None
        self._gradients: MergedGradients | None = None

    @property
    def model_size(self) -> int:
        """How many processes share one model."""
        return self.size or world_size()

    def team(self) -> Team:
        if world_size() % self.model_size:
            raise BadStrategy(
                f"TensorParallel(size={self.size}): {world_size()} processes are not a multiple of it.",
                start=f"{self.model_size} processes, or a multiple of them",
            )
        return joined(model_size=self.model_size)

    def setup(self, model: Any, optimizer: Any, device: torch.device) -> Any:
        modules, optimizers = modules_in(model), optimizers_in(optimizer)
        models = model if isinstance(model, Mapping) else {"": model}
        found = splits(self.plan, {name: one for name, one in models.items() if one in modules}, self.model_size)
        send_weights(modules)
        shape = (world_size() // self.model_size, self.model_size)
        self._mesh = mesh = init_device_mesh(device.type, shape, mesh_dim_names=("data", "tensor"))
        with replaced(modules, optimizers):
            _split(modules, found, mesh["tensor"])
        for one in optimizers:
            _refuse_joint_kernels(one)
        self._gradients = MergedGradients({id(p): p for module in modules for p in module.parameters()}.values(), mesh)
        self._gradients.watch()
        alike = ReplicaCheck(mesh.get_group("tensor"), device)
        for module in modules:
            alike.watch(module)
        SharedBuffers(modules).watch(optimizers)
        return model

    def accumulating(self) -> AbstractContextManager[None]:
        assert self._gradients is not None
        return self._gradients.waiting()

    def merge_gradients(self, parameters: Iterable[torch.nn.Parameter]) -> None:
        assert self._gradients is not None
        self._gradients.merge()

    def clip_grad_norm(self, parameters: Iterable[torch.nn.Parameter], max_norm: float) -> None:
        assert self._mesh is not None
        clip_sharded(parameters, max_norm, self._mesh.get_group("tensor"))

    def evaluating(self, *, is_even: bool) -> AbstractContextManager[None]:
        return nullcontext()  # a forward talks to those alone who have the same samples, and as many of them

    def close(self) -> None:
        pass

    def __reduce__(self) -> tuple[Any, ...]:
        return _again, (self.plan, self.size)


def _again(plan: Plan | None, size: int | None) -> TensorParallel:
    return TensorParallel(plan, size=size)


def _split(modules: list[torch.nn.Module], found: list[Split], mesh: DeviceMesh) -> None:
    """Put parts in the places of parameters; those that were one stay one, and those that were frozen stay so."""
    places: dict[int, list[tuple[torch.nn.Module, str]]] = {}
    frozen = set()
    for part in {id(one): one for module in modules for one in module.modules()}.values():
        if isinstance(part, torch.nn.TransformerEncoder):
            part.enable_nested_tensor = False  # a way that reads weights of its layers without calling them
        for name, parameter in part.named_parameters(recurse=False):
            places.setdefault(id(parameter), []).append((part, name))
            if not parameter.requires_grad:
                frozen.add(id(parameter))
    for one in found:
        parallelize_module(one.module, mesh, one.style, src_data_rank=None)  # everybody has the chief's weights
    for key, several in places.items():
        first = getattr(*several[0])
        if key in frozen:
            first.requires_grad_(False)
        for part, name in several[1:]:
            part.register_parameter(name, first)


def _refuse_joint_kernels(optimizer: Any) -> None:
    """Say before the first step that torch has no kernels for parts and wholes at a time."""
    for group in getattr(optimizer, "param_groups", ()):
        kinds = {isinstance(one, DTensor) for one in group["params"]}
        option = next((name for name in ("fused", "foreach") if group.get(name)), None)
        if option is not None and len(kinds) > 1:
            raise BadStrategy(
                f"{type(optimizer).__name__}({option}=True) has layers that are split and others in one group, which torch"
                " cannot step together.",
                drop=f"{option}=True, or give them groups of their own",
            )
