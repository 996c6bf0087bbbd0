"""StochasticWeightAveraging: average the weights at the end of each of the last epochs."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any, ClassVar, Literal, Unpack

from hookpoint.callbacks._shared.arguments import choice, function, integer, number
from hookpoint.callbacks._shared.setting import Setting
from hookpoint.callbacks.weights._averaged_weights import AveragedWeights
from hookpoint.callbacks.weights._batch_norm_pass import batch_norm_buffers, measured_statistics
from hookpoint.core.callback.callback import Options
from hookpoint.core.checkpoint.plain_names import plain_name
from hookpoint.core.errors import BadArgument, BadData, BadLoop, StopRun
from hookpoint.core.logger import logger
from hookpoint.core.loop.services import machine_of
from hookpoint.core.run.rates import put
from hookpoint.core.run.run import Run, stepper_of


class StochasticWeightAveraging(AveragedWeights):
    """Average the weights at the end of each of the last epochs, and load the averages into the model when the run ends.

        start: First epoch to average, counted from 1, or the fraction of all epochs that come before it.
        lr: Learning rate from that epoch on; it overrides the run's scheduler. By default, the rate is unchanged.
        anneal_epochs: Number of epochs over which the rate changes to `lr`.
        anneal: "cos" or "linear".
        data: Data to measure batch norm statistics with; by default, one epoch of the training data.
        forward: Function that calls the model with a batch; by default, the model is called as in validation. In your own loop,
            pass it if a batch is not a pair (inputs, targets).
        model: The module to average; by default, the run's whole model.

    If the model has batch norm layers, torch's update_bn measures their statistics for the averages, with one pass over the
    data. If this measurement fails, a run on one rank logs a warning and uses the averages with the statistics of the training
    weights. A run on multiple ranks raises. The validation of the last epoch uses the averages. The last checkpoint contains
    the training weights, so that you can resume from it and train for longer. The averages are loaded into the model after that
    checkpoint is written. `load_weights(path, averaged=True)` returns the averages from a checkpoint, and `weights()` returns
    the current averages. If a run is stopped early, the averages computed until then are loaded into the model. After an
    exception or a signal, the model has its training weights. The weights of an incomplete epoch are not averaged. Sends the
    event "setting".

    >>> import torch
    >>> model = torch.nn.Linear(1, 1, bias=False)
    >>> optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    >>> swa = StochasticWeightAveraging(start=2, lr=0.5, anneal_epochs=1)
    >>> with Loop([swa], model=model, optimizer=optimizer) as run:
    ...     model.weight.data.zero_()
    ...     for epoch in run.epochs(3):
    ...         for batch in run.batches([torch.ones(1, 1)]):
    ...             optimizer.zero_grad()
    ...             model(batch).sum().backward()
    ...             optimizer.step()
    ...         print(model.weight.item())
    tensor([[0.]])
    -1.0
    -1.5
    -2.0
    >>> model.weight.item()
    -1.75
    """

    keeps_at_end = True
    keeps: ClassVar[str] = "the averages, their batch norm statistics, and the previous learning rates"
    step_cost: ClassVar[str] = (
        "if the run has a scheduler, the time to set the learning rate, otherwise nothing; one pass over the weights per epoch"
    )

    def __init__(
        self,
        start: float = 0.75,
        lr: float | None = None,
        *,
        anneal_epochs: int = 10,
        anneal: Literal["cos", "linear"] = "cos",
        data: Any = None,
        forward: Callable[[Any], object] | None = None,
        model: Any = None,
        **options: Unpack[Options],
    ) -> None:
        super().__init__(model, buffers=False, **options)
        self.lr = None if lr is None else number("StochasticWeightAveraging", "lr", lr, least=0.0)
        self._schedule = SWASchedule(start, anneal_epochs, anneal)
        self.data = data
        self._forward = function("StochasticWeightAveraging", "forward", forward, or_none=True)
        self.setting = None if lr is None else Setting("learning_rate", same_on_all_ranks=True)
        self.reset()

    def reset(self) -> None:
        super().reset()
        self._first: int | None = None
        self._taken = 0
        self._rates: list[float] = []
        self._statistics: dict[str, Any] = {}
        self._is_measured = self._is_trained = self._has_checked_batch = False
        self._acts_on_steps = True

    def on_setup(self, run: Run) -> None:
        super().on_setup(run)
        for entry in run.hooks.entries:
            other = entry.subject
            if other is not self and isinstance(other, AveragedWeights) and other.model_of(run) is self.model_of(run):
                raise BadLoop(f"{self.name} and {entry.name} both average this model.", drop="one of the two")
        if self.lr is not None and len(run.optimizers) > 1:
            raise BadLoop(f"{self.name} cannot set the learning rates of {len(run.optimizers)} optimizers.", leave="lr out")
        if self.lr is not None and not getattr(run.optimizer, "param_groups", None):
            raise BadLoop(f"{self.name} needs an optimizer to set its learning rate.", give="optimizer=..., or leave lr out")

    def on_run_begin(self, run: Run) -> None:
        super().on_run_begin(run)
        if self.setting is not None:
            self.setting.begin(run, self.name or "", takes_over=True)

    def on_epoch_begin(self, run: Run) -> None:
        self._is_trained, self._acts_on_steps = False, True
        # After averaging has begun, the first averaged epoch does not change, even if the run's number of epochs does.
        if not self.updates and not self._rates:
            self._first = self._schedule.first_epoch(run.max_epochs)
        if self._is_on(run) and self.setting is not None and not run.resuming:
            groups = run.optimizer.param_groups
            self._rates += [float(group["lr"]) for group in groups[len(self._rates) :]]
            self.setting.set_each(run, self._targets(run))

    def on_train_iter_begin(self, run: Run) -> None:
        if self._acts_on_steps:
            self._begin_step(run)

    def _begin_step(self, run: Run) -> None:
        if not self._has_checked_batch:
            self._check_batch(run)
        # A scheduler sets the rate too, between epochs or after each step, so set it again before every step.
        self._acts_on_steps = run.lr_scheduler is not None and bool(self._rates)
        if self._acts_on_steps:
            for group, rate in zip(run.optimizer.param_groups, self._targets(run), strict=False):
                put(group, "lr", rate)

    def _check_batch(self, run: Run) -> None:
        """Raise if the model cannot be called with a training batch. Batch norm statistics are measured with such batches."""
        self._has_checked_batch = True
        is_known = self._forward is not None or self.data is not None or run.hooks.dispatch("on_val_forward", mode="val")
        # The batches of an iterator or of a host cannot be read again, so the statistics are not measured.
        is_read_once = isinstance(run.train_loader, Iterator) or machine_of(run).options.host is not None
        if is_known or is_read_once or not batch_norm_buffers(self.model_of(run)):
            return
        if problem := stepper_of(run).misfit(run.batch):
            why = f"{self.name} cannot call the model to measure batch norm statistics: {problem}."
            raise BadData(why, give="forward=lambda batch: model(batch), or data=..., which yields pairs")

    def on_train_epoch_end(self, run: Run) -> None:
        super().on_train_epoch_end(run)
        self._is_trained = not machine_of(run).scopes.cut_short

    def on_val_epoch_begin(self, run: Run) -> None:
        if self._is_running and self._is_trained and run.epoch == run.max_epochs and self._is_on(run):
            self._take(run)
            self.swap_in(run)

    on_pred_epoch_begin = on_val_epoch_begin

    def on_epoch_end(self, run: Run) -> None:
        if run.epoch_complete and self._is_on(run):
            self._take(run)

    def on_run_end(self, run: Run) -> None:
        self._has_failed |= machine_of(run).signals.received is not None
        if not self._has_failed and self.average.averages:
            self._measure(run)
        elif not self._has_failed:
            first = self._first or self._schedule.start
            logger.warning("%s: the run ended without averages: no epoch from %s onward was completed", self.name, first)
        super().on_run_end(run)

    def exchanged(self, model: Any) -> tuple[list[Any], list[Any]]:
        tensors, values = super().exchanged(model)
        buffers = batch_norm_buffers(model) if self._statistics else {}
        names = [name for name in self._statistics if name in buffers]
        return [*tensors, *(buffers[name] for name in names)], [*values, *(self._statistics[name] for name in names)]

    def _is_on(self, run: Run) -> bool:
        return self._first is not None and run.epoch >= self._first

    def _targets(self, run: Run) -> list[float]:
        assert self.lr is not None
        assert self._first is not None
        return [self._schedule.rate(old, self.lr, epoch=run.epoch, first=self._first) for old in self._rates]

    def _take(self, run: Run) -> None:
        """Add the weights to the average, once per epoch. In the last epoch, measure batch norm statistics for the average."""
        if self._taken < run.epoch:
            if self.updates:
                self.average.update(self.model_of(run), 1 / (self.updates + 1))
            else:
                self.average.follow(self.model_of(run))
            self.updates += 1
            self._taken, self._statistics, self._is_measured = run.epoch, {}, False
        if run.epoch == run.max_epochs:
            self._measure(run)

    def _measure(self, run: Run) -> None:
        model, data = self.model_of(run), run.train_loader if self.data is None else self.data
        if self._is_measured:
            return
        norms = batch_norm_buffers(model)
        if not (run.agree(bool(norms)) if run.team.has_stages else norms):  # all ranks take part in the pass, or none do
            return
        self._is_measured = True
        problem, cure = "no data to measure batch norm statistics with", "data=..."
        if data is not None:
            self._apply(model)
            try:
                self._statistics = measured_statistics(run, model, data, self._forward)
            except Exception as error:
                if isinstance(error, StopRun) or run.team.size > 1:  # the other ranks would wait for this one
                    raise
                problem = f"batch norm statistics could not be measured ({type(error).__name__}: {error})"
                cure = "forward=..., a function that calls the model with a batch"
            finally:
                self._swap.restore()
        if norms and not self._statistics:
            line = "%s: %s, so the averages are used with the batch norm statistics of the training weights. Pass %s"
            logger.warning(line, self.name, problem, cure)

    def state_dict(self) -> dict[str, Any]:
        return {
            **super().state_dict(),
            "first": self._first,
            "rates": list(self._rates),
            "taken": self._taken,
            "statistics": dict(self._statistics),
            "is_measured": self._is_measured,
            "setting": None if self.setting is None else self.setting.state_dict(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        self._first, self._rates, self._taken = state["first"], list(state["rates"]), state["taken"]
        self._is_measured, self._acts_on_steps = state["is_measured"], True
        self._statistics = {plain_name(name): tensor.clone() for name, tensor in state["statistics"].items()}
        if self.setting is not None and state["setting"] is not None:
            self.setting.load_state_dict(state["setting"])


class SWASchedule:
    """Compute the first averaged epoch, and the learning rate for each epoch.

    `start` is the first averaged epoch, counted from 1, or the fraction of all epochs that come before it. The rate reaches its
    target in `anneal_epochs` epochs, or immediately if that is 0 or 1. In the first averaged epoch, the rate is the same as in
    torch's SWALR after the first call to `step`.

    >>> SWASchedule(0.75, 10, "cos").first_epoch(8)
    7
    >>> SWASchedule(3, 4, "linear").rate(0.4, 0.2, epoch=4, first=3)
    0.30000000000000004
    """

    def __init__(self, start: float, anneal_epochs: int, anneal: Literal["cos", "linear"]) -> None:
        is_number = isinstance(start, int | float) and not isinstance(start, bool)
        if not is_number or not (0 < start < 1 if isinstance(start, float) else start >= 1):
            expected = "an epoch >= 1 or a fraction of the epochs between 0 and 1"
            raise BadArgument(f"StochasticWeightAveraging: start must be {expected}, got {start!r}.")
        self.start = start
        self.anneal = choice("StochasticWeightAveraging", "anneal", anneal, ("cos", "linear"))
        self.anneal_epochs = integer("StochasticWeightAveraging", "anneal_epochs", anneal_epochs)

    def first_epoch(self, epochs: int | None) -> int:
        """Return the first averaged epoch for a run with this number of epochs."""
        if isinstance(self.start, int):
            return self.start
        if epochs is None:
            raise BadLoop(f"start={self.start} needs a run with a known number of epochs.", give="the epoch as an integer")
        return min(int(round(self.start * epochs, 9)) + 1, epochs)  # 0.58 * 50 is 28.999999999999996

    def rate(self, old: Any, target: float, *, epoch: int, first: int) -> Any:
        """Return the rate for an epoch, between the old rate and the target."""
        progress = min(1.0, (epoch - first + 1) / max(1, self.anneal_epochs))
        share = (1 - math.cos(math.pi * progress)) / 2 if self.anneal == "cos" else progress
        return target if share == 1 else target * share + old * (1 - share)
