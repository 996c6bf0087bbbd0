"""SwapEMAWeights: an exponential moving average of the weights for validation and prediction."""

from __future__ import annotations

from typing import Any, ClassVar, Literal, Unpack

from hookpoint.callbacks._shared.arguments import choice, integer, number
from hookpoint.callbacks.weights._averaged_weights import AveragedWeights
from hookpoint.callbacks.weights._weight_swap import changed, version_of
from hookpoint.core.callback.callback import Options
from hookpoint.core.callback.knob import Knob
from hookpoint.core.checkpoint.stateful import named_parameters
from hookpoint.core.errors import BadArgument
from hookpoint.core.logger import logger
from hookpoint.core.run.run import Run, stepper_of
from hookpoint.core.run.stepper import Stepper


class SwapEMAWeights(AveragedWeights):
    """Keep an exponential moving average of the weights, and use it for validation and prediction.

        decay: Each update sets an average to `decay` times its old value plus `1 - decay` times the weight.
        every: Number of steps between two updates of the averages.
        start: Step after which averaging begins, starting from the weights at that step.
        warmup: Begin with a lower decay. After n updates, use the smaller of (1 + n) / (10 + n) and `decay`.
        buffers: "average" also averages batch norm statistics; "copy" uses the model's current statistics.
        swap_on_epoch: Also use the averages at on_epoch_end, for the callbacks after this one in the list. For example,
            EarlyStopping then stores the averages as its best weights.
        keep_at_end: Load the averages into the model at the end of the run, after the last checkpoint.
        model: The module to average; by default, the run's whole model.

    The training weights are restored after each validation or prediction pass, even if it fails, so training is not affected.
    A checkpoint always contains the model's training weights. `load_weights(path, averaged=True)` returns the averages in a
    checkpoint, and `weights()` returns the current ones. `validate` and `predict` after the run use the averages, unless the
    model's weights have changed since. Frozen weights are not averaged. Weights that are unfrozen or added during the run are
    averaged from the next epoch on.

    In some runs, the step count never advances, because the run was not given the optimizer or its epochs have no batches. In
    such a run, the callback checks whether the weights have changed, and counts each change as one step. It checks at the end
    of an iteration, before a validation pass and at the end of an epoch. It counts at least one step per complete epoch,
    because a fused optimizer changes the weights without increasing the version counters that the callback checks.

    The averages take as much memory as the weights. A validation pass needs the same amount again.

    >>> import torch
    >>> model = torch.nn.Linear(1, 1, bias=False)
    >>> optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    >>> ema = SwapEMAWeights(0.5)
    >>> with Loop([ema], model=model, optimizer=optimizer) as run:
    ...     torch.nn.init.zeros_(model.weight)
    ...     for batch in run.batches([torch.ones(1, 1)]):
    ...         model(batch).sum().backward()
    ...         optimizer.step()
    Parameter containing:
    tensor([[0.]], requires_grad=True)
    >>> model.weight.item(), ema.weights()["weight"].item()
    (-1.0, -0.5)
    """

    knobs = (
        Knob("decay", float, low=0.0, high=1.0, about="factor for the old average in each update, below 1"),
        Knob("every", int, low=1, about="steps between two updates"),
    )
    keeps: ClassVar[str] = "the averages and the number of updates"
    step_cost: ClassVar[str] = "one pass over the weights, without waiting for the device"

    def __init__(
        self,
        decay: float = 0.999,
        *,
        every: int = 1,
        start: int = 0,
        warmup: bool = False,
        buffers: Literal["average", "copy"] = "average",
        swap_on_epoch: bool = False,
        keep_at_end: bool = False,
        model: Any = None,
        **options: Unpack[Options],
    ) -> None:
        choice("SwapEMAWeights", "buffers", buffers, ("average", "copy"))
        super().__init__(model, buffers=buffers == "average", **options)
        self.decay = decay
        self.every = integer("SwapEMAWeights", "every", every, least=1)
        self.start = integer("SwapEMAWeights", "start", start)
        self.warmup, self.swap_on_epoch, self.keeps_at_end = warmup, swap_on_epoch, keep_at_end
        self._last_step = self._uncounted = self._counted_in = self._version = 0

    @property
    def decay(self) -> float:
        """The factor by which each update multiplies the old average."""
        return self._decay

    @decay.setter
    def decay(self, decay: float) -> None:
        if number("SwapEMAWeights", "decay", decay, least=0.0) >= 1:
            raise BadArgument(f"SwapEMAWeights: decay must be below 1, got {decay!r}.", write="0.999")
        self._decay = decay

    def on_setup(self, run: Run) -> None:
        super().on_setup(run)
        is_after = False
        for entry in run.hooks.entries:
            is_after |= entry.subject is self
            if getattr(entry.subject, "restore_best_weights", False) and not (is_after and self.swap_on_epoch):
                line = "%s: validation uses the averages, but %s would restore the training weights; %s"
                fix = "move that callback after SwapEMAWeights in the list, and pass swap_on_epoch=True to SwapEMAWeights"
                logger.warning(line, self.name, entry.name, fix)

    def on_run_begin(self, run: Run) -> None:
        super().on_run_begin(run)
        self._last_step = run.step
        self._note_version(self.model_of(run))

    def on_train_epoch_begin(self, run: Run) -> None:
        if self._steps(run) >= self.start:
            self.average.follow(self.model_of(run))

    def on_step_end(self, run: Run) -> None:
        self._last_step = run.step
        if self._swap.is_active:  # fused optimizers do not increase the version counters of tensors
            raise changed()
        if not self.average.averages:
            if self._steps(run) >= self.start:
                self.average.follow(self.model_of(run))
        elif self._steps(run) % self.every == 0:
            self.average.update(self.model_of(run), 1 - self._decay_now())
            self.updates += 1

    def on_train_iter_end(self, run: Run) -> None:
        if run.step != self._last_step:  # without optimizer hooks, each batch counts as a step
            self.on_step_end(run)
        elif not run.step:
            self._take_uncounted(run)

    def on_val_epoch_begin(self, run: Run) -> None:
        self._take_uncounted(run)
        self.swap_in(run)

    on_pred_epoch_begin = on_val_epoch_begin

    def on_epoch_end(self, run: Run) -> None:
        if run.epoch_complete:
            self._take_uncounted(run, at_least=self._counted_in < run.epoch)
        if self.swap_on_epoch:
            self.swap_in(run)

    def on_run_end(self, run: Run) -> None:
        super().on_run_end(run)
        if (steps := self._steps(run)) < self.start:
            logger.warning("%s: the run ended at step %d, but averaging begins at step %d", self.name, steps, self.start)

    def reset(self) -> None:
        super().reset()
        self._uncounted = self._counted_in = 0

    def state_dict(self) -> dict[str, Any]:
        return {**super().state_dict(), "uncounted": self._uncounted, "counted_in": self._counted_in}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        self._uncounted, self._counted_in = state.get("uncounted", 0), state.get("counted_in", 0)
        if self._run is not None:
            self._note_version(self.model_of(self._run))

    def _steps(self, run: Run) -> int:
        return run.step + self._uncounted

    def _take_uncounted(self, run: Run, *, at_least: bool = False) -> None:
        """Count one step if the weights have changed, in a run whose step count never advances.

        With `at_least`, count one step in any case, because fused optimizers do not increase the version counters of tensors.
        """
        if not self._is_running or run.step or self._swap.is_active or type(stepper_of(run)) is not Stepper:
            return
        before = self._version
        self._note_version(self.model_of(run))
        if self._version != before or at_least:
            self._uncounted += 1
            self._counted_in = run.epoch
            self.on_step_end(run)

    def _note_version(self, model: Any) -> None:
        import torch

        weights = (weight for _, weight in named_parameters(model) if not torch.nn.parameter.is_lazy(weight))
        self._version = sum(map(version_of, weights))

    def _decay_now(self) -> float:
        return min(self._decay, (1 + self.updates) / (10 + self.updates)) if self.warmup else self._decay
