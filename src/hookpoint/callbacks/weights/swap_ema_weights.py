"""SwapEMAWeights: an exponential moving average of the weights, in the model for validation and prediction."""

from __future__ import annotations

import logging
from typing import Any, Literal, Unpack

from hookpoint.callbacks._shared.arguments import number, whole
from hookpoint.callbacks.weights._averaged_weights import AveragedWeights
from hookpoint.callbacks.weights._weight_swap import changed, version_of
from hookpoint.core.callback.callback import Options
from hookpoint.core.checkpoint.stateful import named_parameters
from hookpoint.core.errors import BadArgument
from hookpoint.core.run.run import Run, stepper_of
from hookpoint.core.run.stepper import PlainStepper

logger = logging.getLogger("hookpoint")

BUFFERS = ("average", "copy")


class SwapEMAWeights(AveragedWeights):
    """Average the weights exponentially while they are trained; validate and predict with the averages.

    After a step an average is `decay` times itself plus `1 - decay` times the weight; it begins with the weight after step
    `start`, and is updated every `every` steps. With `warmup` the decay begins low: after n updates it is
    (1 + n) / (10 + n), if that is less. With `buffers="average"` the statistics of batch norm are averaged too, with "copy"
    the model's own are used. Frozen weights are as they are in the model; what is unfrozen or added counts from the next
    epoch on. `model` is what is averaged, where it is not all of the run's model.

    In a loop whose step never moves (an optimizer that the run does not know, or epochs without batches), weights that have
    changed count as one step: at the end of an iteration, before a validation or at the end of an epoch. A complete epoch
    counts as one step at least, also where autograd sees no change, as with fused optimizers.

    The averages are in the model during every validation and prediction, and the training weights are back after it, however
    it ends; training is what it would be. With `swap_on_epoch` they are in it too at on_epoch_end, for the callbacks after this
    one in the list, as EarlyStopping with its best weights. A checkpoint always has the training weights as the model's; of
    what it keeps here, `load_weights(path, averaged=True)` makes weights for a model, `weights()` does so from this object.
    With `keep_at_end` the model has the averages when the run is over and its last checkpoint is written. `validate` and
    `predict` after the run use them, unless other weights have come into the model since.

    Listens to on_step_end, on_val_epoch_begin, on_pred_epoch_begin and others. Keeps the averages and how many updates they had
    in the checkpoint. Runs on all ranks. A step pays for one pass over the weights and waits for nothing; the averages take as
    much memory as the weights, and a validation as much again.

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
        if buffers not in BUFFERS:
            raise BadArgument(f"SwapEMAWeights(buffers={buffers!r}) means nothing.", choose="'average' or 'copy'")
        super().__init__(model, buffers=buffers == "average", **options)
        self.decay = number("SwapEMAWeights", "decay", decay, least=0.0)
        if decay >= 1:
            raise BadArgument(f"SwapEMAWeights(decay={decay!r}) would never move.", give="a number below 1, as 0.999")
        self.every = whole("SwapEMAWeights", "every", every, least=1)
        self.start = whole("SwapEMAWeights", "start", start)
        self.warmup, self.swap_on_epoch, self.keeps_at_end = warmup, swap_on_epoch, keep_at_end
        self._last_step = self._uncounted = self._counted_in = self._version = 0

    def on_setup(self, run: Run) -> None:
        super().on_setup(run)
        after = False
        for entry in run.hooks.entries:
            after |= entry.subject is self
            if getattr(entry.subject, "restore_best_weights", False) and not (after and self.swap_on_epoch):
                logger.warning(
                    "%s: validation measures the averages, and %s would restore the training weights of then;"
                    " put it after this one, with swap_on_epoch=True here",
                    self.name,
                    entry.name,
                )

    def on_run_begin(self, run: Run) -> None:
        super().on_run_begin(run)
        self._last_step = run.step
        self._note_version(self.model_of(run))

    def on_train_epoch_begin(self, run: Run) -> None:
        if self._steps(run) >= self.start:
            self.average.follow(self.model_of(run))

    def on_step_end(self, run: Run) -> None:
        self._last_step = run.step
        if self._swap.is_in:  # fused optimizers write where nobody sees it
            raise changed()
        if not self.average.averages:
            if self._steps(run) >= self.start:
                self.average.follow(self.model_of(run))
        elif self._steps(run) % self.every == 0:
            self.average.update(self.model_of(run), 1 - self._decay_now())
            self.updates += 1

    def on_train_iter_end(self, run: Run) -> None:
        if run.step != self._last_step:  # an optimizer without hooks, or none: its steps are counted by the batch
            self.on_step_end(run)
        elif not run.step:
            self._take_uncounted(run)

    def on_val_epoch_begin(self, run: Run) -> None:
        self._take_uncounted(run)
        self.swap_in(run)

    def on_pred_epoch_begin(self, run: Run) -> None:
        self._take_uncounted(run)
        self.swap_in(run)

    def on_epoch_end(self, run: Run) -> None:
        if run.epoch_complete:
            self._take_uncounted(run, at_least=self._counted_in < run.epoch)
        if self.swap_on_epoch:
            self.swap_in(run)

    def on_run_end(self, run: Run) -> None:
        super().on_run_end(run)
        if (steps := self._steps(run)) < self.start:
            logger.warning("%s: the run ended at step %d, and averages begin at step %d", self.name, steps, self.start)

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
        """Count weights that have changed as one step, in a loop whose clock has counted none.

        Autograd does not see every change: `at_least` one is counted in an epoch.
        """
        if not self._is_running or run.step or self._swap.is_in or not isinstance(stepper_of(run), PlainStepper):
            return
        before = self._version
        self._note_version(self.model_of(run))
        if self._version != before or at_least:
            self._uncounted += 1
            self._counted_in = run.epoch
            self.on_step_end(run)

    def _note_version(self, model: Any) -> None:
        self._version = sum(version_of(weight) for _, weight in named_parameters(model))

    def _decay_now(self) -> float:
        return min(self.decay, (1 + self.updates) / (10 + self.updates)) if self.warmup else self.decay
