"""Tree: a run's state as nested plain types, tensors and arrays."""

from __future__ import annotations

import sys
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterator
from typing import Any, TypeGuard

from hookpoint.core.checkpoint.layer_versions import put_versions, versions_of
from hookpoint.core.checkpoint.sharded_placeholder import ShardedPlaceholder
from hookpoint.core.errors import NotSaveable

PLAIN = frozenset({type(None), bool, int, float, complex, str, bytes})
MAPPINGS = frozenset({dict, OrderedDict, Counter})
SEQUENCES = frozenset({list, tuple, set, frozenset})
ARRAY_KINDS = "biufcmMSU"
MAX_LEVELS = 100
MAX_SHOWN = 8

Where = tuple[Any, ...]  # the keys that lead to a value
Leaf = Callable[[Any, Where], Any]


def copied(state: Any, leaf: Leaf = lambda value, where: value, placeholder: Leaf = lambda value, where: value) -> Any:
    """Copy a tree, and convert NumPy scalars to Python numbers.

    Each tensor and array is replaced with `leaf(value, where)`, and each placeholder with `placeholder(value, where)`.

    All other values must have plain types, such as dict or int. A subclass of dict or int is not plain. If a value has another
    type, this raises NotSaveable. The error shows the path to the value.
    """

    def replace(value: Any, where: Where) -> Any:
        return placeholder(value, where) if type(value) is ShardedPlaceholder else leaf(value, where)

    return _copied(state, (), replace)


def is_tensor(value: Any) -> bool:
    tensor_class = _tensor_class()
    return tensor_class is not None and isinstance(value, tensor_class)


def _tensor_class() -> Any:
    """Return torch.Tensor. Return None if torch is not fully imported yet, because there are no tensors in this case."""
    return getattr(sys.modules.get("torch"), "Tensor", None)


def is_array(value: Any) -> bool:
    numpy = sys.modules.get("numpy")
    return numpy is not None and isinstance(value, numpy.ndarray)


def named_tensors(tree: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the tensors in a tree with dotted names, such as `critic.weight` or `state.0.exp_avg`."""
    if is_tensor(tree):
        yield prefix, tree
    elif type(tree) in MAPPINGS or type(tree) in SEQUENCES:
        for key, value in tree.items() if type(tree) in MAPPINGS else enumerate(tree):
            yield from named_tensors(value, f"{prefix}.{key}" if prefix else str(key))


def tensors_in(tree: Any) -> list[Any]:
    """Return the tensors in a tree, without their names. The search stops at values that are nested too deeply."""
    tensor_class = _tensor_class()
    found: list[Any] = []
    if tensor_class is not None:
        _add_tensors(tree, tensor_class, found, MAX_LEVELS)
    return found


def is_flat(value: Any) -> TypeGuard[dict[str, Any]]:
    """Return whether a value is a non-empty dict that maps names to tensors, like a module's state_dict."""
    return type(value) in (dict, OrderedDict) and bool(value) and all(type(k) is str and is_tensor(v) for k, v in value.items())


def has_tensors(tree: Any) -> bool:
    """Return whether the tree contains a tensor."""
    if type(tree) in MAPPINGS:
        return any(map(has_tensors, tree.values()))
    if type(tree) in SEQUENCES:
        return not PLAIN.issuperset(map(type, tree)) and any(map(has_tensors, tree))
    return is_tensor(tree)


def memory_of(tensor: Any) -> tuple[Any, ...] | None:
    """Return a key that is equal for all tensors with the same memory and layout, or None for an empty tensor."""
    if not tensor.numel():
        return None
    return (tensor.device, tensor.data_ptr(), tensor.dtype, tensor.shape, tensor.stride(), tensor.is_conj(), tensor.is_neg())


def shown(where: Where) -> str:
    """Format the path to a value as Python code.

    >>> shown(("callbacks", "Mine", "state", 0))
    "callbacks['Mine']['state'][0]"
    """
    first, *rest = where or ("the state",)
    return str(first) + "".join(f"[{key!r}]" for key in rest)


def _add_tensors(value: Any, tensor: type, found: list[Any], levels: int) -> bool:
    """Append the tensors in a value to a list. If the value is nested too deeply or contains itself, stop and return False."""
    if isinstance(value, tensor):
        found.append(value)
    elif type(value) in MAPPINGS or type(value) in SEQUENCES:
        items = value.values() if type(value) in MAPPINGS else value
        if not PLAIN.issuperset(map(type, items)):
            return levels > 0 and all(_add_tensors(item, tensor, found, levels - 1) for item in items)
    return True


def _copied(value: Any, where: Where, leaf: Leaf) -> Any:
    kind = type(value)
    if kind in PLAIN:
        return value
    if len(where) > MAX_LEVELS:
        raise NotSaveable(
            f"{shown(where[:MAX_SHOWN])}… is nested too deeply, or contains itself.",
            keep=f"it in at most {MAX_LEVELS} levels of lists and dicts",
        )
    if kind in MAPPINGS:
        return _mapping(value, where, leaf)
    if kind in SEQUENCES:
        if PLAIN.issuperset(map(type, value)):  # for example, the 625 numbers in a generator's state
            return kind(value)
        return kind(_copied(item, (*where, index), leaf) for index, item in enumerate(value))
    if is_tensor(value):
        _refuse_odd_tensor(value, where)
    elif is_array(value):
        _refuse_odd_array(value, where)
    elif _is_scalar(value) and type(value.item()) in PLAIN:
        return value.item()
    elif kind is not ShardedPlaceholder:
        raise _not_saveable(value, where)
    return leaf(value, where)


def _mapping(value: Any, where: Where, leaf: Leaf) -> Any:
    copy = type(value)()
    for key, item in value.items():
        plain = _key(key, where)
        copy[plain] = _copied(item, (*where, plain), leaf)
    put_versions(copy, _copied(versions_of(value), (*where, "_metadata"), leaf))
    return copy


def _key(key: Any, where: Where) -> Any:
    if type(key) is tuple:
        return tuple(_key(item, where) for item in key)
    if _is_scalar(key):
        key = key.item()
    if type(key) not in PLAIN:
        raise NotSaveable(
            f"a key in {shown(where)} is {_a(key)}: {key!r}; checkpoints store plain keys only.",
            use="a string or a number as the key",
        )
    return key


def _is_scalar(value: Any) -> bool:
    numpy = sys.modules.get("numpy")
    return numpy is not None and isinstance(value, numpy.generic)


def _refuse_odd_tensor(value: Any, where: Where) -> None:
    torch = sys.modules["torch"]
    if type(value) not in (torch.Tensor, torch.nn.Parameter):
        raise _not_saveable(value, where)
    if value.layout is not torch.strided or value.is_quantized or value.is_meta:
        odd = "quantized" if value.is_quantized else "meta" if value.is_meta else "sparse"
        raise NotSaveable(
            f"{shown(where)} is a {odd} tensor; checkpoints store dense tensors only.", keep="a dense tensor, or its components"
        )


def _refuse_odd_array(value: Any, where: Where) -> None:
    if type(value) is not sys.modules["numpy"].ndarray:
        raise _not_saveable(value, where)
    if value.dtype.kind not in ARRAY_KINDS:
        raise NotSaveable(
            f"{shown(where)} is an array of {value.dtype}; checkpoints store arrays of numbers and text only.",
            keep="an array of numbers for each field, or a list",
        )


def _not_saveable(value: Any, where: Where) -> NotSaveable:
    saveable = "numbers, strings, bytes, lists, tuples, sets, dicts, tensors and arrays of numbers"
    cure = "its state_dict() instead" if hasattr(value, "state_dict") else saveable
    return NotSaveable(f"{shown(where)} is {_a(value)}; checkpoints store plain types and tensors only.", keep=cure)


def _a(value: Any) -> str:
    name = type(value).__name__
    return f"a{'n' if name[0] in 'AEIOUaeiou' else ''} {name}"
