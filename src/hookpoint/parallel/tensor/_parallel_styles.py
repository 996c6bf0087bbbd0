"""Style words: what "colwise" and "rowwise" mean for the layers of one module, so that the numbers are right in any case."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NamedTuple

from torch import nn
from torch.distributed.tensor import Replicate
from torch.distributed.tensor.parallel import ColwiseParallel, ParallelStyle, RowwiseParallel

Word = Literal["colwise", "rowwise"]

OF_ATTENTION = {"q_proj", "k_proj", "v_proj", "qkv_proj", "qkv", "wq", "wk", "wv", "query", "key", "value"}
# What makes of each number another one, whatever stands beside it: it may see a part of them.
EACH_ALONE = (
    *(nn.ReLU, nn.ReLU6, nn.LeakyReLU, nn.ELU, nn.SELU, nn.CELU, nn.GELU, nn.SiLU, nn.Mish, nn.Tanh, nn.Sigmoid, nn.Softplus),
    *(nn.LogSigmoid, nn.Softsign, nn.Hardtanh, nn.Hardswish, nn.Hardsigmoid, nn.Identity, nn.Dropout),
)


class Worded(NamedTuple):
    """A layer of a module, by its name there, with the word that a plan has for it."""

    name: str
    layer: nn.Module
    word: Word


def styles_for(parent: nn.Module | None, layers: Sequence[Worded], size: int) -> dict[str, ParallelStyle]:
    """Return torch's styles for the layers of one module.

    What a colwise layer gives stays apart only where a rowwise one of the same width takes it; everywhere else each process
    gets all of it. In a Sequential what stands between them is looked at. A module that counts heads would count those of all
    processes, and gets whole tensors.
    """
    pairs = {} if parent is None or _counts_heads(parent) else _pairs(parent, layers)
    pairs = {name: taker for name, taker in pairs.items() if _even(layers, name, size)}
    styles: dict[str, ParallelStyle] = {}
    for name, layer, word in layers:
        if word == "colwise":
            styles[name] = ColwiseParallel() if name in pairs else ColwiseParallel(output_layouts=Replicate())
        elif name in pairs.values() and isinstance(layer, nn.Linear):
            styles[name] = RowwiseParallel()
        else:
            styles[name] = RowwiseParallel(input_layouts=Replicate())
    return styles


def _pairs(parent: nn.Module, layers: Sequence[Worded]) -> dict[str, str]:
    """Return which rowwise layer takes what each colwise one gives."""
    if isinstance(parent, nn.Sequential):
        return _pairs_in_a_row(parent, layers)
    order = [name for name, _ in parent.named_children()]
    takers = [one for one in layers if one.word == "rowwise" and isinstance(one.layer, nn.Linear)]
    found = {}
    for name, layer, word in layers:
        if word == "rowwise" or not isinstance(layer, nn.Linear) or name in OF_ATTENTION:
            continue
        if _has_norm(parent, layer.out_features):  # it may stand between them, and needs all numbers
            continue
        fits = [one.name for one in takers if one.layer.in_features == layer.out_features]
        after = [one for one in fits if order.index(one) > order.index(name)]
        if len(takers) == 1 and fits:  # also where it stands before, as w2 between w1 and w3
            found[name] = fits[0]
        elif after:
            found[name] = after[0]
    return found


def _pairs_in_a_row(parent: nn.Sequential, layers: Sequence[Worded]) -> dict[str, str]:
    words = {one.name: one.word for one in layers if isinstance(one.layer, nn.Linear)}
    found, giver = {}, None
    for name, layer in parent.named_children():
        if words.get(name) == "rowwise" and giver is not None:
            found[giver] = name
        if words.get(name) == "colwise":
            giver = name
        elif not isinstance(layer, EACH_ALONE):
            giver = None
    return found


def _has_norm(parent: nn.Module, width: int) -> bool:
    others = [one for one in parent.children() if not isinstance(one, nn.Linear | nn.Embedding)]
    return any(one.numel() == width for other in others for one in other.parameters(recurse=False))


def _even(layers: Sequence[Worded], name: str, size: int) -> bool:
    return all(int(one.layer.out_features) % size == 0 for one in layers if one.name == name)  # type: ignore[arg-type]


def _counts_heads(parent: nn.Module) -> bool:
    return any("head" in name and type(value) is int for name, value in vars(parent).items())
