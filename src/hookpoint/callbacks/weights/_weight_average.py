"""WeightAverage: averages of a model's weights, by their names."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from hookpoint.callbacks._shared.sharded_tensors import is_sharded, local_shard, shard_like
from hookpoint.core.checkpoint.plain_names import plain_name
from hookpoint.core.checkpoint.stateful import named_parameters


class WeightAverage:
    """Keep an average of each weight that is trained, and of a model's statistics where `buffers` are averaged too.

    Tied weights are there once, frozen ones not at all: what the model has of them is their average. Those of half precision
    are averaged in float32: a small share of a small change would be lost otherwise. Integers, such as counts of batches, are
    not averaged; of sharded weights each process averages its part. `averages` maps names to tensors on the devices of the
    weights; they are changed in place.
    """

    def __init__(self, *, buffers: bool) -> None:
        self.buffers = buffers
        self.averages: dict[str, Any] = {}
        self.forget_model()

    def forget_model(self) -> None:
        """Keep the averages, and let go of the tensors that they are averages of."""
        self.model: Any = None
        self._sources: list[Any] = []
        self._groups: list[tuple[list[Any], list[Any]]] = []
        self._is_complete = True

    @property
    def sources(self) -> list[Any]:
        """The tensors of the model, in the order of the averages."""
        return self._sources

    def is_of(self, model: Any) -> bool:
        """Say whether these are averages of this model's weights."""
        return bool(self.averages) and self.model is model

    def follow(self, model: Any) -> None:
        """Take in what there is to average: what is new begins with the value it has now, what is gone is dropped."""
        import torch

        found = dict(averaged_tensors(model, buffers=self.buffers))
        self._is_complete = not any(torch.nn.parameter.is_lazy(one) for one in found.values())
        averages: dict[str, Any] = {}
        groups: dict[Any, tuple[list[Any], list[Any]]] = {}
        self._sources = []
        with torch.inference_mode(False), torch.no_grad():
            for name, source in found.items():
                average: Any = self.averages.get(name)
                is_new = average is None or average.shape != source.shape
                if torch.nn.parameter.is_lazy(source) or (is_new and is_frozen(source)):
                    continue
                kind = torch.float32 if source.dtype in (torch.float16, torch.bfloat16) else source.dtype
                value = source.detach() if is_new else average
                if is_sharded(source):
                    averages[name] = shard_like(value, source).to(kind) if not is_new else value.clone().to(kind)
                else:
                    averages[name] = value.to(device=source.device, dtype=kind, copy=is_new)
                group = groups.setdefault((source.device, source.dtype), ([], []))
                group[0].append(local_shard(averages[name]))
                group[1].append(local_shard(source.detach()) if is_sharded(source) else source)
                self._sources.append(source)
        self.model, self.averages, self._groups = model, averages, list(groups.values())

    def update(self, model: Any, weight: float) -> None:
        """Move each average towards the present value, by this share of the way."""
        import torch

        if self.model is not model or not self._is_complete:
            self.follow(model)
        with torch.no_grad():
            for averages, sources in self._groups:
                alike = averages[0].dtype == sources[0].dtype
                values = sources if alike else [source.to(averages[0].dtype) for source in sources]
                torch._foreach_lerp_(averages, values, weight)

    def load(self, averages: Mapping[str, Any]) -> None:
        """Take averages of before; they get to their devices when the model is seen again."""
        self.forget_model()
        self.averages = {plain_name(name): tensor.detach().clone() for name, tensor in averages.items()}

    def __getstate__(self) -> dict[str, Any]:
        return {"buffers": self.buffers, "averages": self.averages}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.buffers, self.averages = state["buffers"], state["averages"]
        self.forget_model()


def is_frozen(tensor: Any) -> bool:
    """Say whether this is a weight that is not trained."""
    import torch

    return isinstance(tensor, torch.nn.Parameter) and not tensor.requires_grad


def averaged_tensors(model: Any, *, buffers: bool) -> Iterator[tuple[str, Any]]:
    """Yield the parameters of a model, or of several, and the buffers that a checkpoint keeps, of numbers with a point."""
    seen = set()
    for name, tensor in (*named_parameters(model), *(named_buffers(model) if buffers else ())):
        if id(tensor) not in seen and (tensor.is_floating_point() or tensor.is_complex()):
            seen.add(id(tensor))
            yield name, tensor


def named_buffers(model: Any, prefix: str = "", of: type[Any] = object) -> Iterator[tuple[str, Any]]:
    """Yield the buffers that are part of a model's state, by their names in it; those of one kind of module, if it is given."""
    if isinstance(model, Mapping | list | tuple):
        pairs = model.items() if isinstance(model, Mapping) else enumerate(model)
        for key, one in pairs:
            yield from named_buffers(one, f"{prefix}{key}.", of)
    elif hasattr(model, "named_modules"):
        for path, module in model.named_modules():
            for name, buffer in module._buffers.items() if isinstance(module, of) else ():
                if buffer is not None and name not in module._non_persistent_buffers_set:
                    yield f"{prefix}{plain_name(f'{path}.{name}' if path else name)}", buffer
