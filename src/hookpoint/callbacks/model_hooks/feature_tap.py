"""FeatureTap: collect module outputs during prediction."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, ClassVar, Unpack

from hookpoint.callbacks._shared.arguments import choices, file_name, function
from hookpoint.callbacks._shared.async_array import AsyncArray
from hookpoint.callbacks._shared.name_pattern import Pattern
from hookpoint.callbacks.model_hooks._pattern_callback import PatternCallback
from hookpoint.callbacks.model_hooks._tensor_stats import first_tensor
from hookpoint.core.callback.callback import Options
from hookpoint.core.errors import BadLoop, CompileError
from hookpoint.core.run.run import Run

MAX_COPYING = 2  # number of batches whose copies to the host may still be in progress


class FeatureTap(PatternCallback):
    """Collect module outputs on the host during prediction: `tap.features["layer"]` has one row per sample.

        pattern: Names of modules, as for `ModuleHooks`.
        pool: Function that reduces an output on its device before it is copied.
        modes: The kinds of pass in which outputs are collected: "pred", "val" or both.
        file: Name of a file in the workdir, such as "features.safetensors". Each pass overwrites it. Ranks other than the chief
            write `rank1-features.safetensors` and so on.

    `features` contains the rows of the last complete pass, in the order of the data and in their original dtype. If a module
    returns multiple values, the first tensor is collected. If a module is called more than once per batch, its outputs are
    stored as `layer`, `layer#2` and so on. A skipped batch is left out, as in the predictions. The shape per sample must be the
    same in all batches; use `pool` to make shapes equal. In a distributed run, each rank collects its own samples.

    The host needs memory for the pooled outputs of all samples. At the end of a pass, the rows are concatenated one layer at a
    time, which temporarily needs memory for a second copy of the layer's rows. With a GPU, the host also needs pinned memory
    for three batches. A `TransformerEncoderLayer` does not use its fast path, and a compiled model is compiled again, as with
    `ModuleHooks`. Nested tensors of a `TransformerEncoder` are padded with 0.

    Listens to on_pred_epoch_begin, on_pred_iter_begin, on_pred_iter_end and on_pred_epoch_end, or to the corresponding points
    for the passes in `modes`.

    >>> import torch
    >>> model = torch.nn.Sequential(torch.nn.Linear(2, 3), torch.nn.Linear(3, 1))
    >>> tap = FeatureTap("0")
    >>> predictions = Runner(model, callbacks=[tap]).predict([torch.ones(4, 2), torch.ones(3, 2)])
    >>> tap.features["0"].shape
    torch.Size([7, 3])
    """

    optional_points = ("on_iter_skip",)
    step_cost: ClassVar[str] = "nothing in training; asynchronous copies for each predicted batch"

    def __init__(
        self,
        pattern: Pattern | Iterable[Pattern],
        *,
        pool: Callable[[Any], Any] | None = None,
        modes: Iterable[str] = ("pred",),
        file: str | None = None,
        **options: Unpack[Options],
    ) -> None:
        super().__init__(pattern, **options)
        self.pool = function("FeatureTap", "pool", pool, or_none=True, write="lambda output: output.mean((2, 3))")
        self.modes = choices("FeatureTap", "modes", modes, ("pred", "val"))
        self.file = None if file is None else file_name("FeatureTap", "file", file)
        self.features: dict[str, Any] = {}
        self._rows = FeatureRows(self.name)
        for mode in self.modes:  # define handlers only for these modes, because each handler costs time
            setattr(self, f"on_{mode}_epoch_begin", self._begin_pass)
            setattr(self, f"on_{mode}_iter_begin", self.on_iter_skip)
            setattr(self, f"on_{mode}_iter_end", self._end_batch)
            setattr(self, f"on_{mode}_epoch_end", self._end_pass)

    def on_setup(self, run: Run) -> None:
        self._check(run)

    def on_run_begin(self) -> None:
        self.on_run_end()
        self.features = {}

    def on_iter_skip(self) -> None:
        self._rows.drop_batch()

    def on_run_end(self) -> None:
        self._handles.remove()
        self._rows = FeatureRows(str(self.name))

    on_exception = on_run_end

    def _begin_pass(self, run: Run) -> None:
        self.on_run_end()
        self.features = {}
        modules = self._check(run)
        self._handles.register(run.model, str(self.name), modules, {"forward": self._take})

    def _end_batch(self) -> None:
        self._rows.keep_batch()

    def _end_pass(self, run: Run) -> None:
        self._handles.warn_uncalled(str(self.name))
        self._handles.remove()
        self.features = self._rows.joined()
        if self.file is not None and self.features:
            name = self.file if run.is_chief else f"rank{run.rank}-{self.file}"
            _write(Path(run.workdir) / name, self.features)

    def _take(self, module: Any, args: Any, output: Any, *, name: str) -> None:
        import torch

        if self._run is None or self._run.mode not in self.modes:  # an earlier pass failed, and training continued
            self.on_run_end()
            return
        tensor = first_tensor(output)
        if tensor is not None:
            with torch.no_grad():
                if tensor.is_nested:  # a TransformerEncoder packs padded batches in eval mode
                    tensor = tensor.to_padded_tensor(0.0)
                self._rows.add(name, tensor if self.pool is None else self.pool(tensor))

    def _check(self, run: Run) -> dict[str, Any]:
        if self.file is not None and run.workdir is None:
            raise BadLoop(f"{self.name} needs a workdir for {self.file!r}.", give="workdir=..., or leave file out")
        for entry in run.hooks.entries if self.file is not None else ():
            if isinstance(entry.subject, FeatureTap) and entry.subject is not self and entry.subject.file == self.file:
                raise CompileError(f"{self.name} and {entry.name} both write {self.file}.", give="one of them another file=")
        return self.find_modules(run)


def _write(path: Path, features: dict[str, Any]) -> None:
    from hookpoint.storage.checkpoint.weights_file import write_weights
    from hookpoint.storage.disk import disk
    from hookpoint.storage.disk.hashing_writer import NewFile

    disk.make_folder(path.parent)
    with disk.replacing(path) as new, NewFile(new) as file:
        write_weights(features, file)


class FeatureRows:
    """Collect tensors by name, batch by batch, and concatenate those with the same name.

    The second tensor with the same name in a batch becomes `name#2`, and so on. Copies from a GPU are asynchronous: they are
    read two batches later.

    >>> import torch
    >>> rows = FeatureRows("FeatureTap")
    >>> for batch in ([1.0, 2.0], [3.0]):
    ...     rows.add("head", torch.tensor(batch))
    ...     rows.keep_batch()
    >>> rows.joined()
    {'head': tensor([1., 2., 3.])}
    """

    def __init__(self, owner: str) -> None:
        self._owner = owner
        self._batch: dict[str, AsyncArray] = {}
        self._copying: deque[dict[str, AsyncArray]] = deque()
        self._rows: dict[str, list[Any]] = {}
        self._shapes: dict[str, tuple[int, ...]] = {}

    def add(self, name: str, tensor: Any) -> None:
        """Add the output of a layer for the current batch."""
        number, key = 1, name
        while key in self._batch:
            number += 1
            key = f"{name}#{number}"
        tensor = tensor.reshape(1) if tensor.ndim == 0 else tensor
        shape = self._shapes.setdefault(key, tuple(tensor.shape[1:]))
        if tuple(tensor.shape[1:]) != shape:
            shapes = f"has shape {list(tensor.shape[1:])} per sample, but had {list(shape)} before"
            give = "pool=..., a function that makes the shapes equal, such as lambda output: output.mean(1)"
            raise BadLoop(f"{self._owner}: '{key}' {shapes}.", give=give)
        self._batch[key] = AsyncArray(tensor)

    def keep_batch(self) -> None:
        """Keep the rows of the current batch."""
        if self._batch:
            self._copying.append(self._batch)
            self._batch = {}
        if len(self._copying) > MAX_COPYING:
            self._read_oldest()

    def drop_batch(self) -> None:
        """Discard the rows of the current batch."""
        self._batch = {}

    def joined(self) -> dict[str, Any]:
        """Return all rows by name and discard them. Concatenating the rows of one name temporarily needs twice their memory."""
        import torch

        while self._copying:
            self._read_oldest()
        rows, self._rows, self._shapes = self._rows, {}, {}
        return {name: torch.cat(rows.pop(name)) for name in list(rows)}

    def _read_oldest(self) -> None:
        for name, copy in self._copying.popleft().items():
            self._rows.setdefault(name, []).append(copy.tensor())
