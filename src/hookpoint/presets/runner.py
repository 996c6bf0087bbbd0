"""The public Runner: the engine's, with the default callbacks and monitors."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from hookpoint.engine import runner as engine
from hookpoint.presets._defaults import with_defaults


class Runner(engine.Runner):
    """Train, validate and predict with a PyTorch model; everything else is callbacks.

    A progress bar, moving averages and the printing of each epoch's metrics come with it, and with a `workdir` JSON lines and
    TensorBoard files; `extra_callbacks=` and `monitors=` replace them, `[]` leaves them out.

    The step is a bare loop's, bit for bit: `main` or a MainCallback in the list changes forward, backward or the
    learning-rate step. `metrics` maps names to functions of (outputs, targets) or objects with update, compute and reset.
    `device="auto"` is the model's own device, or the GPU. `seed` seeds every generator when a fit begins. `init_weights` is a
    state dict. `resume` says what a fit resumes from, and which weights `validate` and `predict` load before any fit: "auto",
    "must", "never" or a path. `lr_scheduler_on="step"` steps the scheduler with the optimizer; a plateau scheduler reads
    `lr_metric`, by default val_loss or else loss. `on_nonfinite` says what happens when all losses of two log steps in a
    row, or of an epoch, are NaN or infinite: "raise" NonFiniteLoss, or "warn" and continue. `strict_sync` makes any wait for
    the GPU between log steps an error. `samples` is a function of the batch that returns how many samples it has.
    `max_crashes` is how often a run in a workdir may end with the same exception at the same moment before it refuses to start
    again; None is no limit.
    `strategy` says how several processes that torchrun started share the work: "auto" is DataParallel(), and there are
    Sharded(), TensorParallel(), PipelineParallel(), ParameterAveraging() and AsyncSGD(). A wait for data or other processes is
    reported after `hang_report_seconds`; `data_timeout_seconds` ends a wait for data.

    >>> import torch
    >>> model = torch.nn.Linear(4, 1)
    >>> runner = Runner(model, torch.optim.SGD(model.parameters(), lr=0.1), torch.nn.MSELoss())
    >>> run = runner.fit((torch.randn(64, 4), torch.randn(64, 1)), epochs=2, batch_size=16)
    >>> run.step, run.epoch
    (8, 2)
    """

    def eval(self, data: Any, *, batch_size: int | None = None) -> dict[str, float]:
        """Return what `validate` returns, with the names of the metrics as they were given: MindSpore's method."""
        return {name.removeprefix("val_"): value for name, value in self.validate(data, batch_size=batch_size).items()}

    def _completed(
        self, callbacks: Iterable[Any], extra_callbacks: Iterable[Any] | None, monitors: Iterable[Any] | None
    ) -> list[Any]:
        return with_defaults(callbacks, extra_callbacks, monitors)
