"""FeatureTap: collect module outputs during a prediction."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, ClassVar, Unpack

from hookpoint.callbacks._shared.arguments import choices, file_name, function
from hookpoint.callbacks._shared.name_pattern import NamePattern, Pattern
from hookpoint.callbacks._shared.named_modules import named_modules
from hookpoint.callbacks.model_hooks._feature_rows import FeatureRows
from hookpoint.callbacks.model_hooks._hook_handles import HookHandles
from hookpoint.callbacks.model_hooks._tensor_stats import first_tensor
from hookpoint.core.callback.callback import Callback, Options
from hookpoint.core.callback.callback_info import set_default_name
from hookpoint.core.errors import BadLoop, CompileError
from hookpoint.core.run.run import Run


class FeatureTap(Callback):
    """Collect module outputs during a prediction on the host: `tap.features["layer"]` has one row per sample.

        pattern: Names of modules, as for `ModuleHooks`.
        pool: Function that reduces an output on its device before it is copied.
        modes: "pred", "val" or both: the passes to collect in.
        file: Name of a file in the workdir, such as "features.safetensors". Each pass overwrites it. Ranks other than the chief
            write `rank1-features.safetensors` and so on.

    `features` has the rows of the last complete pass, in the order of the data and in their own dtype. If a module returns
    multiple values, the first tensor is collected. If it is called more than once per batch, the rows are `layer`, `layer#2`
    and so on. A skipped batch is left out, as from the predictions. Shapes must not differ between batches; `pool` can make
    them equal. In a distributed run, each rank collects its samples.

    The host needs memory for the pooled outputs of all samples, twice that of one layer while it is concatenated and, with a
    GPU, pinned memory for three batches. A `TransformerEncoderLayer` does not use its fast path, and a compiled model is
    compiled again, as with `ModuleHooks`. Nested tensors of a `TransformerEncoder` are padded with 0.

    Listens to on_pred_epoch_begin, on_pred_iter_begin, on_pred_iter_end and on_pred_epoch_end, or to those of `modes`.

    >>> import torch
    >>> model = torch.nn.Sequential(torch.nn.Linear(2, 3), torch.nn.Linear(3, 1))
    >>> tap = FeatureTap("0")
    >>> predictions = Runner(model, callbacks=[tap]).predict([torch.ones(4, 2), torch.ones(3, 2)])
    >>> tap.features["0"].shape
    torch.Size([7, 3])
    """

    keeps: ClassVar[str] = ""
    step_cost: ClassVar[str] = "nothing; a batch of a prediction pays for asynchronous copies"

    def __init__(
        self,
        pattern: Pattern | Iterable[Pattern],
        *,
        pool: Callable[[Any], Any] | None = None,
        modes: Iterable[str] = ("pred",),
        file: str | None = None,
        **options: Unpack[Options],
    ) -> None:
        super().__init__(**options)
        self.pattern = NamePattern("FeatureTap", pattern)
        if pool is not None:
            function("FeatureTap", "pool", pool, write="lambda output: output.mean((2, 3))")
        self.pool = pool
        self.modes = choices("FeatureTap", "modes", modes, ("pred", "val"))
        self.file = None if file is None else file_name("FeatureTap", "file", file)
        set_default_name(self, f"FeatureTap({self.pattern})")
        self.features: dict[str, Any] = {}
        self._handles = HookHandles()
        self._rows = FeatureRows(self.name)
        for mode in self.modes:  # passes of the other mode cost nothing
            setattr(self, f"on_{mode}_epoch_begin", self._begin_pass)
            setattr(self, f"on_{mode}_iter_begin", self.on_iter_skip)
            setattr(self, f"on_{mode}_iter_end", self._end_batch)
            setattr(self, f"on_{mode}_epoch_end", self._end_pass)

    def on_setup(self, run: Run) -> None:
        self._check(run)

    def on_run_begin(self, run: Run) -> None:
        self.on_run_end()
        if not run.resuming:
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
        self._handles.register_forward(run.model, str(self.name), modules, self._take)

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

        if self._run is None or self._run.mode not in self.modes:  # the pass has failed, and training continues
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
        return self.pattern.chosen(str(self.name), "module", named_modules(run.model))


def _write(path: Path, features: dict[str, Any]) -> None:
    from hookpoint.storage.checkpoint.weights_file import write_weights
    from hookpoint.storage.disk import disk
    from hookpoint.storage.disk.hashing_writer import NewFile

    disk.make_folder(path.parent)
    new = path.with_name(disk.hidden("features", path.name))
    try:
        with NewFile(new) as file:
            write_weights(features, file)
        new.replace(path)
    except BaseException:
        new.unlink(missing_ok=True)
        raise
