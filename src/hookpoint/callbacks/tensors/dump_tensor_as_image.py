"""DumpTensorAsImage: write a tensor as PNG files."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from hookpoint.callbacks._shared.arguments import number
from hookpoint.callbacks._shared.async_array import as_of_now
from hookpoint.callbacks._shared.extras import optional
from hookpoint.callbacks.tensors._images import Pictures, png
from hookpoint.callbacks.tensors._tensor_dumps import TensorDumps
from hookpoint.callbacks.tensors._tensor_reader import TensorReader
from hookpoint.core.errors import BadArgument
from hookpoint.storage.checkpoint.layout import safe_name

if TYPE_CHECKING:
    from typing import Unpack

    from hookpoint.callbacks.tensors._named_tensors import Source
    from hookpoint.core.callback.callback import Options
    from hookpoint.core.run.run import Run


class DumpTensorAsImage(TensorReader):
    """Write a tensor as `tensor-dumps/<prefix>-ep001.png` in the workdir, and send it to the monitors as an image.

    `tensor_name` is one of the names of `ProcessTensors`, or a function of the run. A tensor with several images makes as many
    files, the second `<prefix>-ep001-1.png`; the monitors get 16 of them at most, under the prefix. Where it is triggered in
    the middle of an epoch, the step is in the name, too: `<prefix>-ep001-step200.png`. `prefix` is the tensor's name unless
    given.

    Images are height x width, with 1 or 3 channels first or last, or several of these: where it may be either, three come
    first. `map_func` makes them of the array, on a thread beside the training; bfloat16 comes to it as float32. Then values are
    multiplied by `scale`, unless they are bytes, and cut off at 0 and 255. Colours are red, green, blue.

    Each file is there whole or not at all. A run that goes on from a checkpoint first removes the files of later epochs. A
    file that cannot be written, as on a full disk, is said and left out. It needs a workdir and, from the extra `tensorboard`,
    pillow; without pillow it says so once and does nothing.

    Triggered at the end of each complete epoch, with the values of its last iteration, unless `.when(...)` says otherwise.
    Listens to on_train_iter_end and on_run_end, and for gradients to on_step_begin. Keeps nothing in the checkpoint, which
    waits until the files before it are on disk. Runs on the chief. A step pays a microsecond, the last one of an epoch, or each
    one where the loader does not know its length, for a copy of the tensor: no GPU is waited for, and no disk.

    >>> DumpTensorAsImage("batch/0", prefix="inputs").when(Every(steps=100)).name
    'DumpTensorAsImage(batch/0)'
    """

    def __init__(
        self,
        tensor_name: Source,
        prefix: str | None = None,
        map_func: Callable[[Any], Any] | None = None,
        scale: float = 255,
        **options: Unpack[Options],
    ) -> None:
        if not (isinstance(tensor_name, str) or callable(tensor_name)):
            cures = {"give": "one name, as in 'batch/0'", "write": "lambda run: ... for a function of the run"}
            raise BadArgument(f"DumpTensorAsImage: {tensor_name!r} names no tensor.", **cures)
        own = tensor_name if isinstance(tensor_name, str) else prefix or _name_of(tensor_name)
        super().__init__({own: tensor_name}, **options)
        if map_func is not None and not callable(map_func):
            raise BadArgument(f"DumpTensorAsImage(map_func={map_func!r}) is no function.", write="lambda array: ...")
        self.dumps = TensorDumps("DumpTensorAsImage", safe_name(own) if prefix is None else prefix)
        self.map_func = map_func
        self.scale = number("DumpTensorAsImage", "scale", scale)
        self._is_on = False

    def on_setup(self, run: Run) -> None:
        super().on_setup(run)
        self.dumps.check(run)

    def on_run_begin(self, run: Run) -> None:
        super().on_run_begin(run)
        self._is_on = optional("DumpTensorAsImage", "PIL.Image", extra="tensorboard", name="pillow") is not None
        ours = re.compile(rf"{re.escape(self.dumps.prefix)}-ep(\d+)(?:-step(\d+))?(?:-\d+)?{_rank(run)}\.png")
        epoch, step = run.epoch, run.step

        def is_later(name: str) -> bool:
            found = ours.fullmatch(name)
            return found is not None and (int(found[1]) > epoch or int(found[2] or 0) > step)

        self.dumps.open(run, is_later)

    def on_trigger(self, run: Run) -> None:
        values = self.tensors.read(run) if self._is_on else None
        if values is not None:
            (value,) = values.values()
            pictures = Pictures(as_of_now(value), self.map_func, self.scale)
            stem = f"{self.dumps.prefix}-ep{run.epoch:03d}" + (f"-step{run.step}" if run.mode == "train" else "")
            end = f"{_rank(run)}.png"
            self.dumps.put(lambda: _files(stem, end, pictures))
            run.put_image(self.dumps.prefix, pictures)

    def on_run_end(self) -> None:
        super().on_run_end()
        self.dumps.close()

    def state_dict(self) -> dict[str, Any]:
        self.dumps.wait()
        return {}


def _name_of(function: Any) -> str:
    return str(getattr(function, "__name__", type(function).__name__)).strip("<>")


def _rank(run: Run) -> str:
    return f"-rank{run.rank}" if run.rank else ""


def _files(stem: str, end: str, pictures: Pictures) -> Iterator[tuple[str, bytes]]:
    for index, image in enumerate(pictures.each()):
        yield f"{stem}{f'-{index}' if index else ''}{end}", png(image)
