"""Tensor plan: which layers of a model are split over processes, and how."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from fnmatch import fnmatchcase
from typing import Any, Literal, NamedTuple

from torch import nn
from torch.distributed.tensor import Shard
from torch.distributed.tensor.parallel import ColwiseParallel, ParallelStyle, RowwiseParallel

from hookpoint.core.errors import BadStrategy
from hookpoint.parallel.tensor._parallel_styles import Word, Worded, styles_for

Plan = Mapping[str, ParallelStyle | Literal["colwise", "rowwise"]]
NAMES: dict[str, Word] = {
    # The first of two layers, and those beside it
    **dict.fromkeys(("fc1", "linear1", "lin1", "c_fc", "w1", "w3", "gate_proj", "up_proj", "wi", "wi_0", "wi_1"), "colwise"),
    **dict.fromkeys(("q_proj", "k_proj", "v_proj", "qkv_proj", "qkv", "wq", "wk", "wv", "query", "key", "value"), "colwise"),
    "lm_head": "colwise",
    # The second, which adds up
    **dict.fromkeys(("fc2", "linear2", "lin2", "c_proj", "w2", "down_proj", "o_proj", "out_proj", "wo"), "rowwise"),
    **dict.fromkeys(("embed_tokens", "tok_embeddings", "token_embedding", "wte"), "rowwise"),
}
WORDS = ("colwise", "rowwise")


class Split(NamedTuple):
    """A module that is split, and how."""

    name: str
    module: nn.Module
    style: ParallelStyle


def check_plan(plan: Any) -> None:
    """Refuse what is no plan, before there is a model to look at."""
    if plan is None:
        return
    if not isinstance(plan, Mapping) or not plan:
        raise BadStrategy(f"TensorParallel(plan={plan!r}).", give='{"name of a layer": "colwise" or "rowwise"}, or None')
    for name, style in plan.items():
        if not isinstance(name, str) or not (style in WORDS if isinstance(style, str) else isinstance(style, ParallelStyle)):
            raise BadStrategy(
                f"TensorParallel(plan={{{name!r}: {style!r}}}).",
                give='"colwise", "rowwise" or one of torch.distributed.tensor.parallel, as ColwiseParallel()',
            )


def splits(plan: Plan | None, models: Mapping[str, nn.Module], size: int) -> list[Split]:
    """Return what to split over so many processes, in models by the prefixes of their names; refuse a plan that fits not."""
    modules = {
        f"{prefix}.{name}".strip("."): module for prefix, model in models.items() for name, module in model.named_modules()
    }
    inside = {
        id(part)
        for one in modules.values()
        if isinstance(one, nn.MultiheadAttention)
        for part in one.modules()
        if part is not one
    }
    found = _ready(modules, inside) if plan is None else _named(plan, modules)
    if plan is not None:
        for name, style in found.items():
            _check_kind(name, modules[name], style, is_read_apart=id(modules[name]) in inside)
    worded: dict[str, list[Worded]] = {}
    for name, style in found.items():
        if isinstance(style, str):
            parent, _, own = name.rpartition(".")
            worded.setdefault(parent, []).append(Worded(own, modules[name], style))
    styles = {
        f"{parent}.{own}".strip("."): style
        for parent, several in worded.items()
        for own, style in styles_for(modules.get(parent), several, size).items()
    }
    made = [Split(name, modules[name], styles[name] if isinstance(style, str) else style) for name, style in found.items()]
    for one in made:
        _check_size(one, size)
    return _tied_alike(made, models, is_ready=plan is None)


def _ready(modules: Mapping[str, nn.Module], inside: set[int]) -> dict[str, ParallelStyle | Word]:
    """Return the layers with the usual names, where they are what they are called."""
    found: dict[str, ParallelStyle | Word] = {
        name: word
        for name, module in modules.items()
        if (word := NAMES.get(name.rpartition(".")[2])) is not None
        and _is_plain(module)
        and id(module) not in inside
        and (isinstance(module, nn.Linear) or word == "rowwise")
    }
    if not found:
        raise BadStrategy("TensorParallel(): no layer has one of the usual names, as fc1 and fc2.", give=_example(modules))
    return found


def _named(plan: Plan, modules: Mapping[str, nn.Module]) -> dict[str, ParallelStyle | Word]:
    found: dict[str, ParallelStyle | Word] = {}
    by: dict[str, str] = {}
    for pattern, style in plan.items():
        names = [name for name in modules if _fits(pattern, name)]
        if not names:
            raise BadStrategy(f"TensorParallel(plan=...): {pattern!r} fits no module.", give=_example(modules))
        for name in names:
            if name in found:
                raise BadStrategy(f"TensorParallel(plan=...): {by[name]!r} and {pattern!r} both fit {name}.", drop="one")
            found[name], by[name] = style, pattern
    return found


def _fits(pattern: str, name: str) -> bool:
    """Say whether a name fits, dot by dot, as torch's own parallelize_module does it."""
    words, own = pattern.split("."), name.split(".")
    return len(words) == len(own) and all(fnmatchcase(one, word) for word, one in zip(words, own, strict=True))


def _is_plain(module: nn.Module) -> bool:
    """Say whether a layer is one that torch can split: with a weight that it alone uses as it is."""
    if isinstance(module, nn.Embedding):
        if module.max_norm is not None or module.sparse:  # changed in place in a forward; without a dense gradient
            return False
    elif not isinstance(module, nn.Linear):
        return False
    return {name for name, _ in module.named_parameters()} <= {"weight", "bias"}


def _check_kind(name: str, module: nn.Module, style: ParallelStyle | Word, *, is_read_apart: bool) -> None:
    if not isinstance(style, ColwiseParallel | RowwiseParallel | str):
        return
    if is_read_apart:
        why = "is inside of MultiheadAttention, which reads its weights without calling it"
    elif isinstance(module, nn.Embedding) and not _is_plain(module):
        why = "has max_norm or sparse, which is not known to work in parts"
    elif isinstance(module, nn.Linear) and not _is_plain(module):
        why = "has more than a weight and a bias, as a parametrization"
    elif not isinstance(module, nn.Linear | nn.Embedding):
        why = f"is a {type(module).__name__}: only Linear and Embedding are split in this way"
    else:
        return
    raise BadStrategy(f"TensorParallel(plan=...): {name or 'the model'} {why}.", drop="it from the plan")


def _check_size(split: Split, size: int) -> None:
    """Refuse parts of different sizes where they meet others: torch takes each for as large as this process's own."""
    module, style = split.module, split.style
    if isinstance(style, ColwiseParallel):
        is_apart = any(isinstance(one, Shard) for one in style.output_layouts)
        width = module.out_features if isinstance(module, nn.Linear) else module.embedding_dim
    elif isinstance(style, RowwiseParallel) and isinstance(module, nn.Linear):
        is_apart = any(isinstance(one, Shard) for one in style.input_layouts)
        width = module.in_features
    else:
        return
    if is_apart and int(width) % size:  # type: ignore[arg-type]
        raise BadStrategy(
            f"TensorParallel(plan=...): {split.name} has a width of {width}, which {size} processes cannot share evenly.",
            choose=f"a multiple of {size}, or the word {WORDS[isinstance(style, RowwiseParallel)]!r}, which gathers it",
        )


def _tied_alike(made: list[Split], models: Mapping[str, nn.Module], *, is_ready: bool) -> list[Split]:
    """Refuse to split one weight in two ways; the ready plan leaves it whole."""
    ways: dict[int, set[int | None]] = {}
    split = {id(one.module): one for one in made}
    seen: set[int] = set()
    for module in (part for model in models.values() for part in model.modules()):
        if id(module) not in seen:
            seen.add(id(module))
            for parameter in module.parameters(recurse=False):
                ways.setdefault(id(parameter), set()).add(_cut(split.get(id(module))))
    odd = [one for one in made if any(len(ways[id(own)]) > 1 for own in one.module.parameters(recurse=False))]
    if odd and not is_ready:
        names = " and ".join(one.name for one in odd)
        raise BadStrategy(
            f"TensorParallel(plan=...): {names} has a weight in common with a layer that is not split in the same way.",
            split="both: an Embedding rowwise and a Linear colwise are cut alike",
        )
    return [one for one in made if one not in odd]


def _cut(split: Split | None) -> int | None:
    """Return the dimension in which a weight is cut."""
    if split is None or not isinstance(split.style, ColwiseParallel | RowwiseParallel):
        return None
    return int(isinstance(split.style, ColwiseParallel) == isinstance(split.module, nn.Embedding))


def _example(modules: Mapping[str, nn.Module]) -> str:
    names = [name for name, module in modules.items() if isinstance(module, nn.Linear) and name]
    if not names:
        return "another strategy: the model has no Linear layer"
    return f'plan={{{names[0]!r}: "colwise", ...}}, of {_few(names)}'


def _few(names: Iterable[str]) -> str:
    several = list(names)
    return ", ".join(several[:8]) + (", ..." if len(several) > 8 else "")
