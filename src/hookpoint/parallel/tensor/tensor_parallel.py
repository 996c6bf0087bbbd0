"""TensorParallel: each layer split over multiple ranks that work on the same samples."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.parallel import parallelize_module

from hookpoint.core.errors import BadStrategy
from hookpoint.core.team.team import Team
from hookpoint.parallel.shared.buffer_sync import BufferSync
from hookpoint.parallel.shared.model_setup import modules_in, optimizers_in, send_weights
from hookpoint.parallel.shared.swap_parameters import swap_parameters
from hookpoint.parallel.strategy.strategy import StrategyDefaults
from hookpoint.parallel.team.init_process import join_team
from hookpoint.parallel.team.world import world_size
from hookpoint.parallel.tensor._merged_gradients import MergedGradients
from hookpoint.parallel.tensor._replica_check import ReplicaCheck
from hookpoint.parallel.tensor._tensor_plan import Plan, Split, check_plan, resolve_plan


class TensorParallel(StrategyDefaults):
    """Split layers over multiple ranks with torch's tensor parallelism (`parallelize_module`).

    `plan` maps module names to "colwise", "rowwise" or a style of torch.distributed.tensor.parallel, which is used unchanged.
    Names are matched component by component, with `*` as in torch. In a pair such as {"fc1": "colwise", "fc2": "rowwise"}, each
    rank computes some of the features between the two layers, and the second layer sums the partial results. "colwise" keeps
    its output sharded only where that is correct. It gathers the output in front of a layer of another width, a norm, or an
    attention that counts its heads. Without a plan, layers with the usual names are split: fc1 and fc2, up_proj and down_proj,
    q_proj and o_proj, embed_tokens and lm_head. All other layers are replicated on every rank.

    `size` ranks share one model and work on the same samples; by default all ranks. With a smaller `size`, such as 2 of 4
    ranks, ranks with the same shard of the model have different samples, and their gradients are averaged. In a single
    process, TensorParallel does nothing.

    `run.model` stays the module you passed; split parameters become DTensors. The optimizer you created for the dense
    parameters is updated to use them. `load_state_dict` of model and optimizer also accepts full tensors, which every rank must
    have. The model returns plain, full tensors. Before each step, all ranks receive the chief's buffers.

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
            raise BadStrategy(f"TensorParallel: size must be an integer >= 1, or None for all ranks, got {size!r}.")
        self.plan, self.size = plan, size
        self._gradients: MergedGradients | None = None

    @property
    def model_size(self) -> int:
        """Number of ranks that share one model."""
        return self.size or world_size()

    def team(self) -> Team:
        if world_size() % self.model_size:
            raise BadStrategy(
                f"TensorParallel: {world_size()} ranks are not a multiple of size={self.size}.",
                start=f"{self.model_size} ranks, or a multiple of them",
            )
        return join_team(model_size=self.model_size)

    def setup(self, model: Any, optimizer: Any, device: torch.device) -> Any:
        modules, optimizers = modules_in(model), optimizers_in(optimizer)
        models = model if isinstance(model, Mapping) else {"": model}
        splits = resolve_plan(self.plan, {name: one for name, one in models.items() if one in modules}, self.model_size)
        send_weights(modules)
        shape = (world_size() // self.model_size, self.model_size)
        mesh = init_device_mesh(device.type, shape, mesh_dim_names=("data", "tensor"))
        with swap_parameters(modules, optimizers):
            _split(modules, splits, mesh["tensor"])
        for one in optimizers:
            _refuse_joint_kernels(one)
        self._gradients = MergedGradients({id(p): p for module in modules for p in module.parameters()}.values(), mesh)
        check = ReplicaCheck(mesh.get_group("tensor"), device)
        for module in modules:
            check.watch(module)
        BufferSync(modules).watch(optimizers)
        return model

    def accumulating(self) -> AbstractContextManager[None]:
        assert self._gradients is not None
        return self._gradients.accumulating()

    def merge_gradients(self, parameters: Iterable[torch.nn.Parameter]) -> None:
        assert self._gradients is not None
        self._gradients.merge()

    def clip_grad_norm(self, parameters: Iterable[torch.nn.Parameter], max_norm: float) -> None:
        assert self._gradients is not None
        self._gradients.clip(parameters, max_norm)


def _split(modules: list[torch.nn.Module], splits: list[Split], mesh: DeviceMesh) -> None:
    """Replace parameters by shards. Tied parameters stay tied, and frozen ones stay frozen."""
    places: dict[int, list[tuple[torch.nn.Module, str]]] = {}
    frozen = set()
    for part in {id(part): part for module in modules for part in module.modules()}.values():
        if isinstance(part, torch.nn.TransformerEncoder):
            part.enable_nested_tensor = False  # that path reads the weights of layers without calling them
        for name, parameter in part.named_parameters(recurse=False):
            places.setdefault(id(parameter), []).append((part, name))
            if not parameter.requires_grad:
                frozen.add(id(parameter))
    for split in splits:
        parallelize_module(split.module, mesh, split.style, src_data_rank=None)  # all ranks have the chief's weights
    for key, (first, *tied) in places.items():
        parameter = getattr(*first)
        if key in frozen:
            parameter.requires_grad_(False)
        for part, name in tied:
            part.register_parameter(name, parameter)


def _refuse_joint_kernels(optimizer: Any) -> None:
    """Raise before the first step: torch has no fused kernels for DTensors and plain tensors in one group."""
    for group in getattr(optimizer, "param_groups", ()):
        option = next((name for name in ("fused", "foreach") if group.get(name)), None)
        if option is not None and len({isinstance(parameter, DTensor) for parameter in group["params"]}) > 1:
            raise BadStrategy(
                f"TensorParallel: {type(optimizer).__name__}({option}=True) has split and other layers in one group, which"
                " torch cannot step together.",
                drop=f"{option}=True, or put them into separate groups",
            )
