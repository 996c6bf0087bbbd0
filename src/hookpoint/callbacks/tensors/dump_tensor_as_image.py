"""DumpTensorAsImage: write a tensor as PNG files."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar, Unpack

from hookpoint.callbacks._shared.arguments import function, number
from hookpoint.callbacks._shared.async_array import snapshot
from hookpoint.callbacks.tensors._images import Images, png
from hookpoint.callbacks.tensors._tensor_dumps import TensorDumper
from hookpoint.callbacks.tensors._tensor_reader import Source
from hookpoint.core.callback.callback import Options
from hookpoint.core.errors import BadArgument
from hookpoint.core.run.run import Run
from hookpoint.storage.checkpoint.layout import safe_name


class DumpTensorAsImage(TensorDumper):
    """Write a tensor to `tensor-dumps/<prefix>-ep001.png` in the workdir, and send it to the monitors as an image.

    `tensor_name` is one of the names of `ProcessTensors`, or a function of the run. `prefix` defaults to the tensor's name. A
    tensor with multiple images is written to as many files, the second to `<prefix>-ep001-1.png`. The monitors get at most 16
    of them, under the prefix. If triggered in the middle of an epoch, the name contains the step: `<prefix>-ep001-step200.png`.

    An image is height x width, with 1 or 3 channels first or last; if both fit, channels come first. A tensor is one image or a
    batch of them. `map_func` converts the array to images, on a background thread; bfloat16 is passed to it as float32. Values
    are multiplied by `scale`, unless they are bytes, and clipped to 0 and 255. Colours are red, green, blue.

    Files are written atomically. A resumed run first removes the files of epochs after its checkpoint. A file that cannot be
    written, as on a full disk, is logged and skipped. Needs a workdir and pillow (extra `tensorboard`). Without pillow, it logs
    that once and does nothing.

    Triggered at the end of each complete epoch, with the values of its last iteration, unless `.when(...)` says otherwise.
    Listens to on_train_iter_end and on_run_end, and for gradients to on_step_begin. A checkpoint waits until the files before
    it are on disk.

    >>> DumpTensorAsImage("batch/0", prefix="inputs").when(Every(steps=100)).name
    'DumpTensorAsImage(batch/0)'
    """

    step_cost = (
        "one microsecond; the last step of an epoch, or every step if the loader has no length, copies the tensor, without"
        " waiting for a GPU or the disk"
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
            raise BadArgument(
                f"DumpTensorAsImage: {tensor_name!r} is not the name of a tensor.",
                give="one name, as in 'batch/0'",
                write="lambda run: ... for a function of the run",
            )
        name = tensor_name if isinstance(tensor_name, str) else prefix or _function_name(tensor_name)
        super().__init__({name: tensor_name}, safe_name(name) if prefix is None else prefix, **options)
        if map_func is not None:
            function("DumpTensorAsImage", "map_func", map_func, write="lambda array: ...")
        self.map_func = map_func
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
