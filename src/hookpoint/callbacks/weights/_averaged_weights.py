"""AveragedWeights: what the callbacks that average weights have in common."""

from __future__ import annotations

import logging
from typing import Any, Unpack

from hookpoint.callbacks._shared.sharded_tensors import full_tensor
from hookpoint.callbacks.weights._weight_average import WeightAverage
from hookpoint.callbacks.weights._weight_swap import WeightSwap, version_of, write
from hookpoint.core.callback.callback import Callback, Options
from hookpoint.core.callback.callback_info import set_default_name
from hookpoint.core.checkpoint.stateful import named_parameters, state_of
from hookpoint.core.errors import BadLoop, OutsideRun
from hookpoint.core.run.run import Run

logger = logging.getLogger("hookpoint")


class AveragedWeights(Callback):
    """Average the weights of a model, and have the averages in it for a while; derived classes say when."""

    keeps_at_end = False

    def __init__(self, model: Any, *, buffers: bool, **options: Unpack[Options]) -> None:
        super().__init__(**options)
        set_default_name(self, type(self).__name__)
        self.average = WeightAverage(buffers=buffers)
        self.updates = 0
        self._given = model
        self._swap = WeightSwap()
        self._levels = 0  # passes, and the end of an epoch, that have the averages in the model at this moment
        self._is_running = self._has_failed = False
        self._versions: list[int] = []

    def weights(self) -> dict[str, Any]:
        """Return the averages as a state dict, with what the model has of everything else, in memory of its own.

        Sharded ones are put together: all processes call this.
        """
        known = (self.average.model, self._given, self.component)
        model = next((one for one in known if one is not None), None)
        if not self.average.averages or model is None:
            raise OutsideRun(f"{self.name} has no averages yet.", ask="after a step, or read them with load_weights")
        is_in = self._swap.is_in
        if not is_in:
            self._put_in(model)
        try:
            weights: dict[str, Any] = _cloned(state_of(model))
        finally:
            if not is_in:
                self._swap.put_back()
        return weights

    @property
    def copies(self) -> list[Any]:
        """The averages, as those who train copies of one model apart from each other bring them together."""
        return list(self.average.averages.values())

    def model_of(self, run: Run) -> Any:
        """Return the model that is averaged."""
        return run.model if self._given is None else self._given

    def on_setup(self, run: Run) -> None:
        if next(named_parameters(self.model_of(run)), None) is None:
            raise BadLoop(f"{self.name} finds no weights.", give="model=... to the Loop, a module of torch")
        for entry in run.hooks.entries:
            other = entry.subject
            restores = getattr(other, "restore_best_weights", False) or getattr(other, "keeps_at_end", False)
            if self.keeps_at_end and restores and other is not self:
                raise BadLoop(
                    f"{self.name} and {entry.name} both say what weights the model ends with.",
                    drop="keep_at_end=True or restore_best_weights=True",
                )

    def on_run_begin(self, run: Run) -> None:
        self._is_running, self._has_failed = True, False
        if not run.resuming:
            self.reset()

    def on_train_epoch_end(self, run: Run) -> None:
        self._note_versions()

    def on_exception(self, run: Run) -> None:
        self._has_failed = True
        self._note_versions()

    def on_run_end(self, run: Run) -> None:
        self._is_running = False
        if self.keeps_at_end and self.average.averages and not self._has_failed:
            model = self.model_of(run)  # the last checkpoint, which has the training weights, is written before it is left
            run.at_leave(lambda: write(*self.exchanged(model)))

    def swap_in(self, run: Run) -> None:
        """Have the averages in the model until the pass, or the end of the epoch, is left."""
        model = self.model_of(run)
        if not self.average.averages or (not self._is_running and not self._are_of_now(model)):
            return
        run.at_leave(self._leave)
        self._levels += 1
        if self._levels == 1:
            self._put_in(model)

    def reset(self) -> None:
        """Forget the run before."""
        self._swap.put_back()
        self._levels, self.updates, self._versions = 0, 0, []
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
        """Return tensors of the model, and what is put into them."""
        self.average.follow(model)
        return self.average.sources, list(self.average.averages.values())

    def _put_in(self, model: Any) -> None:
        self._swap.put_in(*self.exchanged(model))

    def _leave(self) -> None:
        self._levels -= 1
        if not self._levels:
            self._swap.put_back()

    def _note_versions(self) -> None:
        self._versions = list(map(version_of, self.average.sources))

    def _are_of_now(self, model: Any) -> bool:
        """Say whether the model has the weights that a run has left, and nobody has put others into it since."""
        if self.average.is_of(model) and self._versions == list(map(version_of, self.average.sources)):
            return True
        logger.info("%s: the model has other weights than those of its run, and is used with them", self.name)
        return False


def _cloned(state: Any) -> Any:
    if hasattr(state, "detach"):
        return full_tensor(state.detach()).clone()
    return {key: _cloned(one) for key, one in state.items()}
