"""AveragedWeights: the base class of callbacks that average weights."""

from __future__ import annotations

from typing import Any, Unpack

from hookpoint.callbacks._shared.sharded_tensors import full_tensor
from hookpoint.callbacks.weights._weight_average import WeightAverage
from hookpoint.callbacks.weights._weight_swap import WeightSwap, version_of, write
from hookpoint.core.callback.callback import Callback, Options
from hookpoint.core.callback.callback_info import set_default_name
from hookpoint.core.checkpoint.stateful import named_parameters, state_of
from hookpoint.core.errors import BadLoop, OutsideRun
from hookpoint.core.logger import logger
from hookpoint.core.run.run import Run


class AveragedWeights(Callback):
    """Average a model's weights, and load the averages into the model temporarily. Subclasses decide when to do so."""

    keeps_at_end = False
    changes_weights = True  # so all ranks must run the callback

    def __init__(self, model: Any, *, buffers: bool, **options: Unpack[Options]) -> None:
        super().__init__(**options)
        set_default_name(self, type(self).__name__)
        self.average = WeightAverage(buffers=buffers)
        self.updates = 0
        self._model = model
        self._swap = WeightSwap()
        self._depth = 0  # how many passes and on_epoch_end points that use the averages have begun but not ended
        self._is_running = self._has_failed = False
        self._versions: list[int] = []

    def weights(self) -> dict[str, Any]:
        """Return a copy of the model's state dict that contains the averages.

        Gathering sharded tensors is a collective call.
        """
        models = (self.average.model, self._model, self.component)
        model = next((model for model in models if model is not None), None)
        if not self.average.averages or model is None:
            raise OutsideRun(f"{self.name} has no averages yet.", call="it after a step, or load_weights on a checkpoint")
        if self._swap.is_active:
            return dict(_cloned(state_of(model)))
        self._apply(model)
        try:
            return dict(_cloned(state_of(model)))
        finally:
            self._swap.restore()

    @property
    def copies(self) -> list[Any]:
        """The averages. A strategy that averages the model's weights across ranks also averages these tensors across ranks."""
        return list(self.average.averages.values())

    def model_of(self, run: Run) -> Any:
        """Return the model whose weights are averaged."""
        return run.model if self._model is None else self._model

    def on_setup(self, run: Run) -> None:
        if next(named_parameters(self.model_of(run)), None) is None:
            raise BadLoop(f"{self.name} found no weights.", give="model=... to the Loop, a torch.nn.Module")
        for entry in run.hooks.entries:
            other = entry.subject
            restores = getattr(other, "restore_best_weights", False) or getattr(other, "keeps_at_end", False)
            if self.keeps_at_end and restores and other is not self:
                drop = "keep_at_end=True or restore_best_weights=True"
                raise BadLoop(f"{self.name} and {entry.name} both replace the weights at the end of the run.", drop=drop)

    def on_run_begin(self, run: Run) -> None:
        self._is_running, self._has_failed = True, False
        self.reset()

    def on_train_epoch_end(self, run: Run) -> None:
        self._note_versions()

    def on_exception(self, run: Run) -> None:
        self._has_failed = True
        self._note_versions()

    def on_run_end(self, run: Run) -> None:
        self._is_running = False
        if self.keeps_at_end and self.average.averages and not self._has_failed:
            model = self.model_of(run)
            # Load the averages after the last checkpoint is written: this checkpoint must contain the training weights.
            run.at_leave(lambda: write(*self.exchanged(model)))

    def swap_in(self, run: Run) -> None:
        """Load the averages into the model. The training weights are restored when the pass or on_epoch_end is over."""
        model = self.model_of(run)
        if not self.average.averages or (not self._is_running and not self._is_unchanged(model)):
            return
        run.at_leave(self._end_swap)
        self._depth += 1
        if self._depth == 1:
            self._apply(model)

    def reset(self) -> None:
        """Discard the state of the previous run."""
        self._swap.restore()
        self._depth, self.updates, self._versions = 0, 0, []
        self.average.load({})

    def state_dict(self) -> dict[str, Any]:
        return {"updates": self.updates, "averages": dict(self.average.averages)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.updates = state["updates"]
        self.average.load(state["averages"])
        if self._run is not None and self.average.averages:
            self.average.follow(self.model_of(self._run))
            self._note_versions()

    def exchanged(self, model: Any) -> tuple[list[Any], list[Any]]:
        """Return the model's tensors to replace, and their new values."""
        self.average.follow(model)
        return self.average.sources, list(self.average.averages.values())

    def _apply(self, model: Any) -> None:
        self._swap.apply(*self.exchanged(model))

    def _end_swap(self) -> None:
        self._depth -= 1
        if not self._depth:
            self._swap.restore()

    def _note_versions(self) -> None:
        self._versions = list(map(version_of, self.average.sources))

    def _is_unchanged(self, model: Any) -> bool:
        """Return whether the model still has the weights that it had at the end of the run."""
        versions = list(map(version_of, self.average.sources))
        if self.average.averages and self.average.model is model and self._versions == versions:
            return True
        logger.info("%s: the weights have changed since the run; the averages are not used", self.name)
        return False


def _cloned(state: Any) -> Any:
    if hasattr(state, "detach"):
        return full_tensor(state.detach()).clone()
    return {key: _cloned(value) for key, value in state.items()}
