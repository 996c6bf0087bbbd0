"""Metrics from other libraries: objects that accumulate over a pass, alone or in a torchmetrics collection."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from hookpoint.core.errors import BadArgument
from hookpoint.core.fields import named_fields

PARTS = ("update", "compute", "reset")
TAKE_TENSORS = ("torch", "torchmetrics")  # packages whose criteria and metrics accept only tensors


def has_state(metric: Any) -> bool:
    """Return whether a metric is an object that accumulates over a pass, not a function."""
    return all(callable(getattr(metric, part, None)) for part in PARTS) and not isinstance(metric, type)


def is_collection(metric: Any) -> bool:
    """Return whether a metric is a collection of named metrics, like a torchmetrics MetricCollection."""
    return has_state(metric) and all(callable(getattr(metric, part, None)) for part in ("keys", "values"))


def by_name(metrics: Any) -> dict[str, Any]:
    """Return metrics by name. A collection already names its metrics, so it is stored under an empty name."""
    if metrics is None:
        return {}
    if is_collection(metrics):
        return {"": metrics}
    if not isinstance(metrics, Mapping):
        items = metrics if isinstance(metrics, list | tuple) else [metrics]
        names = [_name_of(metric) for metric in items]
        has_names = all(name.isidentifier() for name in names)  # a lambda has no name that can be written in code
        pairs = ", ".join(f'"{name}": {name}' for name in names) if has_names else '"name": function'
        raise BadArgument(f"metrics must map names to metrics, got {type(metrics).__name__}.", write=f"metrics={{{pairs}}}")
    return dict(metrics)


def names_of(name: str, metric: Any) -> tuple[str, ...]:
    """Return the names under which a metric will be logged, as far as they are known before it is computed."""
    return tuple(_joined(name, key) for key in list(metric.keys())) if is_collection(metric) else (name,)


def returns_more(metric: Any) -> bool:
    """Return whether a metric may log names that are not known in advance: its `compute` is annotated to return a dict."""
    if is_collection(metric):
        return any(map(returns_more, metric.values()))
    annotation = str(getattr(getattr(metric, "compute", None), "__annotations__", {}).get("return", "")).lower()
    return "dict" in annotation or "mapping" in annotation


def computed(name: str, metric: Any) -> Iterator[tuple[str, Any]]:
    """Compute a metric. Yield the name and value of each result."""
    value = metric.compute()
    if isinstance(value, Mapping):
        yield from ((_joined(name, str(key)), item) for key, item in value.items())
    else:
        yield name, value


def syncs_across_ranks(metric: Any) -> bool:
    """Return whether a metric synchronizes its state across ranks itself, as torchmetrics does."""
    return all(map(syncs_across_ranks, metric.values())) if is_collection(metric) else hasattr(metric, "sync_context")


def takes_tensors(function: Any) -> bool:
    """Return whether a criterion or metric comes from torch or torchmetrics, and therefore cannot take named outputs."""
    owner = function if hasattr(function, "__name__") else type(function)
    return str(getattr(owner, "__module__", "")).partition(".")[0] in TAKE_TENSORS


def scores_in(outputs: Any, reader: Any) -> Any:
    """Return the argument for a function that accepts only tensors: the outputs or, if they have named fields, `logits`."""
    fields = named_fields(outputs)
    if not fields:
        return outputs
    if "logits" in fields:
        return fields["logits"]
    name = _name_of(reader)
    raise BadArgument(
        f"{name} takes a tensor, but the model returned a {type(outputs).__name__} with fields {', '.join(map(str, fields))}.",
        write=f"lambda outputs, targets: {name}(outputs[{next(iter(fields))!r}], targets) instead of {name}",
    )


def _name_of(metric: Any) -> str:
    return str(getattr(metric, "__name__", type(metric).__name__))


def _joined(name: str, key: str) -> str:
    return f"{name}_{key}" if name else key
