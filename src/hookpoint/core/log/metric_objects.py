"""Metrics that somebody else has written: objects that add up over a pass, alone or in a collection of torchmetrics."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from hookpoint.core.errors import BadArgument
from hookpoint.core.fields import named_fields

PARTS = ("update", "compute", "reset")
TAKE_TENSORS = ("torch", "torchmetrics")  # packages whose criteria and metrics take tensors only


def has_state(metric: Any) -> bool:
    """Say whether a metric is an object that adds up over a pass, and no function."""
    return all(callable(getattr(metric, part, None)) for part in PARTS) and not isinstance(metric, type)


def is_collection(metric: Any) -> bool:
    """Say whether a metric is several by name, as a MetricCollection of torchmetrics is."""
    return has_state(metric) and all(callable(getattr(metric, part, None)) for part in ("keys", "values"))


def by_name(metrics: Any) -> dict[str, Any]:
    """Return metrics by their names; a collection has names of its own, and none as a whole."""
    if metrics is None:
        return {}
    if is_collection(metrics):
        return {"": metrics}
    if not isinstance(metrics, Mapping):
        several = metrics if isinstance(metrics, list | tuple) else [metrics]
        pairs = ", ".join(f'"{_called(one)}": {_called(one)}' for one in several)
        raise BadArgument(f"metrics must map names to metrics, got {type(metrics).__name__}.", write=f"metrics={{{pairs}}}")
    return dict(metrics)


def names_of(name: str, metric: Any) -> tuple[str, ...]:
    """Return the names under which a metric is logged, as far as they are known before it computes anything."""
    return tuple(_joined(name, key) for key in list(metric.keys())) if is_collection(metric) else (name,)


def returns_more(metric: Any) -> bool:
    """Say whether what a metric computes has names that are not known before: its `compute` says that it returns a dict."""
    if is_collection(metric):
        return any(map(returns_more, metric.values()))
    annotation = str(getattr(getattr(metric, "compute", None), "__annotations__", {}).get("return", "")).lower()
    return "dict" in annotation or "mapping" in annotation


def computed(name: str, metric: Any) -> Iterator[tuple[str, Any]]:
    """Compute a metric; yield each of its values with its name."""
    value = metric.compute()
    if isinstance(value, Mapping):
        yield from ((_joined(name, str(key)), one) for key, one in value.items())
    else:
        yield name, value


def adds_up_over_all(metric: Any) -> bool:
    """Say whether a metric adds up over all processes itself, as those of torchmetrics do."""
    return all(map(adds_up_over_all, metric.values())) if is_collection(metric) else hasattr(metric, "sync_context")


def takes_tensors(function: Any) -> bool:
    """Say whether a criterion or metric is one of torch or torchmetrics, which cannot take outputs with names."""
    owner = function if hasattr(function, "__name__") else type(function)
    return str(getattr(owner, "__module__", "")).partition(".")[0] in TAKE_TENSORS


def scores_in(outputs: Any, reader: Any) -> Any:
    """Return what such a function takes of a model's outputs: themselves, or their `logits` where they have names."""
    parts = named_fields(outputs)
    if not parts:
        return outputs
    if "logits" in parts:
        return parts["logits"]
    name = _called(reader)
    raise BadArgument(
        f"{name} takes a tensor; the model returned {type(outputs).__name__} with {', '.join(map(str, parts))}.",
        write=f"lambda outputs, targets: {name}(outputs[{next(iter(parts))!r}], targets) in place of {name}",
    )


def _called(metric: Any) -> str:
    return str(getattr(metric, "__name__", type(metric).__name__))


def _joined(name: str, key: str) -> str:
    return f"{name}_{key}" if name else key
