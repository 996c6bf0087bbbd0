"""WeightAverage: averages of a model's weights, by name."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from hookpoint.callbacks._shared.sharded_tensors import is_sharded, local_shard, shard_like
from hookpoint.core.checkpoint.plain_names import plain_name
from hookpoint.core.checkpoint.stateful import named_items, named_parameters


class WeightAverage:
    """Average a model's trainable weights and, with `buffers`, its persistent buffers.

    Tied weights are averaged once, frozen weights not at all. Half-precision weights are averaged in float32, because small
    changes would otherwise be lost. Integers, such as batch counts, are not averaged. For sharded weights, each rank averages
    its own shards. `averages` maps names to tensors, which are on the same devices as the weights and are updated in place.
    `sources` lists the model's tensors in the same order.
    """

    def __init__(self, *, buffers: bool) -> None:
        self.buffers = buffers
        self.averages: dict[str, Any] = {}
        self.forget_model()

    def forget_model(self) -> None:
        """Release the model's tensors; keep the averages."""
        self.model: Any = None
        self.sources: list[Any] = []
        self._groups: list[tuple[list[Any], list[Any]]] = []
        self._is_complete = True

    def follow(self, model: Any) -> None:
        """Update the set of averages to match the model.

        A new weight starts with its current value, and the average of a removed weight is dropped.
        """
        import torch

        tensors = dict(averaged_tensors(model, buffers=self.buffers))
        self._is_complete = not any(map(torch.nn.parameter.is_lazy, tensors.values()))
        averages: dict[str, Any] = {}
        groups: dict[Any, tuple[list[Any], list[Any]]] = {}
        self.sources = []
        with torch.inference_mode(False), torch.no_grad():
            for name, source in tensors.items():
                average: Any = self.averages.get(name)
                is_new = average is None or average.shape != source.shape
                is_frozen = isinstance(source, torch.nn.Parameter) and not source.requires_grad
                if torch.nn.parameter.is_lazy(source) or (is_new and is_frozen):
                    continue
                dtype = torch.float32 if source.dtype in (torch.float16, torch.bfloat16) else source.dtype
                value = source.detach() if is_new else average
                if is_sharded(source):
                    averages[name] = (value.clone() if is_new else shard_like(value, source)).to(dtype)
                else:
                    averages[name] = value.to(device=source.device, dtype=dtype, copy=is_new)
                group = groups.setdefault((source.device, source.dtype), ([], []))
                group[0].append(local_shard(averages[name]))
                group[1].append(local_shard(source.detach()) if is_sharded(source) else source)
                self.sources.append(source)
        self.model, self.averages, self._groups = model, averages, list(groups.values())

    def update(self, model: Any, weight: float) -> None:
        """Move each average towards the current value by the fraction `weight` of the difference."""
        import torch

        if self.model is not model or not self._is_complete:
            self.follow(model)
        with torch.no_grad():
            for averages, sources in self._groups:
                dtype = averages[0].dtype
                values = sources if dtype == sources[0].dtype else [source.to(dtype) for source in sources]
                torch._foreach_lerp_(averages, values, weight)

    def load(self, averages: Mapping[str, Any]) -> None:
        """Load averages; `follow` moves them to the model's devices."""
        self.forget_model()
        self.averages = {plain_name(name): tensor.detach().clone() for name, tensor in averages.items()}

    def __getstate__(self) -> dict[str, Any]:
        return {"buffers": self.buffers, "averages": self.averages}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.buffers, self.averages = state["buffers"], state["averages"]
        self.forget_model()


def averaged_tensors(model: Any, *, buffers: bool) -> Iterator[tuple[str, Any]]:
    """Yield the floating-point parameters of one or more models and, with `buffers`, their persistent buffers."""
    seen = set()
    for name, tensor in (*named_parameters(model), *(named_buffers(model) if buffers else ())):
        if id(tensor) not in seen and (tensor.is_floating_point() or tensor.is_complex()):
            seen.add(id(tensor))
            yield name, tensor


def named_buffers(model: Any, of: type[Any] = object) -> Iterator[tuple[str, Any]]:
    """Yield a model's persistent buffers with their names in the state dict.

    With `of`, yield only the buffers of modules of this type.
    """
    for path, module in named_items(model, "named_modules"):
        for name, buffer in module._buffers.items() if isinstance(module, of) else ():
            if buffer is not None and name not in module._non_persistent_buffers_set:
                yield f"{path}.{name}" if path else name, buffer
