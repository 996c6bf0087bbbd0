"""DumpTensorAsImage: write a tensor as PNG files."""

from __future__ import annotations

import io
from collections.abc import Callable
from threading import Lock
from typing import Any, ClassVar, Unpack

from hookpoint.callbacks._shared.arguments import function, number
from hookpoint.callbacks._shared.async_array import snapshot
from hookpoint.callbacks._shared.input_images import CHANNELS, MAX_IMAGES
from hookpoint.callbacks.tensors._tensor_dumps import TensorDumper
from hookpoint.callbacks.tensors._tensor_reader import Source
from hookpoint.core.callback.callback import Options
from hookpoint.core.errors import BadArgument, BadValue
from hookpoint.core.run.run import Run
from hookpoint.storage.checkpoint.layout import safe_name


class DumpTensorAsImage(TensorDumper):
    """Write a tensor to `tensor-dumps/<prefix>-ep001.png` in the workdir, and send it to the monitors as an image.

    `tensor_name` is the name of a tensor, as in `ProcessTensors`, or a function that takes the run and returns a tensor.
    `prefix` defaults to the tensor's name. A tensor with multiple images is written to multiple files: the second image is in
    `<prefix>-ep001-1.png`, and so on. The monitors receive at most 16 images, named after the prefix. If the callback is
    triggered in the middle of an epoch, the file name contains the step, as in `<prefix>-ep001-step200.png`.

    An image has shape height x width, with 1 or 3 channels first or last. If both the first and the last dimension have size 1
    or 3, the first dimension contains the channels. A tensor is one image or a batch of images. `map_func` converts the array
    to images on a background thread; it receives bfloat16 tensors as float32. Values of dtype uint8 are not changed. Other
    values are multiplied by `scale` and clipped to the range 0 to 255. The channels are red, green and blue.

    Files are written atomically. A resumed run first removes the files from epochs after its checkpoint. If a file cannot be
    written, for example because the disk is full, a warning is logged and the file is skipped. Needs a workdir and pillow
    (extra `tensorboard`). Without pillow, the callback does nothing and logs one warning.

    Triggered at the end of each complete epoch, with the values of its last iteration, unless `.when(...)` says otherwise.
    Listens to on_train_iter_end, on_run_end and, for gradients, on_step_begin. A checkpoint is written only after all earlier
    files are on disk.

    >>> DumpTensorAsImage("batch/0", prefix="inputs").when(Every(steps=100)).name
    'DumpTensorAsImage(batch/0)'
    """

    step_cost = (
        "one microsecond; at the last step of an epoch, or at every step if the loader has no length, "
        "also a copy of the tensor, without waiting for a GPU or the disk"
    )
    name_pattern = r"-ep(?P<epoch>\d+)(?:-step(?P<step>\d+))?(?:-\d+)?"
    file_type = ".png"
    package: ClassVar = {"package": "PIL.Image", "extra": "tensorboard", "name": "pillow"}

    def __init__(
        self,
        tensor_name: Source,
        prefix: str | None = None,
        map_func: Callable[[Any], Any] | None = None,
        scale: float = 255,
        **options: Unpack[Options],
    ) -> None:
        if not (isinstance(tensor_name, str) or callable(tensor_name)):
            give = "one name, as in 'batch/0', or a function: lambda run: ..."
            raise BadArgument(f"DumpTensorAsImage: {tensor_name!r} is not the name of a tensor.", give=give)
        name = tensor_name if isinstance(tensor_name, str) else prefix or _function_name(tensor_name)
        super().__init__({name: tensor_name}, safe_name(name) if prefix is None else prefix, **options)
        self.map_func = function("DumpTensorAsImage", "map_func", map_func, or_none=True, write="lambda array: ...")
        self.scale = number("DumpTensorAsImage", "scale", scale)

    def dump(self, run: Run, values: dict[str, Any]) -> None:
        (value,) = values.values()
        images = Images(snapshot(value), self.map_func, self.scale)
        stem = f"{self.dumps.prefix}-ep{run.epoch:03d}" + (f"-step{run.step}" if run.mode == "train" else "")
        end = self.file_end(run)
        self.dumps.put(lambda: ((f"{stem}{f'-{n}' if n else ''}{end}", png(image)) for n, image in enumerate(images.each())))
        run.put_image(self.dumps.prefix, images)


def _function_name(source: Any) -> str:
    return str(getattr(source, "__name__", type(source).__name__)).strip("<>")


class Images:
    """Convert an array to images when they are first read.

    Each image is a uint8 array with shape height x width or height x width x 3.

    A two-dimensional array is one gray image. A three-dimensional array is one image if its first or last dimension has size 1
    or 3, otherwise a batch of gray images. A four-dimensional array is a batch of images with channels first or last. A list
    may contain any of these. `map_func` is applied to the array first. Values of dtype uint8 are not changed. Other values are
    multiplied by `scale` and clipped to the range 0 to 255. NaN becomes black.

    >>> import numpy
    >>> [image.shape for image in Images(numpy.zeros((5, 3, 8, 9))).each()]
    [(8, 9, 3), (8, 9, 3), (8, 9, 3), (8, 9, 3), (8, 9, 3)]
    """

    def __init__(self, value: Any, map_func: Callable[[Any], Any] | None = None, scale: float = 255) -> None:
        self._value = value
        self._map_func = map_func
        self._scale = scale
        self._images: list[Any] | None = None
        self._lock = Lock()  # a monitor's thread and the writing thread both read the images

    def each(self) -> list[Any]:
        """Return the images. Waits if the array is still being copied."""
        import numpy

        with self._lock:
            if self._images is None:
                value = numpy.asarray(self._value)
                value = value if self._map_func is None else self._map_func(value)
                arrays = value if isinstance(value, list | tuple) else [value]
                self._images = [self._pixels(image) for array in arrays for image in images_of(numpy.asarray(array))]
                self._value = None
            return self._images

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Any:
        """Return at most 16 images in one array with shape images x height x width x channels. Monitors read this array.

        Images that differ in shape from the first image are left out.
        """
        import numpy

        images = self.each()
        same_size = [image for image in images if image.shape == images[0].shape][:MAX_IMAGES]
        stacked = numpy.stack([image[..., None] if image.ndim == 2 else image for image in same_size])
        return stacked if dtype is None else stacked.astype(dtype)

    def _pixels(self, image: Any) -> Any:
        import numpy

        if image.dtype != numpy.uint8:
            image = numpy.nan_to_num(image.astype(numpy.float64) * self._scale, nan=0.0, posinf=255.0, neginf=0.0)
            image = image.clip(0, 255).astype(numpy.uint8)
        return numpy.ascontiguousarray(image)


def images_of(array: Any) -> list[Any]:
    """Return the images in an array, each of shape height x width or height x width x 3, or raise BadValue."""
    if array.dtype.kind in "biuf" and 0 not in array.shape:
        if array.ndim == 2:
            return [array]
        if array.ndim == 3:
            return [_image(array)] if _has_channels(array) else list(array)
        if array.ndim == 4 and _has_channels(array[0]):
            return [_image(image) for image in array]
    raise BadValue(
        f"an array of {array.dtype} with shape {array.shape} is not an image or a batch of images.",
        give="height x width, with 1 or 3 channels first or last, or a batch of these",
        write="map_func=..., which converts it",
    )


def _has_channels(array: Any) -> bool:
    return array.shape[0] in CHANNELS or array.shape[-1] in CHANNELS


def _image(array: Any) -> Any:
    if array.shape[0] in CHANNELS:
        array = array.transpose(1, 2, 0)
    return array[..., 0] if array.shape[-1] == 1 else array


def png(image: Any) -> bytes:
    """Encode an image as PNG. Needs pillow."""
    from PIL import Image

    content = io.BytesIO()
    Image.fromarray(image).save(content, "PNG")
    return content.getvalue()
