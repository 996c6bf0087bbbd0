"""Chart values: convert logged values to the form that TensorBoard, MLflow and wandb expect."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, TypeVar

from hookpoint.core.errors import BadArgument
from hookpoint.core.log.records import Record

T = TypeVar("T")


def chart_scalars(record: Record) -> dict[str, float]:
    """Return scalars by curve name: `epoch/loss` for the mean over a training epoch, otherwise `loss`."""
    prefix = "epoch/" if record.at == "epoch" and record.mode == "train" else ""
    return {prefix + name: value for name, value in record.scalars().items()}


def to_array(values: Any) -> Any:
    """Return numbers or a tensor as a numpy array."""
    import numpy

    if hasattr(values, "detach"):
        values = values.detach().cpu()
        if str(values.dtype) == "torch.bfloat16":  # numpy has no bfloat16
            values = values.float()
    return numpy.asarray(values)


def finite(values: Any) -> Any:
    """Return these numbers as a numpy array, without nonfinite values."""
    numbers = to_array(values)
    return numbers[abs(numbers) < float("inf")] if numbers.dtype.kind == "f" else numbers


def to_pixels(name: str, image: Any) -> Any:
    """Return an image (HW or HWC) or a batch (NHWC) as bytes. NaN becomes 0.

    If no value is above 1, floats are scaled by 255.
    """
    pixels = to_array(image)
    if pixels.dtype.kind in "cOSU":
        raise BadArgument(f"image '{name}' has type {pixels.dtype}; expected real numbers.")
    if pixels.ndim not in (2, 3, 4):
        raise BadArgument(f"image '{name}' has shape {pixels.shape}; expected height x width x channels, or a batch of these.")
    if pixels.dtype.kind == "f":
        pixels = pixels.copy()
        pixels[pixels != pixels] = 0
    if pixels.dtype == bool or (pixels.dtype.kind == "f" and pixels.max(initial=0) <= 1):
        pixels = pixels * 255
    return pixels.clip(0, 255).astype("uint8")


def to_images(name: str, image: Any) -> list[Any]:
    """Return the pixels of an image, or of each image in a batch."""
    pixels = to_pixels(name, image)
    return list(pixels) if pixels.ndim == 4 else [pixels]


def call_each(function: Callable[[T], object], items: Iterable[T]) -> None:
    """Call a function for every item, even if some calls fail. Then raise the first error."""
    errors = []
    for item in items:
        try:
            function(item)
        except Exception as error:
            errors.append(error)
    if errors:
        raise errors[0]
