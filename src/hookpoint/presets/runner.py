"""The public Runner: the engine's Runner with the default callbacks and monitors."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from hookpoint.engine import runner as engine
from hookpoint.presets._defaults import new_profile, with_defaults
from hookpoint.steering.steering_option import steering_for

if TYPE_CHECKING:
    from hookpoint.core.control.controlled_loop import ControlledLoop
    from hookpoint.steering.steering import Steering


class Runner(engine.Runner):
    """Train, validate and predict with a PyTorch model. Everything else is a callback.

    The defaults are a progress bar, moving averages and a printout of each epoch's metrics, plus JSON lines and TensorBoard
    files if there is a `workdir`. `extra_callbacks=` and `monitors=` replace them; `[]` disables them. The training step
    computes the same results as a plain PyTorch loop, bit for bit.

    main: A MainCallback that changes forward, backward or the learning-rate step. It may also be in the list of callbacks.
    metrics: A dict from names to functions of (outputs, targets), or to objects with the methods update, compute and reset.
    device: "auto" uses a GPU if one is available and the model is on the CPU. Otherwise, it uses the model's device.
    seed: Seeds all random number generators at the start of a fit.
    init_weights: A state dict to start from.
    resume: What a fit resumes from, and which weights `validate` and `predict` load before the first fit: "auto", "must",
        "never" or a path.
    lr_scheduler_on: "epoch" or "step": step the scheduler after each epoch or after each optimizer step.
    lr_metric: The metric that a plateau scheduler reads. The default is "val_loss" if the scheduler steps after each epoch and
        there is validation data. Otherwise, the default is "loss".
    on_nonfinite: What to do if all losses in an epoch, or in two consecutive log steps, are NaN or infinite. "raise" raises
        NonFiniteLoss; "warn" logs a warning and continues.
    strict_sync: Raise an error if the host waits for the GPU between log steps.
    samples: A function that returns the number of samples in a batch.
    max_crashes: How many times a run in a workdir may fail with the same exception at the same point in training. After that,
        the run refuses to start. None means no limit.
    compile: True compiles forward and loss with torch.compile, as one function. A dict passes options to torch.compile;
        `dynamic` is False by default.
    cuda_graph: Capture the whole training step as a CUDA graph and replay it, with the same results bit for bit. "auto" trains
        without a graph if the step cannot be captured.
    strategy: How the ranks started by torchrun share the work: "auto" (DataParallel()), Sharded(), TensorParallel(),
        PipelineParallel(), ParameterAveraging() or AsyncSGD().
    checkpoint_key: Path of a file that contains the key for encrypting checkpoints, or "env:NAME" for a key in an
        environment variable.
        Needs the extra `crypto`.
    hang_report_seconds: Log a report if the run waits longer than this for data or for other ranks.
    data_timeout_seconds: Raise an error if the run waits longer than this for data.
    control: Accept commands from `hookpoint ctl` during training, if there is a workdir.

    >>> import torch
    >>> model = torch.nn.Linear(4, 1)
    >>> runner = Runner(model, torch.optim.SGD(model.parameters(), lr=0.1), torch.nn.MSELoss())
    >>> run = runner.fit((torch.randn(64, 4), torch.randn(64, 1)), epochs=2, batch_size=16)
    >>> run.step, run.epoch
    (8, 2)
    """

    def eval(self, data: Any, *, batch_size: int | None = None) -> dict[str, float]:
        """Validate, and return the metrics without the `val_` prefix, as in MindSpore."""
        return {name.removeprefix("val_"): value for name, value in self.validate(data, batch_size=batch_size).items()}

    def _completed(
        self, callbacks: Iterable[Any], extra_callbacks: Iterable[Any] | None, monitors: Iterable[Any] | None
    ) -> list[Any]:
        return with_defaults(callbacks, extra_callbacks, monitors)

    def _control(self, workdir: Any, *, control: bool) -> Callable[[ControlledLoop], Steering] | None:
        return steering_for(workdir, control=control, new_profile=new_profile())
