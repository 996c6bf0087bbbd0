"""Extract images from a batch for monitors."""

from __future__ import annotations

from typing import Any

from hookpoint.core.fields import field_values

MAX_IMAGES = 16
CHANNELS = (1, 3)


def images_in(batch: Any) -> Any:
    """Return up to 16 images from a batch, as images x height x width x channels, or None. Does not wait for a device.

    Only the first array is considered. This array must have four dimensions, and its second or last dimension must have size 1
    or 3. If any value is negative, as in normalized data, all values are rescaled to 0..1.
    """
    array = _first_array(batch)
    if array is None or array.ndim != 4 or 0 in array.shape:
        return None
    if hasattr(array, "detach"):
        import torch as xp

        array = array.detach()
    else:
        import numpy as xp  # type: ignore[no-redef]
    images = array[:MAX_IMAGES]
    if images.shape[1] in CHANNELS:
        images = xp.moveaxis(images, 1, -1)
    elif images.shape[-1] not in CHANNELS:
        return None
    low, high = xp.amin(images), xp.amax(images)
    rescaled = (images - low) / (high - low + (high == low))
    return xp.where(low < 0, rescaled, images)


def _first_array(batch: Any) -> Any:
    is_array = hasattr(batch, "ndim") and (hasattr(batch, "detach") or type(batch).__module__ == "numpy")
    return batch if is_array else next((array for array in map(_first_array, field_values(batch)) if array is not None), None)
