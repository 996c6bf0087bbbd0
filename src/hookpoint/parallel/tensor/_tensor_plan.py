"""Tensor plan: determine which layers of a model to split over ranks, and the style for each layer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any, Literal, NamedTuple

from torch import nn
from torch.distributed.tensor import Replicate, Shard
from torch.distributed.tensor.parallel import ColwiseParallel, ParallelStyle, RowwiseParallel

from hookpoint.core.errors import BadStrategy

Direction = Literal["colwise", "rowwise"]
Plan = Mapping[str, ParallelStyle | Direction]

DIRECTIONS = ("colwise", "rowwise")
OF_ATTENTION = ("q_proj", "k_proj", "v_proj", "qkv_proj", "qkv", "wq", "wk", "wv", "query", "key", "value")
COLWISE = ("fc1", "linear1", "lin1", "c_fc", "w1", "w3", "gate_proj", "up_proj", "wi", "wi_0", "wi_1", "lm_head", *OF_ATTENTION)
ROWWISE = ("fc2", "linear2", "lin2", "c_proj", "w2", "down_proj", "o_proj", "out_proj", "wo")
EMBEDDINGS = ("embed_tokens", "tok_embeddings", "token_embedding", "wte")
NAMES: dict[str, Direction] = {**dict.fromkeys(COLWISE, "colwise"), **dict.fromkeys((*ROWWISE, *EMBEDDINGS), "rowwise")}
# Elementwise modules can compute on a shard.
ELEMENTWISE = (
    *(nn.ReLU, nn.ReLU6, nn.LeakyReLU, nn.ELU, nn.SELU, nn.CELU, nn.GELU, nn.SiLU, nn.Mish, nn.Tanh, nn.Sigmoid, nn.Softplus),
    *(nn.LogSigmoid, nn.Softsign, nn.Hardtanh, nn.Hardswish, nn.Hardsigmoid, nn.Identity, nn.Dropout),
)


class Split(NamedTuple):
    """A module to split and its style."""

    name: str
    module: nn.Module
    style: ParallelStyle


class Layer(NamedTuple):
    """A layer with its name in the parent module and its direction in the plan: "colwise" or "rowwise"."""

    name: str
    module: nn.Module
    direction: Direction


def check_plan(plan: Any) -> None:
    """Check the types in a plan before the model is known."""
    if plan is None:
        return
    if not isinstance(plan, Mapping) or not plan:
        raise BadStrategy(f"TensorParallel: plan must be a dict, got {plan!r}.", write='plan={"fc1": "colwise"}, or plan=None')
    for name, style in plan.items():
        is_style = style in DIRECTIONS if isinstance(style, str) else isinstance(style, ParallelStyle)
        if not isinstance(name, str) or not is_style:
            cure = 'a module name, and "colwise", "rowwise" or a torch style, such as ColwiseParallel()'
            raise BadStrategy(f"TensorParallel: invalid plan entry {name!r}: {style!r}.", give=cure)


def resolve_plan(plan: Plan | None, models: Mapping[str, nn.Module], size: int) -> list[Split]:
    """Return the modules to split over `size` ranks. `models` maps name prefixes to models."""
    modules = {
        f"{prefix}.{name}".strip("."): module for prefix, model in models.items() for name, module in model.named_modules()
    }
    attentions = [module for module in modules.values() if isinstance(module, nn.MultiheadAttention)]
    inside = {id(part) for attention in attentions for part in attention.modules() if part is not attention}
    found = _default_plan(modules, inside) if plan is None else _matched(plan, modules)
    layers: dict[str, list[Layer]] = {}
    for name, style in found.items():
        if plan is not None:
            _check_kind(name, modules[name], style, is_inside=id(modules[name]) in inside)
        if isinstance(style, str):
            parent, _, own = name.rpartition(".")
            layers.setdefault(parent, []).append(Layer(own, modules[name], style))
    styles = {
        f"{parent}.{own}".strip("."): style
        for parent, children in layers.items()
        for own, style in _styles(modules.get(parent), children, size).items()
    }
    splits = [Split(name, modules[name], styles[name] if isinstance(style, str) else style) for name, style in found.items()]
    for split in splits:
        _check_size(split, size)
    return _check_tied(splits, models, is_default=plan is None)


def _default_plan(modules: Mapping[str, nn.Module], inside: set[int]) -> dict[str, ParallelStyle | Direction]:
    """Return a plan for the layers that have a name in NAMES, such as fc1, and a type that can be split."""
    found: dict[str, ParallelStyle | Direction] = {
        name: direction
        for name, module in modules.items()
        if (direction := NAMES.get(name.rpartition(".")[2])) is not None
        and _can_split(module)
        and id(module) not in inside
        and (isinstance(module, nn.Linear) or direction == "rowwise")
    }
    if not found:
        raise BadStrategy("TensorParallel: no layer has one of the common names, such as fc1 or fc2.", give=_example(modules))
    return found


def _matched(plan: Plan, modules: Mapping[str, nn.Module]) -> dict[str, ParallelStyle | Direction]:
    found: dict[str, ParallelStyle | Direction] = {}
    patterns: dict[str, str] = {}
    for pattern, style in plan.items():
        names = [name for name in modules if _matches(pattern, name)]
        if not names:
            raise BadStrategy(f"TensorParallel: {pattern!r} in the plan matches no module.", give=_example(modules))
        for name in names:
            if name in found:
                raise BadStrategy(f"TensorParallel: {patterns[name]!r} and {pattern!r} both match {name}.", drop="one of them")
            found[name], patterns[name] = style, pattern
    return found


def _matches(pattern: str, name: str) -> bool:
    """Return whether a pattern matches a name, component by component, as in torch's parallelize_module."""
    expected, actual = pattern.split("."), name.split(".")
    return len(expected) == len(actual) and all(map(fnmatchcase, actual, expected))


def _can_split(module: nn.Module) -> bool:
    """Return whether torch can split a layer. The layer must be a Linear or Embedding with a plain weight."""
    if isinstance(module, nn.Embedding):
        # max_norm is not supported, because it changes the weight in the forward pass. sparse=True is not supported, because
        # it produces sparse gradients.
        if module.max_norm is not None or module.sparse:
            return False
    elif not isinstance(module, nn.Linear):
        return False
    return {name for name, _ in module.named_parameters()} <= {"weight", "bias"}


def _check_kind(name: str, module: nn.Module, style: ParallelStyle | Direction, *, is_inside: bool) -> None:
    if not isinstance(style, ColwiseParallel | RowwiseParallel | str):
        return
    if is_inside:
        why = "is inside MultiheadAttention, which reads the weights without calling the layer"
    elif _can_split(module):
        return
    elif isinstance(module, nn.Embedding):
        why = "has max_norm or sparse, which are not supported"
    elif isinstance(module, nn.Linear):
        why = "has parameters other than weight and bias, for example because of a parametrization"
    else:
        why = f"is a {type(module).__name__}: only Linear and Embedding can be split this way"
    raise BadStrategy(f"TensorParallel: {name or 'the model'} {why}.", drop="it from the plan")


def _check_size(split: Split, size: int) -> None:
    """Raise BadStrategy if a layer produces or consumes shards of unequal size, because torch assumes equal sizes."""
    module, style = split.module, split.style
    if isinstance(style, ColwiseParallel):
        layouts, what = style.output_layouts, "output features"
        width = module.out_features if isinstance(module, nn.Linear) else module.embedding_dim
    elif isinstance(style, RowwiseParallel) and isinstance(module, nn.Linear):
        layouts, what, width = style.input_layouts, "input features", module.in_features
    else:
        return
    if any(isinstance(layout, Shard) for layout in layouts) and int(width) % size:  # type: ignore[arg-type]
        cure = f"a multiple of {size}, or {DIRECTIONS[isinstance(style, RowwiseParallel)]!r}, which gathers uneven shards"
        what = f"{split.name} has {width} {what}, which cannot be split evenly across {size} ranks"
        raise BadStrategy(f"TensorParallel: {what}.", choose=cure)


def _check_tied(splits: list[Split], models: Mapping[str, nn.Module], *, is_default: bool) -> list[Split]:
    """Raise BadStrategy if two layers share a weight, but the user's plan does not split both of them in the same way.

    The default plan does not raise an error. It leaves such layers unsplit.
    """
    dims: dict[int, set[int | None]] = {}
    by_module = {id(split.module): split for split in splits}
    for module in {id(part): part for model in models.values() for part in model.modules()}.values():
        for parameter in module.parameters(recurse=False):
            dims.setdefault(id(parameter), set()).add(_split_dim(by_module.get(id(module))))
    tied = [split for split in splits if any(len(dims[id(p)]) > 1 for p in split.module.parameters(recurse=False))]
    if tied and not is_default:
        names = " and ".join(split.name for split in tied)
        what = f"TensorParallel: {names} shares a weight with a layer that is not split in the same way."
        raise BadStrategy(what, split="both layers along the same dimension: an Embedding rowwise and a Linear colwise")
    return [split for split in splits if split not in tied]


def _split_dim(split: Split | None) -> int | None:
    """Return the dimension along which a weight is split."""
    if split is None or not isinstance(split.style, ColwiseParallel | RowwiseParallel):
        return None
    return int(isinstance(split.style, ColwiseParallel) == isinstance(split.module, nn.Embedding))


def _example(modules: Mapping[str, nn.Module]) -> str:
    names = [name for name, module in modules.items() if isinstance(module, nn.Linear) and name]
    if not names:
        return "another strategy: the model has no Linear layer"
    return f'plan={{{names[0]!r}: "colwise", ...}}, with names from {", ".join(names[:8])}{", ..." * (len(names) > 8)}'


# Styles


def _styles(parent: nn.Module | None, layers: Sequence[Layer], size: int) -> dict[str, ParallelStyle]:
    """Return torch's styles for the layers of one module.

    The output of a colwise layer stays sharded only if a rowwise layer of the same width consumes it. Otherwise, the output is
    gathered. In a Sequential, the modules between the two layers are also checked. A module with an integer attribute such as
    `num_heads` expects the attention heads of all ranks, so it gets full tensors.
    """
    pairs = {} if parent is None or _counts_heads(parent) else _pairs(parent, layers)
    uneven = {name for name, layer, _ in layers if name in pairs and int(layer.out_features) % size}  # type: ignore[arg-type]
    pairs = {name: consumer for name, consumer in pairs.items() if name not in uneven}
    styles: dict[str, ParallelStyle] = {}
    for name, layer, direction in layers:
        if direction == "colwise":
            styles[name] = ColwiseParallel() if name in pairs else ColwiseParallel(output_layouts=Replicate())
        elif name in pairs.values() and isinstance(layer, nn.Linear):
            styles[name] = RowwiseParallel()
        else:
            styles[name] = RowwiseParallel(input_layouts=Replicate())
    return styles


def _pairs(parent: nn.Module, layers: Sequence[Layer]) -> dict[str, str]:
    """Return a dict that maps each colwise layer to the rowwise layer that consumes its output."""
    if isinstance(parent, nn.Sequential):
        return _pairs_in_sequence(parent, layers)
    order = [name for name, _ in parent.named_children()]
    consumers = [layer for layer in layers if layer.direction == "rowwise" and isinstance(layer.module, nn.Linear)]
    found = {}
    for name, module, direction in layers:
        if direction == "rowwise" or not isinstance(module, nn.Linear) or name in OF_ATTENTION:
            continue
        if _has_norm(parent, module.out_features):  # a norm between the two layers would need the unsharded output
            continue
        fits = [layer.name for layer in consumers if layer.module.in_features == module.out_features]
        after = [consumer for consumer in fits if order.index(consumer) > order.index(name)]
        if len(consumers) == 1 and fits:  # the only consumer may be defined before its producer, as w2 is before w3
            found[name] = fits[0]
        elif after:
            found[name] = after[0]
    return found


def _pairs_in_sequence(parent: nn.Sequential, layers: Sequence[Layer]) -> dict[str, str]:
    directions = {layer.name: layer.direction for layer in layers if isinstance(layer.module, nn.Linear)}
    found, producer = {}, None
    for name, module in parent.named_children():
        if directions.get(name) == "rowwise" and producer is not None:
            found[producer] = name
        if directions.get(name) == "colwise":
            producer = name
        elif not isinstance(module, ELEMENTWISE):
            producer = None
    return found


def _has_norm(parent: nn.Module, width: int) -> bool:
    others = [child for child in parent.children() if not isinstance(child, nn.Linear | nn.Embedding)]
    return any(parameter.numel() == width for other in others for parameter in other.parameters(recurse=False))


def _counts_heads(parent: nn.Module) -> bool:
    return any("head" in name and type(value) is int for name, value in vars(parent).items())
