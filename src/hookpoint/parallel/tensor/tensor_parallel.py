"""TensorParallel: split layers over multiple ranks that work on the same samples."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import AbstractContextManager
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed._functional_collectives import AsyncCollectiveTensor
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.parallel import parallelize_module
from torch.utils._pytree import tree_leaves, tree_map_only

from hookpoint.core.errors import BadStrategy
from hookpoint.core.team.team import Team
from hookpoint.parallel.shared.buffer_sync import BufferSync
from hookpoint.parallel.shared.model_setup import modules_in, optimizers_in, send_weights
from hookpoint.parallel.shared.swap_parameters import swap_parameters
from hookpoint.parallel.strategy.strategy import StrategyDefaults
from hookpoint.parallel.team.init_process import join_team
from hookpoint.parallel.team.world import world_size
from hookpoint.parallel.tensor._merged_gradients import MergedGradients
from hookpoint.parallel.tensor._tensor_plan import Plan, Split, check_plan, resolve_plan


class TensorParallel(StrategyDefaults):
    """Split layers over multiple ranks with torch's tensor parallelism (`parallelize_module`).

    `plan` maps module names to "colwise", "rowwise" or a style from torch.distributed.tensor.parallel, which is used unchanged.
    Names are matched component by component, with `*` as in torch. In a pair such as {"fc1": "colwise", "fc2": "rowwise"}, each
    rank computes some of the features between the two layers, and the second layer sums the partial results. The output of a
    "colwise" layer stays sharded only if a "rowwise" layer of the same width consumes it. Otherwise, the output is gathered. It
    is also gathered if there may be a norm layer between the two layers, or if the two layers are inside a module that has an
    integer attribute such as `num_heads`, because this module needs the attention heads of all ranks. Without a plan, layers
    with common names are split: fc1 and fc2, up_proj and down_proj, q_proj and o_proj, embed_tokens and lm_head. All other
    layers are replicated on every rank.

    `size` ranks share one model and work on the same samples. By default, all ranks share one model. With a smaller `size`,
    such as 2 of 4 ranks, ranks that hold the same shard of the model work on different samples, and their gradients are
    averaged. In a single process, TensorParallel does nothing.

    `run.model` stays the module you passed, but split parameters become DTensors. The optimizer that you created for the dense
    parameters is updated to use the DTensors. You can also pass full tensors to `load_state_dict` of the model or the
    optimizer. In this case, every rank must pass all of them. The model returns plain, full tensors. Before each step, all
    ranks receive the chief's buffers.

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
        self._gradients: MergedGradients

    @property
    def model_size(self) -> int:
        """Number of ranks that share one model."""
        return self.size or world_size()

    def team(self) -> Team:
        if world_size() % self.model_size:
            cure = f"{self.model_size} ranks, or a multiple of that"
            raise BadStrategy(
                f"TensorParallel: the number of ranks, {world_size()}, is not a multiple of size={self.size}.", start=cure
            )
        return join_team(model_size=self.model_size)

    def setup(self, model: Any, optimizer: Any, device: torch.device) -> Any:
        modules, optimizers = modules_in(model), optimizers_in(optimizer)
        models = model if isinstance(model, Mapping) else {"": model}
        splits = resolve_plan(self.plan, {name: item for name, item in models.items() if item in modules}, self.model_size)
        send_weights(modules)
        shape = (world_size() // self.model_size, self.model_size)
        mesh = init_device_mesh(device.type, shape, mesh_dim_names=("data", "tensor"))
        with swap_parameters(modules, optimizers):
            _split(modules, splits, mesh["tensor"])
        self._gradients = MergedGradients({id(p): p for module in modules for p in module.parameters()}.values(), mesh)
        for each in optimizers:
            _check_fused(each)
        check = ReplicaCheck(mesh.get_group("tensor"), device)
        for module in modules:
            check.watch(module)
        BufferSync(modules).watch(optimizers)
        return model

    def accumulating(self) -> AbstractContextManager[None]:
        return self._gradients.accumulating()

    def merge_gradients(self, parameters: Iterable[torch.nn.Parameter]) -> None:
        self._gradients.merge()

    def clip_grad_norm(self, parameters: Iterable[torch.nn.Parameter], max_norm: float) -> None:
        self._gradients.clip(parameters, max_norm)


def _split(modules: list[torch.nn.Module], splits: list[Split], mesh: DeviceMesh) -> None:
    """Replace parameters with shards. Tied parameters stay tied, and frozen parameters stay frozen."""
    places: dict[int, list[tuple[torch.nn.Module, str]]] = {}
    frozen = set()
    for part in {id(part): part for module in modules for part in module.modules()}.values():
        if isinstance(part, torch.nn.TransformerEncoder):
            part.enable_nested_tensor = False  # TransformerEncoder's fast path reads weights without calling the layers
        for name, parameter in part.named_parameters(recurse=False):
            places.setdefault(id(parameter), []).append((part, name))
            if not parameter.requires_grad:
                frozen.add(id(parameter))
    for split in splits:
        parallelize_module(split.module, mesh, split.style, src_data_rank=None)  # all ranks already have the chief's weights
    for key, (first, *tied) in places.items():
        parameter = getattr(*first)
        if key in frozen:
            parameter.requires_grad_(False)
        for part, name in tied:
            part.register_parameter(name, parameter)


def _check_fused(optimizer: Any) -> None:
    """Raise BadStrategy if a parameter group of a fused or foreach optimizer mixes DTensors and plain tensors.

    torch has no kernels for this case.
    """
    for group in getattr(optimizer, "param_groups", ()):
        option = next((name for name in ("fused", "foreach") if group.get(name)), None)
        if option is not None and len({isinstance(parameter, DTensor) for parameter in group["params"]}) > 1:
            what = f"TensorParallel: {type(optimizer).__name__}({option}=True) has split and unsplit parameters in one group."
            raise BadStrategy(what, drop=f"{option}=True, or put them into separate param groups")


class ReplicaCheck:
    """Make a model return plain tensors, and check the inputs and outputs of its first forward pass.

    In the first forward pass, all ranks that share the model must have the same inputs and outputs. To check this, the ranks
    compare sums of these tensors. A mismatch raises an error before the first step.
    """

    def __init__(self, group: Any, device: torch.device) -> None:
        self._group, self._device = group, device
        self._is_done = False
        self._inputs: list[float] = []

    def watch(self, module: torch.nn.Module) -> None:
        # With prepend=True, the hook runs before the hooks of torch's parallel styles, which may replace the inputs.
        module.register_forward_pre_hook(self._begin, prepend=True, with_kwargs=True)
        module.register_forward_hook(self._end)

    def _begin(self, _: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if not self._is_done:
            self._inputs = _sums([*args, *kwargs.values()])

    def _end(self, module: torch.nn.Module, _: Any, outputs: Any) -> Any:
        outputs = tree_map_only((DTensor, AsyncCollectiveTensor), _plain, outputs)
        if not self._is_done:
            self._is_done = True
            self._compare(type(module).__name__, [*self._inputs, *_sums(outputs)])
        return outputs

    def _compare(self, name: str, sums: list[float]) -> None:
        mine = torch.tensor(sums, dtype=torch.float64, device=self._device)
        ranks = [torch.zeros_like(mine) for _ in range(dist.get_world_size(self._group))]
        dist.all_gather(ranks, mine, group=self._group)
        half = len(sums) // 2
        if not all(_near(rank[:half], ranks[0][:half]) for rank in ranks):
            cure = "a DataLoader without a sampler, or a sampler with rank=run.data_rank and num_replicas=run.team.data_size"
            raise BadStrategy(f"TensorParallel: the ranks that share {name} have different inputs.", give=cure)
        if not all(_near(rank[half:], ranks[0][half:]) for rank in ranks):
            what = f"TensorParallel: the ranks that share {name} have different outputs: the plan leaves them sharded."
            cure = "ColwiseParallel(output_layouts=Replicate()) for a colwise layer that is not followed by a rowwise layer"
            raise BadStrategy(what, give=cure)


def _sums(values: Any) -> list[float]:
    """Return four numbers to compare between ranks: the number of tensors, and sums of their sizes, values and magnitudes."""
    tensors = [tensor.detach() for tensor in tree_leaves(values) if isinstance(tensor, torch.Tensor)]
    shapes = [(place + 1) * size for tensor in tensors for place, size in enumerate(tensor.shape, start=tensor.dim())]
    wide = [tensor.to(torch.float64) for tensor in tensors if not tensor.is_complex()]
    return [len(tensors), sum(shapes), sum(float(t.sum()) for t in wide), sum(float(t.abs().sum()) for t in wide)]


def _near(one: torch.Tensor, other: torch.Tensor) -> bool:
    return bool(((one - other).abs() <= 1e-3 * other.abs().max()).all()) or bool(other.isnan().any() or other.isinf().any())


def _plain(tensor: Any) -> torch.Tensor:
    full: torch.Tensor = tensor.full_tensor() if isinstance(tensor, DTensor) else tensor
    return full.clone() if isinstance(full, AsyncCollectiveTensor) else full
