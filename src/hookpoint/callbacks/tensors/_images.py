"""Pictures: an array as images, made when they are read."""

from __future__ import annotations

import io
from collections.abc import Callable
from threading import Lock
from typing import Any

from hookpoint.callbacks._shared.input_images import CHANNELS, MOST_IMAGES
from hookpoint.core.errors import BadValue


class Pictures:
    """Images of bytes from 0 to 255, each height x width or height x width x 3, made of an array once, by whoever reads first.

    Two dimensions are one gray image. Three are one image where the first or the last counts 1 or 3 channels, else gray
    images; four are images with their channels first or last. A list has arrays of any of these. `map_func` is called with the
    array before. Bytes are pixels; anything else is multiplied by `scale`, and cut off at 0 and 255. NaN is black.

    >>> import numpy
    >>> [image.shape for image in Pictures(numpy.zeros((5, 3, 8, 9))).each()]
    [(8, 9, 3), (8, 9, 3), (8, 9, 3), (8, 9, 3), (8, 9, 3)]
    """

    def __init__(self, value: Any, map_func: Callable[[Any], Any] | None = None, scale: float = 255) -> None:
        self._value = value
        self._map_func = map_func
        self._scale = scale
        self._made: list[Any] | None = None
        self._making = Lock()  # a monitor's thread reads them, and the one that writes files

    def each(self) -> list[Any]:
        """Return the images; waits for what is still on its way."""
        import numpy

        with self._making:
            if self._made is None:
                value = numpy.asarray(self._value)
                value = value if self._map_func is None else self._map_func(value)
                several = value if isinstance(value, list | tuple) else [value]
                self._made = [self._pixels(image) for one in several for image in images_of(numpy.asarray(one))]
                self._value = None
            return self._made

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Any:
        """Return the first images that are of one size, as images x height x width x channels: what monitors show."""
        import numpy

        made = self.each()
        alike = [image for image in made if image.shape == made[0].shape][:MOST_IMAGES]
        together = numpy.stack([image[..., None] if image.ndim == 2 else image for image in alike])
        return together if dtype is None else together.astype(dtype)

    def _pixels(self, image: Any) -> Any:
        import numpy

        if image.dtype == numpy.uint8:
            return numpy.ascontiguousarray(image)
        scaled = numpy.nan_to_num(image.astype(numpy.float64) * self._scale, nan=0.0, posinf=255.0, neginf=0.0)
        return numpy.ascontiguousarray(scaled.clip(0, 255).astype(numpy.uint8))


def images_of(array: Any) -> list[Any]:
    """Return the images in an array, each height x width or height x width x 3, or refuse what has none."""
    if array.dtype.kind in "biuf" and 0 not in array.shape:
        if array.ndim == 2:
            return [array]
        if array.ndim == 3:
            return [_image(array)] if _has_channels(array) else list(array)
        if array.ndim == 4 and _has_channels(array[0]):
            return [_image(one) for one in array]
    raise BadValue(
        f"an array of {array.dtype} with shape {array.shape} is no image, and no batch of images.",
        give="height x width, with 1 or 3 channels first or last, or several of these",
        write="map_func=..., which makes one of it",
    )


def _has_channels(array: Any) -> bool:
    return array.shape[0] in CHANNELS or array.shape[-1] in CHANNELS


def _image(array: Any) -> Any:
    if array.shape[0] in CHANNELS:
        array = array.transpose(1, 2, 0)
    return array[..., 0] if array.shape[-1] == 1 else array


def png(image: Any) -> bytes:
    """Return an image as a PNG file. Needs pillow."""
    from PIL import Image

    content = io.BytesIO()
    Image.fromarray(image).save(content, "PNG")
    return content.getvalue()
