"""Input images: the pictures in a batch, as monitors show them."""

from __future__ import annotations

from typing import Any

from hookpoint.core.fields import field_values

MOST_IMAGES = 16
CHANNELS = (1, 3)


def images_in(batch: Any) -> Any:
    """Return the first pictures in a batch as images x height x width x channels, without waiting for a device; or None.

    Pictures are an array with four dimensions, of which the second or the last one counts 1 or 3 channels. Where some numbers
    are negative, as in data that was normalized, they are all spread over 0 to 1.
    """
    found = _first_array(batch)
    if found is None or found.ndim != 4 or 0 in found.shape:
        return None
    if hasattr(found, "detach"):
        import torch as arrays
    else:
        import numpy as arrays  # type: ignore[no-redef]
    images = found[:MOST_IMAGES].detach() if hasattr(found, "detach") else found[:MOST_IMAGES]
    if images.shape[1] in CHANNELS:
        images = arrays.moveaxis(images, 1, -1)
    elif images.shape[-1] not in CHANNELS:
        return None
    lowest, highest = arrays.amin(images), arrays.amax(images)
    spread = (images - lowest) / (highest - lowest + (highest == lowest))
    return arrays.where(lowest < 0, spread, images)


def _first_array(batch: Any) -> Any:
    is_array = hasattr(batch, "ndim") and (hasattr(batch, "detach") or type(batch).__module__ == "numpy")
    return batch if is_array else next((one for one in map(_first_array, field_values(batch)) if one is not None), None)
