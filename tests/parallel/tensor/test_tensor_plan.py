"""The layers that a plan splits, and how it splits them, decided without communication."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402
from torch.distributed.tensor import Replicate, Shard  # noqa: E402
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, SequenceParallel  # noqa: E402

from hookpoint import TensorParallel  # noqa: E402
from hookpoint.core.errors import BadLoop  # noqa: E402
from hookpoint.parallel.tensor._tensor_plan import resolve_plan  # noqa: E402


class Layers(nn.Module):
    """A module with named layers and numeric attributes."""

    def __init__(self, numbers=None, **layers):
        super().__init__()
        self.__dict__.update(numbers or {})
        for name, layer in layers.items():
            self.add_module(name, layer)


def ways(plan, model, size=2):
    """Return "apart" or "whole" for each split layer: the output of a colwise layer, or the input of a rowwise layer."""
    found = {}
    for name, _, style in resolve_plan(plan, {"": model}, size):
        layouts = style.output_layouts if isinstance(style, ColwiseParallel) else style.input_layouts
        found[name] = "apart" if isinstance(layouts[0], Shard) else "whole"
    return found


def attention(**numbers):
    return Layers(numbers, q_proj=nn.Linear(8, 8), k_proj=nn.Linear(8, 8), v_proj=nn.Linear(8, 8), o_proj=nn.Linear(8, 8))


def test_values_stay_sharded_between_layers_only_where_that_is_correct():
    pair = {"0": "colwise", "2": "rowwise"}
    row = [nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 4)]
    assert ways(pair, nn.Sequential(*row)) == {"0": "apart", "2": "apart"}
    assert ways(pair, nn.Sequential(row[0], nn.LayerNorm(8), row[2])) == {"0": "whole", "2": "whole"}
    assert ways(pair, nn.Sequential(row[0], nn.Softmax(dim=-1), row[2])) == {"0": "whole", "2": "whole"}
    assert ways(pair, nn.Sequential(*row), size=3) == {"0": "whole", "2": "whole"}  # 8 features for 3 ranks
    assert ways({"0": "colwise"}, nn.Sequential(*row)) == {"0": "whole"}
    assert ways({"2": "rowwise"}, nn.Sequential(*row)) == {"2": "whole"}
    chain = nn.Sequential(nn.Linear(4, 8), nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 2))
    assert ways({"0": "colwise", "1": "colwise", "3": "rowwise"}, chain) == {"0": "whole", "1": "apart", "3": "apart"}


def test_the_default_plan_knows_the_common_layers():
    gated = Layers(w1=nn.Linear(4, 8), w2=nn.Linear(8, 4), w3=nn.Linear(4, 8))
    fused = Layers(fc1=nn.Linear(4, 16), fc2=nn.Linear(8, 4))  # its halves are multiplied: its shards do not match fc2's
    normed = Layers(fc1=nn.Linear(4, 8), norm=nn.LayerNorm(8), fc2=nn.Linear(8, 4))
    assert ways(None, gated) == {"w1": "apart", "w2": "apart", "w3": "apart"}
    assert ways(None, fused) == {"fc1": "whole", "fc2": "whole"}
    assert ways(None, normed) == {"fc1": "whole", "fc2": "whole"}
    assert set(ways(None, attention()).values()) == {"whole"}
    plan = {"q_proj": "colwise", "o_proj": "rowwise"}
    assert set(ways(plan, attention(num_heads=2)).values()) == {"whole"}
    assert ways({"q_proj": ColwiseParallel()}, attention(num_heads=2)) == {"q_proj": "apart"}  # explicit
    layer = nn.TransformerEncoderLayer(8, 2, 16)
    assert ways(None, layer) == {"linear1": "apart", "linear2": "apart"}  # not inside MultiheadAttention

    tied = Layers(embed_tokens=nn.Embedding(9, 4), lm_head=nn.Linear(4, 9, bias=False), fc1=nn.Linear(4, 8))
    tied.lm_head.weight = tied.embed_tokens.weight
    assert ways(None, tied) == {"embed_tokens": "whole", "lm_head": "whole", "fc1": "whole"}
    tied.fc1 = nn.Linear(4, 9, bias=False)
    tied.fc1.weight = tied.embed_tokens.weight
    tied.other = nn.Linear(4, 9, bias=False)
    tied.other.weight = tied.embed_tokens.weight  # not split
    with pytest.raises(BadLoop, match="split in the same way"):
        ways({"embed_tokens": "rowwise"}, tied)
    assert ways(None, Layers(deep=tied, fc2=nn.Linear(4, 4))) == {"fc2": "whole"}


def test_plan_patterns_match_as_in_torch():
    model = nn.ModuleList(nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4)) for _ in range(2))
    assert ways({"*.0": "colwise", "[01].1": "rowwise"}, model) == dict.fromkeys(("0.0", "1.0", "0.1", "1.1"), "apart")
    (norm,) = resolve_plan({"0": SequenceParallel()}, {"": nn.Sequential(nn.LayerNorm(4))}, 2)
    assert norm.name == "0"
    assert [one.name for one in resolve_plan({"a.0": "colwise"}, {"a": model[0], "b": model[1]}, 2)] == ["a.0"]


class Scaled(nn.Linear):
    def __init__(self):
        super().__init__(4, 4)
        self.scale = nn.Parameter(torch.ones(4))


@pytest.mark.parametrize(
    ("plan", "layer", "what"),
    [
        ({"1": "colwise"}, nn.Linear(4, 4), "'1' in the plan matches no module"),
        ({"0": "colwise", "*": "rowwise"}, nn.Linear(4, 4), "'0' and '\\*' both match 0"),
        ({"0": "colwise"}, nn.Conv2d(1, 4, 1), "0 is a Conv2d: only Linear and Embedding"),
        ({"0.out_proj": "rowwise"}, nn.MultiheadAttention(4, 2), "inside MultiheadAttention"),
        ({"0": "rowwise"}, nn.Embedding(4, 4, max_norm=1.0), "max_norm"),
        ({"0": "rowwise"}, Scaled(), "parameters other than weight and bias"),
        ({"0": ColwiseParallel()}, nn.Linear(4, 5), "5 output features, which cannot be split evenly across 2 ranks"),
        ({"0": RowwiseParallel()}, nn.Linear(5, 4), "5 input features"),
        (None, nn.Linear(4, 4), "no layer has one of the common names"),
        (None, nn.Conv2d(1, 4, 1), "has no Linear layer"),
    ],
)
def test_a_plan_that_does_not_fit_the_model_raises(plan, layer, what):
    with pytest.raises(BadLoop, match=what):
        resolve_plan(plan, {"": nn.Sequential(layer)}, 2)
    uneven = {"0": ColwiseParallel(output_layouts=Replicate())}
    assert len(resolve_plan(uneven, {"": nn.Sequential(nn.Linear(4, 5))}, 2)) == 1  # gathered outputs are correct


@pytest.mark.parametrize(
    ("given", "what"),
    [
        ({"plan": {}}, "plan must be a dict, got {}"),
        ({"plan": "colwise"}, "plan must be a dict"),
        ({"plan": {"0": "columns"}}, "columns"),
        ({"plan": {0: "colwise"}}, "0: 'colwise'"),
        ({"size": 0}, "got 0"),
        ({"size": True}, "got True"),
    ],
)
def test_invalid_arguments_raise_at_once(given, what):
    with pytest.raises(BadLoop, match=what):
        TensorParallel(**given)
