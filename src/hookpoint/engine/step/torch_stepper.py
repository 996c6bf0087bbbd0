"""TorchStepper: run forward, backward and optimizer step, with accumulation, clipping and mixed precision."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from math import inf
from types import MethodType
from typing import Any, Literal

import torch

from hookpoint.core.callback.main_callback import overrides
from hookpoint.core.data.array_batches import BatchSize
from hookpoint.core.errors import BadArgument, BadLoop
from hookpoint.core.hooks.costs import STEP_POINTS
from hookpoint.core.hooks.hooks import Hooks
from hookpoint.core.hooks.specialize import settled_values, specialize
from hookpoint.core.log.logbook import Logbook
from hookpoint.core.loop.services import machine_of
from hookpoint.core.run.iteration import NO_ITERATION, Iteration
from hookpoint.core.run.run import Run, now_of, set_now
from hookpoint.core.run.stepper import Stepper
from hookpoint.core.run_view import Dispatch
from hookpoint.core.schedule.clocks import Clocks
from hookpoint.engine.data.as_loader import as_loader
from hookpoint.engine.step.distributed_step import SINGLE_PROCESS, Distribution
from hookpoint.engine.step.forward import Forward
from hookpoint.engine.step.optimizer_values import clear_gradients
from hookpoint.engine.step.step_requests import is_computed, recovered, reject_late_requests, wants

Precision = Literal["32", "bf16", "fp16"]
SETTLED = (
    *("self._computes_itself", "self._compute", "self._forward", "self._logbook", "self._steps_itself", "self._accumulate"),
    *("self._divide_by", "self._scaler", "self._merge", "self._clip", "self._counts_steps", "self._clocks", "self._begin"),
    *("self._end", "self._step_begin", "self._step_end", "self._after_step"),
)
DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16}


class TorchStepper(Stepper):
    """Compute outputs, loss, gradients and the optimizer step, bit for bit like a plain PyTorch loop.

    Each loss is divided by `accumulate`. The optimizer steps after every `accumulate`-th batch of an epoch and after the last
    batch. The batches between two steps form a window. Gradients are cleared before the first backward pass of a window, so
    callbacks can read them until then. Once a backward pass or an optimizer step has begun, a callback's request to skip or
    retry cannot stop it. A request at on_step_begin skips the step and drops the window's gradients. With fp16 or an overridden
    on_iter_backward, on_step_begin fires inside the optimizer's step, so a request there raises BadLoop.
    """

    def __init__(
        self,
        forward: Forward,
        hooks: Hooks,
        device: torch.device,
        *,
        precision: Precision = "32",
        accumulate: int = 1,
        clip_grad_norm: float | None = None,
        lr_metric: str | None = None,
        after_step: Callable[[Run], None] | None = None,
        distribution: Distribution = SINGLE_PROCESS,
        compiled: Any = None,
    ) -> None:
        self._backward_was_called = False
        self._forward = forward
        self._compute = (compiled or forward).compute
        self._accumulate = self.accumulate = accumulate
        self._divide_by: float = accumulate
        self._clip = clip_grad_norm
        self._lr_metric = lr_metric
        self._after_step = after_step
        self._distribution = distribution
        self._merge = distribution.before_step
        self._was_computed = False
        self._dtype = DTYPES.get(precision)
        self._device_type = device.type
        self._scaler = torch.amp.GradScaler(device.type) if precision == "fp16" else None
        self._validate = self.forward_of(hooks, "val")
        self._begin, self._end, self._step_begin, self._step_end = (
            hooks.dispatch(point, mode="train", sampled=True) for point in STEP_POINTS
        )
        self._counts_steps = False
        self._clocks: Clocks
        self._in_window = 0
        self._left_out = False
        self._values_read: dict[int, int] = {}

    def begin_run(self, run: Run) -> None:
        """Choose the functions that compute forward and backward. Overrides in the MainCallback take precedence."""
        hooks, self._logbook = run.hooks, machine_of(run).logbook
        has_forward = overrides(hooks.main, "on_train_forward", "on_iter_forward")
        forward = hooks.dispatch("on_train_forward", mode="train") if has_forward else None
        self._train_forward: Dispatch = self.in_precision(forward or self.compute)
        self._computes_itself = self._train_forward == self.compute
        has_backward = overrides(hooks.main, "on_iter_backward")
        backward = hooks.dispatch("on_iter_backward", mode="train") if has_backward else None
        self._train_backward: Dispatch = self.backward_and_step
        self._steps_itself = backward is None
        if backward is not None:
            has_options = self._accumulate > 1 or self._clip is not None or self._scaler is not None
            owns_step = has_options or self._after_step is not None
            self._train_backward = partial(self._check_backward, backward) if owns_step else backward

    def train_step(self, run: Run) -> None:
        """Compute the current batch's outputs and loss, log the loss, compute gradients, and step if a step is due."""
        now = now_of(run)
        try:
            if self._computes_itself:
                self._compute_outputs(run, now)
            else:
                self._train_forward(run)
            if now.loss is None:
                raise BadLoop("the forward pass did not set a loss.", set="run.loss in on_iter_forward")
            self._logbook.add("loss", now.loss, now.samples)
            if self._steps_itself:
                self._compute_gradients(run, now)
                self._step_after(run, now)
            else:
                self._train_backward(run)
        except Exception as error:
            if not self.recovers(run, now, error):
                raise

    def training_step(self, run: Run) -> Dispatch:
        """Return `train_step`, specialized for values that are constant during a fit. `explain(step=True)` shows its source."""
        # With a strategy, each batch may have a different weight, so `_divide_by` is not constant.
        paths = SETTLED if self._distribution.strategy is None else [path for path in SETTLED if path != "self._divide_by"]
        settled = settled_values(paths, self=self)
        plan = specialize(TorchStepper.train_step, settled, INLINED)
        run.hooks.sources["The training step"] = plan.source
        return MethodType(plan.bound(settled), self)

    def count_steps(self, run: Run) -> None:
        """Count steps and fire on_step_begin and on_step_end in this class. This is faster than optimizer hooks.

        With fp16, the hooks are still used, because the scaler may skip a step. They are also used if a MainCallback may step
        the optimizer.
        """
        hooks, self._clocks = machine_of(run).steps, machine_of(run).clocks
        if hooks.are_reported and self._scaler is None and self._steps_itself:
            hooks.remove()
            self._counts_steps = True

    def forward(self, run: Run) -> None:
        self.in_precision(self.compute)(run)

    def forward_of(self, hooks: Hooks, mode: str) -> Dispatch:
        """Return the forward function for validation or prediction. An override in the MainCallback takes precedence."""
        point = f"on_{mode}_forward"
        is_default = not overrides(hooks.main, point, "on_iter_forward") and not hooks.is_watched
        return self.in_precision((None if is_default else hooks.dispatch(point, mode=mode)) or self.compute)

    def in_precision(self, forward: Dispatch) -> Dispatch:
        """Return a function that calls `forward` in the run's precision."""
        if self._dtype is None:
            return forward

        def autocast(run: Run) -> None:
            with torch.autocast(self._device_type, dtype=self._dtype):
                forward(run)

        return autocast

    def backward(self, run: Run) -> None:
        self._compute_gradients(run, now_of(run))

    def _compute_gradients(self, run: Run, now: Iteration) -> None:
        self._backward_was_called = True
        if self._in_window == 0 or self._in_window >= self._accumulate:  # a direct optimizer.step() does not reset _in_window
            clear_gradients(run.optimizer)
            self._in_window = 0
        if self._begin is not None:
            self._begin(run)
        if not now.has_requests or wants(now, "backward"):
            loss = now.loss if self._divide_by == 1 else now.loss / self._divide_by
            (loss if self._scaler is None else self._scaler.scale(loss)).backward()
            self._in_window += 1
            self._was_computed = True
        else:
            self._left_out = True
            self._was_computed = False
        if self._end is not None:
            self._end(run)

    def backward_and_step(self, run: Run) -> None:
        """Compute gradients, and step if a step is due. This is a MainCallback's default on_iter_backward."""
        now = now_of(run)
        self._compute_gradients(run, now)
        self._step_after(run, now)

    def _step_after(self, run: Run, now: Iteration) -> None:
        if self._accumulate == 1 and not now.has_requests:
            self._apply(run)
        else:
            self._step_if_due(run, now)

    def step(self, run: Run) -> None:
        self._step_if_due(run, now_of(run))

    def _step_if_due(self, run: Run, now: Iteration) -> None:
        if now.has_requests and not self._still_steps(run, now):
            return
        if self._in_window >= self._accumulate or (self._in_window and self.is_last(run)):
            self._apply(run)

    def adjust_lr(self, run: Run) -> None:
        """Step each scheduler. After an epoch, a plateau scheduler steps only if its metric has a new value."""
        for scheduler in run.schedulers:
            if not isinstance(scheduler, torch.optim.lr_scheduler.ReduceLROnPlateau):
                scheduler.step()
            elif self._after_step is not None:  # called after each step, before the epoch's metrics are final
                scheduler.step(run.metrics[self._lr_metric or "loss"])
            else:
                name = self._lr_metric or ("val_loss" if run.val_loader is not None else "loss")
                values = run.metrics.observations(name)
                if values > self._values_read.get(id(scheduler), 0):
                    self._values_read[id(scheduler)] = values
                    scheduler.step(run.metrics[name])

    def finish(self, run: Run) -> None:
        """Step with the gradients of an incomplete last window. It is incomplete if the epoch ended before a step was due.

        The batches are already freed. At on_step_begin and on_step_end, callbacks therefore get no batch, outputs or loss.
        """
        if 0 < self._in_window < self._accumulate:
            set_now(run, Iteration())
            try:
                self._apply(run)
            finally:
                set_now(run, NO_ITERATION)

    def batches(self, data: Any, batch_size: BatchSize) -> Iterable[Any]:
        loader: Iterable[Any] = self._distribution.shard(as_loader(data, batch_size, shuffle=False))
        return loader

    def evaluating(self, run: Run) -> AbstractContextManager[None]:
        return self._distribution.evaluating(run.model)

    def evaluate(self, run: Run, forward: Dispatch | None) -> None:
        """Compute a validation batch in the run's precision, and log its loss if there is one."""
        now = now_of(run)
        if is_computed(self._validate if forward is None else self.in_precision(forward), run) and now.loss is not None:
            self._logbook.add("loss", now.loss, now.samples)

    def state_dict(self, run: Run) -> dict[str, Any]:
        """Return the state of the fp16 scaler, the accumulation window and the plateau schedulers, for a checkpoint."""
        return {
            "in_window": self._in_window,
            "scaler": None if self._scaler is None else self._scaler.state_dict(),
            "values_read": [self._values_read.get(id(scheduler), 0) for scheduler in run.schedulers],
        }

    def load_state_dict(self, run: Run, state: Mapping[str, Any]) -> None:
        self._in_window = state["in_window"]
        if self._scaler is not None and state["scaler"] is not None:
            self._scaler.load_state_dict(state["scaler"])
        for scheduler, values in zip(run.schedulers, state["values_read"], strict=False):
            self._values_read[id(scheduler)] = values

    def recovers(self, run: Run, now: Iteration, error: Exception) -> bool:
        """Return whether the run can continue after a failed step. It can if a callback retries or skips the batch.

        If the run can continue, drop the gradients of the failed step. The run cannot continue if this would also drop the
        gradients of earlier batches.
        """
        if not recovered(run, now, error):
            return False
        if self._in_window and self._accumulate > 1:
            return now.loss is None  # without a loss, the batch failed before backward and the window is unchanged
        for optimizer in run.optimizers:
            clear_gradients(optimizer)
        self._in_window = 0
        return True

    def _check_backward(self, backward: Dispatch, run: Run) -> None:
        """Call an overridden on_iter_backward for the first time. Raise BadLoop if it steps the optimizer itself."""
        steps = run.step
        backward(run)
        in_window = self._in_window
        if not self._backward_was_called or in_window >= self._accumulate or (in_window > 0 and run.step > steps):
            what = "on_iter_backward steps the optimizer: accumulate, clip_grad_norm, fp16 and lr_scheduler_on have no effect."
            raise BadLoop(what, call="run.backward() and run.optimizer_step() in it")
        self._train_backward = backward

    def compute(self, run: Run) -> None:
        """Compute the current batch's outputs and loss."""
        self._compute_outputs(run, now_of(run))

    def _compute_outputs(self, run: Run, now: Iteration) -> None:
        now.outputs, now.targets, now.loss = self._compute(now.batch, run.mode)
        if self._forward.parts:
            parts, self._forward.parts = self._forward.parts, {}  # clear the loss parts: the next loss may have none
            for name, part in parts.items():
                machine_of(run).logbook.log(name, part, now.samples)

    def _still_steps(self, run: Run, now: Iteration) -> bool:
        """Return whether to step despite a skip or retry request. If not, and if a step is due, drop the window's gradients."""
        left_out, self._left_out = self._left_out, False
        if wants(now, "step"):
            return True
        is_due = not left_out if now.is_discarded else self._in_window >= self._accumulate or self.is_last(run)
        if self._in_window and is_due:
            self._drop_window(run, now)
        return False

    def _drop_window(self, run: Run, now: Iteration) -> None:
        if now.is_discarded and self._accumulate > 1:
            what = "a batch cannot be skipped or retried after its gradients were added to the gradients of other batches."
            raise BadLoop(what, request="it before on_backward_end, or call run.skip_step() to drop the window")
        clear_gradients(run.optimizer)
        self._in_window = 0

    def _apply(self, run: Run) -> None:
        self._in_window = 0
        optimizer, scaler = run.optimizer, self._scaler
        if self._merge is not None:
            self._merge(run, self._was_computed)
        if self._clip is not None:
            self._clip_gradients(optimizer, self._clip)
        if self._counts_steps:
            if self._step_begin is not None:
                self._step_begin(run)
                now = now_of(run)
                if now.has_requests and not wants(now, "step"):
                    self._drop_window(run, now)
                    return
            optimizer.step()
            self._clocks.count_step()
            if self._step_end is not None:
                self._step_end(run)
                reject_late_requests(run, "the step cannot be skipped at on_step_end: it is done.", "on_step_begin")
        else:
            steps = run.step
            if scaler is None:
                optimizer.step()
            else:
                scaler.step(optimizer)
                scaler.update()
                if machine_of(run).steps.are_reported and run.step == steps:
                    return  # gradients overflowed, and the scaler skipped the step
            what = "the step cannot be skipped at on_step_begin with fp16 or a custom on_iter_backward: it has already begun."
            reject_late_requests(run, what, "on_backward_end")
        if self._after_step is not None:
            self._after_step(run)

    def _clip_gradients(self, optimizer: Any, norm: float) -> None:
        if self._scaler is not None:
            self._scaler.unscale_(optimizer)
        parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
        self._distribution.clip_grad_norm(parameters, norm)

    def training(self, run: Run) -> AbstractContextManager[None]:
        """Return the context manager in which a fit trains."""
        return nullcontext()

    def set_weight(self, weight: float) -> None:
        """Set the weight of the current batch's gradients."""
        self._divide_by = self._accumulate / weight if weight else inf

    def steps_now(self, run: Run) -> bool:
        """Return whether a step follows the current batch, or True if this is unknown."""
        window, progress = self._in_window % self._accumulate, run.progress
        return window + 1 >= self._accumulate or progress is None or progress.total is None or self.is_last(run)

    def begins_window(self) -> bool:
        """Return whether the next batch begins an accumulation window."""
        return self._in_window in (0, self._accumulate)

    @staticmethod
    def is_last(run: Run) -> bool:
        """Return whether the loader's length makes this the last batch. Surplus batches and missing lengths return False."""
        progress = run.progress
        return progress is not None and now_of(run).batch_idx + 1 == progress.total


def check_step_options(precision: str, accumulate: int, clip_grad_norm: float | None, lr_scheduler_on: str) -> None:
    """Raise BadArgument if an option of the training step is invalid."""
    if precision not in ("32", *DTYPES):
        raise BadArgument(f"precision must be '32', 'bf16' or 'fp16', got {precision!r}.")
    if not isinstance(accumulate, int) or accumulate < 1:
        raise BadArgument(f"accumulate must be an integer >= 1, got {accumulate!r}.")
    if clip_grad_norm is not None and not clip_grad_norm > 0:
        raise BadArgument(f"clip_grad_norm must be None or a number > 0, got {clip_grad_norm!r}.")
    if lr_scheduler_on not in ("epoch", "step"):
        raise BadArgument(f"lr_scheduler_on must be 'epoch' or 'step', got {lr_scheduler_on!r}.")


INLINED: dict[str, Callable[..., Any]] = {
    "self._compute_outputs": TorchStepper._compute_outputs,
    "self._logbook.add": Logbook.add,
    "self._compute_gradients": TorchStepper._compute_gradients,
    "clear_gradients": clear_gradients,
    "self._step_after": TorchStepper._step_after,
    "self._apply": TorchStepper._apply,
    "self._clocks.count_step": Clocks.count_step,
}
