"""TorchStepper: the step, with accumulation, clipping and precision."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager
from math import inf
from typing import Any, Literal

import torch

from hookpoint.core.data.array_batches import BatchSize
from hookpoint.core.errors import BadArgument, BadLoop
from hookpoint.core.hooks.hooks import Hooks
from hookpoint.core.loop.services import machine_of
from hookpoint.core.run.iteration import NO_ITERATION, Iteration
from hookpoint.core.run.run import Run, now_of, set_now
from hookpoint.core.run_view import Dispatch
from hookpoint.core.schedule.clocks import Clocks
from hookpoint.engine._distributed_step import ALONE, Distribution
from hookpoint.engine._forward import Forward
from hookpoint.engine._step_errors import is_computed
from hookpoint.engine.data.as_loader import as_loader

Precision = Literal["32", "bf16", "fp16"]
DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16}


class TorchStepper:
    """Compute outputs, loss, gradients and the step as a bare loop does, bit for bit.

    Each loss is divided by `accumulate`, and every `accumulate`-th batch steps, as does the last of an epoch. Gradients are
    cleared before the first backward of a window, so that they can be looked at until then. A verdict counts until the part
    it is about has begun: whoever skips or retries at on_step_begin drops the window's gradients, and nothing is stepped.
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
        distribution: Distribution = ALONE,
    ) -> None:
        self.backward_was_called = False
        self._forward = forward
        self._accumulate = accumulate
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
        self._validate: Dispatch = self.in_precision(hooks.dispatch("on_val_forward", mode="val") or self.compute)
        self._begin: Dispatch | None = hooks.dispatch("on_backward_begin", mode="train")
        self._end: Dispatch | None = hooks.dispatch("on_backward_end", mode="train")
        self._step_begin: Dispatch | None = hooks.dispatch("on_step_begin", mode="train")
        self._step_end: Dispatch | None = hooks.dispatch("on_step_end", mode="train")
        self._counts_steps = False
        self._clocks: Clocks
        self._in_window = 0
        self._left_out = False
        self._values_read: dict[int, int] = {}

    def count_steps(self, run: Run) -> None:
        """Count steps and fire their points here, where all of them are made, and not through the optimizer's hooks.

        A hook costs more than the count itself. With fp16 the hooks stay: the scaler alone knows which steps it leaves out.
        """
        watch, self._clocks = machine_of(run).steps, machine_of(run).clocks
        if watch.are_reported and self._scaler is None:
            watch.remove()
            self._counts_steps = True

    def forward(self, run: Run) -> None:
        self.in_precision(self.compute)(run)

    def in_precision(self, forward: Dispatch) -> Dispatch:
        """Return a forward, ours or a MainCallback's, that runs in the precision of the run."""
        if self._dtype is None:
            return forward

        def autocast(run: Run) -> None:
            with torch.autocast(self._device_type, dtype=self._dtype):
                forward(run)

        return autocast

    def backward(self, run: Run) -> None:
        self._compute_gradients(run, now_of(run))

    def _compute_gradients(self, run: Run, now: Iteration) -> None:
        self.backward_was_called = True
        if self._in_window == 0 or self._in_window >= self._accumulate:  # the second where someone else has stepped
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
        """What a MainCallback's on_iter_backward does by default."""
        now = now_of(run)
        self._compute_gradients(run, now)
        self._step_if_due(run, now)

    def step(self, run: Run) -> None:
        self._step_if_due(run, now_of(run))

    def _step_if_due(self, run: Run, now: Iteration) -> None:
        if now.has_requests and not self._still_steps(run, now):
            return
        if self._in_window >= self._accumulate or (self._in_window and self.is_last(run)):
            self._apply(run)

    def adjust_lr(self, run: Run) -> None:
        """Step each scheduler; one that waits for a plateau gets its metric, where there is a new value of it."""
        for scheduler in run.schedulers:
            if not isinstance(scheduler, torch.optim.lr_scheduler.ReduceLROnPlateau):
                scheduler.step()
            elif self._after_step is not None:  # with each step, when no value is final yet
                scheduler.step(run.metrics[self._lr_metric or "loss"])
            else:
                self._step_on_plateau(run, scheduler)

    def finish(self, run: Run) -> None:
        """Step with what a last short window has gathered: for data whose end nobody knew.

        The batches are gone by then, and callbacks at on_step_begin and on_step_end find an iteration without any values.
        """
        if 0 < self._in_window < self._accumulate:
            set_now(run, Iteration())
            try:
                self._apply(run)
            finally:
                set_now(run, NO_ITERATION)

    def batches(self, data: Any, batch_size: BatchSize) -> Iterable[Any]:
        loader: Iterable[Any] = self._distribution.part(as_loader(data, batch_size, shuffle=False))
        return loader

    def evaluating(self, run: Run) -> AbstractContextManager[None]:
        return self._distribution.evaluating(run.model)

    def evaluate(self, run: Run, forward: Dispatch | None) -> None:
        """Compute a batch of a validation pass in the precision of the run, and log its loss where it has one."""
        now = now_of(run)
        if is_computed(self._validate if forward is None else self.in_precision(forward), run) and now.loss is not None:
            machine_of(run).logbook.log("loss", now.loss, now.samples)

    def state_dict(self, run: Run) -> dict[str, Any]:
        """Return what a checkpoint keeps: the scale of fp16, and how far a window and the plateau schedulers are."""
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

    def forget_attempt(self, run: Run, now: Iteration) -> bool:
        """Drop the gradients of a step that failed; say whether nothing else was lost with them."""
        if self._in_window and self._accumulate > 1:
            return now.loss is None  # it failed before its backward, and left the window as it was
        for optimizer in run.optimizers:
            clear_gradients(optimizer)
        self._in_window = 0
        return True

    def refuse_own_step(self, steps: int) -> None:
        """Refuse an overridden on_iter_backward, in which so many steps were made, if it made one of them itself."""
        in_window, most = self._in_window, self._accumulate
        if not self.backward_was_called or in_window >= most or (in_window > 0 and steps > 0):
            raise BadLoop(
                "on_iter_backward makes the step itself, which knows nothing of accumulate, clip_grad_norm, fp16 and"
                " lr_scheduler_on='step'.",
                call="run.backward() and run.optimizer_step() in it",
            )

    def compute(self, run: Run) -> None:
        """Compute outputs and loss in the precision that is set."""
        now, mode, forward = now_of(run), run.mode, self._forward
        outputs, now.targets = forward.outputs(now.batch, predicts=mode == "pred")
        now.outputs, loss = forward.split(outputs) if forward.may_return_loss else (outputs, None)
        if mode != "pred":
            now.loss = forward.loss(outputs, now.targets, is_needed=mode == "train") if loss is None else loss
            if forward.parts:
                self._log_parts(run, now)

    def _log_parts(self, run: Run, now: Iteration) -> None:
        """Log what the loss is the sum of; the next one may be no sum."""
        parts, self._forward.parts = self._forward.parts, {}
        for name, part in parts.items():
            machine_of(run).logbook.log(name, part, now.samples)

    def _still_steps(self, run: Run, now: Iteration) -> bool:
        """Say whether the step stands although something was asked of the iteration; if not, drop what it would apply."""
        left_out, self._left_out = self._left_out, False
        if wants(now, "step"):
            return True
        if now.is_discarded:
            if self._in_window and not left_out:
                self._drop_window(run, now)
        elif self._in_window >= self._accumulate or (self._in_window and self.is_last(run)):
            self._drop_window(run, now)
        return False

    def _drop_window(self, run: Run, now: Iteration) -> None:
        if now.is_discarded and self._accumulate > 1:
            raise BadLoop(
                "a batch was to be skipped or retried after its gradients were added to those of others.",
                ask="before on_backward_end, or run.skip_step() to drop all of the window",
            )
        clear_gradients(run.optimizer)
        self._in_window = 0

    def _step_on_plateau(self, run: Run, scheduler: Any) -> None:
        name = self._lr_metric or ("val_loss" if run.val_loader is not None else "loss")
        values = run.metrics.observations(name)
        if values > self._values_read.get(id(scheduler), 0):
            self._values_read[id(scheduler)] = values
            scheduler.step(run.metrics[name])

    def _apply(self, run: Run) -> None:
        self._in_window = 0
        optimizer, scaler = run.optimizer, self._scaler
        if self._merge is not None:
            self._merge(run, self._was_computed)
        if self._clip is not None:
            if scaler is not None:
                scaler.unscale_(optimizer)
            parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
            self._distribution.clip_grad_norm(parameters, self._clip)
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
        else:
            steps = run.step
            if scaler is None:
                optimizer.step()
            else:
                scaler.step(optimizer)
                scaler.update()
                if machine_of(run).steps.are_reported and run.step == steps:
                    return  # gradients overflowed, and the scaler left the step out
            self._refuse_late_skip(now_of(run))
        if self._after_step is not None:
            self._after_step(run)

    @staticmethod
    def _refuse_late_skip(now: Iteration) -> None:
        """Say that a skip came too late, where on_step_begin is fired by the optimizer, which then steps in any case."""
        if now.has_requests and not wants(now, "step"):
            raise BadLoop(
                "the step was to be skipped at on_step_begin, which is inside optimizer.step() with fp16 and with an"
                " on_iter_backward of one's own.",
                ask="at on_backward_end",
            )

    def weigh(self, share: float) -> None:
        """Let the gradients of the batch that is at hand count so many times, or not at all."""
        self._divide_by = self._accumulate / share if share else inf

    def steps_now(self, run: Run) -> bool:
        """Say whether a step follows the batch that is at hand, as far as that is known."""
        window, progress = self._in_window % self._accumulate, run.progress
        return window + 1 >= self._accumulate or progress is None or progress.total is None or self.is_last(run)

    def begins_window(self) -> bool:
        """Say whether the next batch is the first whose gradients a step uses."""
        return self._in_window in (0, self._accumulate)

    @staticmethod
    def is_last(run: Run) -> bool:
        """Say whether this is the last batch of its pass, where the loader knows how many it has."""
        progress = run.progress
        return progress is not None and progress.total is not None and now_of(run).batch_idx + 1 >= progress.total


def wants(now: Iteration, part: str) -> bool:
    """Say whether a part of the step, "backward" or "step", is still wanted when something was asked of its iteration."""
    now.skips_were_read = True
    return not now.is_discarded and part not in now.skipped


def clear_gradients(optimizer: Any) -> None:
    """Drop the gradients of an optimizer's parameters; `zero_grad` does the same and takes 20 microseconds longer."""
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            parameter.grad = None


def learning_rate(optimizer: Any) -> dict[str, Any]:
    """Return the learning rate of an optimizer's first group under its name, or nothing where there is none.

    A tensor is changed in place when the rate is; it is copied, and becomes a float where that makes nobody wait.
    """
    groups = getattr(optimizer, "param_groups", None) or []
    rate = groups[0].get("lr") if groups else None
    return {} if rate is None else {"learning_rate": rate.clone() if isinstance(rate, torch.Tensor) else rate}


def check_step_options(precision: str, accumulate: int, clip_grad_norm: float | None) -> None:
    """Refuse options of the step that mean nothing."""
    if precision not in ("32", *DTYPES):
        raise BadArgument(f"precision={precision!r}.", choose="'32', 'bf16' or 'fp16'")
    if not isinstance(accumulate, int) or accumulate < 1:
        raise BadArgument(f"accumulate={accumulate!r}.", give="an integer, 1 or more")
    if clip_grad_norm is not None and not clip_grad_norm > 0:
        raise BadArgument(f"clip_grad_norm={clip_grad_norm!r}.", give="a number above 0, or None")
