"""FeatureTap: keep what layers compute in a prediction."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, Unpack

from hookpoint.callbacks._shared.name_pattern import NamePattern, Pattern
from hookpoint.callbacks._shared.named_modules import named_modules
from hookpoint.callbacks.model_hooks._feature_rows import FeatureRows
from hookpoint.callbacks.model_hooks._hook_call import HookCall
from hookpoint.callbacks.model_hooks._hook_handles import HookHandles
from hookpoint.callbacks.model_hooks._tensor_stats import first_tensor
from hookpoint.core.callback.callback import Callback, Options
from hookpoint.core.callback.callback_info import set_default_name
from hookpoint.core.errors import BadArgument, BadLoop, CompileError
from hookpoint.core.run.run import Run

MODES = ("pred", "val")


class FeatureTap(Callback):
    """Keep the outputs of modules during a prediction, put together on the host: `tap.features["layer"]` has a row per sample.

    `pattern` is as for `ModuleHooks`. `features` has those of the last pass that came to its end, in the order of the data,
    in the type they were computed in; `modes=["pred", "val"]` keeps those of validation passes, too. Of a module that returns
    several things the first tensor is kept; of one that is called several times for a batch there are `layer`, `layer#2` and
    so on. `pool` is a function that makes less of an output, on its device, before it is copied. A batch that was skipped is
    left out, as it is from the predictions. Sizes that differ between batches are refused: give `pool`.

    The host needs memory for samples x size of the pooled output, while it is put together twice that for one layer, and on a
    GPU the pinned memory of three batches. `file` is the name of a file in the workdir, as in `file="features.safetensors"`,
    to which they are written at the end of each pass, over those of the last; other ranks than the chief add theirs, as
    `rank1-`. A `TransformerEncoderLayer` leaves its fast path, and a compiled model is compiled again, as with `ModuleHooks`;
    what a `TransformerEncoder` packs is padded with 0.

    Listens to on_setup, on_run_begin, the begin and end of prediction passes and of their iterations (on_pred_epoch_begin,
    ...), on_iter_skip, on_exception and on_run_end. Keeps nothing in the checkpoint. Runs on all ranks, each with its samples.
    A training step pays nothing; a batch of a prediction pays for the copies, which are queued: no GPU is waited for.

    >>> import torch
    >>> model = torch.nn.Sequential(torch.nn.Linear(2, 3), torch.nn.Linear(3, 1))
    >>> tap = FeatureTap("0")
    >>> predictions = Runner(model, callbacks=[tap]).predict([torch.ones(4, 2), torch.ones(3, 2)])
    >>> tap.features["0"].shape
    torch.Size([7, 3])
    """

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
        if pool is not None and not callable(pool):
            raise BadArgument(f"FeatureTap(pool={pool!r}) is no function.", write="lambda output: output.mean((2, 3))")
        self.pool = pool
        self.modes = tuple([modes] if isinstance(modes, str) else modes)
        if not self.modes or set(self.modes) - set(MODES):
            raise BadArgument(f"FeatureTap(modes={modes!r}) means nothing.", choose="'pred', 'val' or both")
        if file is not None and (not isinstance(file, str) or file in ("", ".", "..") or any(one in file for one in "/\\\0")):
            raise BadArgument(
                f"FeatureTap(file={file!r}) is no plain name; it is in the workdir.", write='"features.safetensors"'
            )
        self.file = file
        set_default_name(self, f"FeatureTap({self.pattern})")
        self.features: dict[str, Any] = {}
        self._handles = HookHandles()
        self._rows = FeatureRows(self.name)
        for mode in self.modes:  # a pass of the other mode is not listened to
            setattr(self, f"on_{mode}_epoch_begin", self._begin_pass)
            setattr(self, f"on_{mode}_iter_begin", self._begin_batch)
            setattr(self, f"on_{mode}_iter_end", self._end_batch)
            setattr(self, f"on_{mode}_epoch_end", self._end_pass)

    def on_setup(self, run: Run) -> None:
        self._check(run)

    def on_run_begin(self, run: Run) -> None:
        self._stop()
        if not run.resuming:
            self.features = {}

    def on_iter_skip(self) -> None:
        self._rows.drop_batch()

    def on_exception(self) -> None:
        self._stop()

    def on_run_end(self) -> None:
        self._stop()

    def _begin_pass(self, run: Run) -> None:
        self._stop()
        self.features = {}
        modules = self._check(run)
        calls = ((one, HookCall(str(self.name), "forward", name, self._take, 3)) for name, one in modules.items())
        self._handles.register(run.model, ((one.register_forward_hook, call, {}) for one, call in calls))

    def _begin_batch(self) -> None:
        self._rows.drop_batch()

    def _end_batch(self) -> None:
        self._rows.keep_batch()

    def _end_pass(self, run: Run) -> None:
        self._handles.say_uncalled(str(self.name))
        self._handles.remove()
        self.features = self._rows.joined()
        if self.file is not None and self.features:
            name = self.file if run.is_chief else f"rank{run.rank}-{self.file}"
            _write(Path(run.workdir) / name, self.features)

    def _take(self, module: Any, args: Any, output: Any, *, name: str) -> None:
        import torch

        if self._run is None or self._run.mode not in self.modes:  # the pass it was for has failed, and training goes on
            self._stop()
            return
        tensor = first_tensor(output)
        if tensor is not None:
            with torch.no_grad():
                if tensor.is_nested:  # as a TransformerEncoder packs a batch with padding in eval mode
                    tensor = tensor.to_padded_tensor(0.0)
                self._rows.add(name, tensor if self.pool is None else self.pool(tensor))

    def _check(self, run: Run) -> dict[str, Any]:
        if self.file is not None and run.workdir is None:
            raise BadLoop(f"{self.name} has no workdir to write {self.file!r} to.", give="workdir=..., or no file")
        for entry in run.hooks.entries if self.file is not None else ():
            if isinstance(entry.subject, FeatureTap) and entry.subject is not self and entry.subject.file == self.file:
                cures = {"give": "one of them another file="}
                raise CompileError(f"{self.name} and {entry.name} both write {self.file}.", **cures)
        return self.pattern.chosen(str(self.name), "module", named_modules(run.model))

    def _stop(self) -> None:
        self._handles.remove()
        self._rows = FeatureRows(str(self.name))


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
