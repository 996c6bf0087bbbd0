"""Compute a model's loss at points on a plane in weight space.

The model and all random number generators are restored afterwards.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from hookpoint.callbacks.weights._landscape_plane import Plane
from hookpoint.callbacks.weights._weight_swap import WeightSwap, write
from hookpoint.core.callback.current import CURRENT
from hookpoint.core.checkpoint.randomness import PlainRandomness
from hookpoint.core.checkpoint.stateful import named_buffers, named_items, named_parameters
from hookpoint.core.data.samples import count_samples
from hookpoint.core.errors import BadValue
from hookpoint.core.loop.evaluation import preserved_randomness

Loss = Callable[[Any, Any], Any]
LossAt = Callable[[float, float], float]


@contextmanager
def loss_on_plane(model: Any, center: dict[str, Any], plane: Plane, batches: Sequence[Any], loss: Loss) -> Iterator[LossAt]:
    """Yield a function that takes the coordinates of a point on the plane and returns the mean loss over the batches.

    Each point on the plane stands for values of the model's weights. The point (0, 0) stands for the weights in `center`.
    """
    import torch

    parameters = {name: tensor for name, tensor in named_parameters(model) if name in center}
    buffers = [buffer for _, buffer in named_buffers(model)]
    points = [
        (tensor, *(None if values is None else values.to(tensor.device) for values in (center[name], *_at(plane, name))))
        for name, tensor in parameters.items()
    ]
    swap = WeightSwap()

    def loss_at(x: float, y: float) -> float:
        for tensor, middle, u, v in points:
            moved = middle if u is None else middle.float() + x * u
            write([tensor], [moved if v is None else moved.float() + y * v])
        with same_randomness(batches):  # the same random numbers at each point
            return _mean_loss(model, batches, loss)

    with _evaluating(model), torch.no_grad():
        swap.apply([*parameters.values(), *buffers], [*(center[name] for name in parameters), *buffers])
        try:
            yield loss_at
        finally:
            swap.restore()


def _at(plane: Plane, name: str) -> list[Any]:
    return [direction.get(name) for direction in plane.directions]


def _mean_loss(model: Any, batches: Sequence[Any], loss: Loss) -> float:
    total, samples = 0.0, 0
    for batch in batches:
        value = loss(model, _moved(batch, _device_of(model)))
        if math.prod(getattr(value, "shape", ())) != 1:
            raise BadValue(
                f"LossLandscape: loss returned shape {tuple(value.shape)}; expected one number.", write="loss.mean()"
            )
        count = count_samples(batch)
        total += float(value) * count
        samples += count
    return total / samples if samples else math.nan


@contextmanager
def _evaluating(model: Any) -> Iterator[None]:
    """Set every module to eval mode, and restore the modes afterwards. Values that the model logs are dropped."""
    modes = [(module, module.training) for _, module in named_items(model, "named_modules")]
    token = CURRENT.set(None)
    try:
        for module, _ in modes:
            module.training = False
        yield
    finally:
        CURRENT.reset(token)
        for module, mode in modes:
            module.training = mode


@contextmanager
def same_randomness(data: Any) -> Iterator[None]:
    """Restore all random number generators after the block, including the loader's."""
    import torch

    has_cuda = torch.cuda.is_initialized()  # type: ignore[no-untyped-call]
    devices = range(torch.cuda.device_count()) if has_cuda else ()
    with torch.random.fork_rng(devices), preserved_randomness(PlainRandomness(), data):
        yield


def _device_of(model: Any) -> Any:
    return next((tensor.device for _, tensor in named_parameters(model)), None)


def _moved(batch: Any, device: Any) -> Any:
    """Move a batch to a device, including tensors in tuples, lists and dicts."""
    if callable(getattr(batch, "to", None)) and not isinstance(batch, type):
        return batch.to(device)
    if type(batch) in (tuple, list):
        return type(batch)(_moved(item, device) for item in batch)
    if isinstance(batch, tuple) and hasattr(batch, "_fields"):
        return type(batch)(*(_moved(item, device) for item in batch))
    return {key: _moved(item, device) for key, item in batch.items()} if type(batch) is dict else batch
