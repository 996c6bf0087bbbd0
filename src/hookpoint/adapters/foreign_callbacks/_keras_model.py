"""KerasModel: the object that Keras callbacks access as `self.model`."""

from __future__ import annotations

from typing import Any

from hookpoint.adapters.foreign_callbacks._offers import Caller, Offers
from hookpoint.core.errors import NotOffered


class Rate(float):
    """The learning rate, as a float that also has the methods `assign` and `numpy` of a Keras variable."""

    _optimizer: KerasOptimizer

    def __new__(cls, optimizer: KerasOptimizer, value: float) -> Rate:
        self = super().__new__(cls, value)
        self._optimizer = optimizer
        return self

    def assign(self, value: Any) -> None:
        self._optimizer.learning_rate = value

    def numpy(self) -> float:
        return float(self)


class KerasOptimizer(Offers):
    """The run's optimizer, with a Keras optimizer's attribute names."""

    __slots__ = ()

    SHOWN = "self.model.optimizer"

    @property
    def learning_rate(self) -> Rate:
        return Rate(self, float(self._caller.run.hyper["learning_rate"]))

    @learning_rate.setter
    def learning_rate(self, value: Any) -> None:
        self._caller.run.hyper["learning_rate"] = float(value)

    @property
    def iterations(self) -> int:
        return self._caller.run.step

    @property
    def name(self) -> str:
        return type(self._caller.run.optimizer).__name__


class KerasModel(Offers):
    """The run's model, with a Keras model's attribute names.

    If the run's model is itself a Keras model, Keras callbacks can read all of its attributes.
    """

    __slots__ = ("_optimizer", "_stops", "history", "metrics")

    SHOWN = "self.model"

    def __init__(self, caller: Caller) -> None:
        super().__init__(caller)
        self._optimizer = KerasOptimizer(caller)
        self._stops = False
        self.history: Any = None
        self.metrics: Any = getattr(caller.run.model, "metrics", []) if is_keras(caller.run.model) else []

    def __getattr__(self, name: str) -> Any:
        model = self._caller.run.model
        return getattr(model, name) if is_keras(model) and not name.startswith("__") else super().__getattr__(name)

    @property
    def stop_training(self) -> bool:
        return self._stops

    @stop_training.setter
    def stop_training(self, value: bool) -> None:
        self._stops = bool(value)
        if value:
            self._caller.stop("set model.stop_training")

    @property
    def optimizer(self) -> Any:
        own = getattr(self._caller.run.model, "optimizer", None) if is_keras(self._caller.run.model) else None
        return self._optimizer if own is None else own

    def get_weights(self) -> list[Any]:
        """Return copies of the weights as NumPy arrays, in the order of the model's state dict."""
        model = self._caller.run.model
        if hasattr(model, "get_weights"):
            return list(model.get_weights())
        return [_to_numpy(value) for value in self._state().values()]

    def set_weights(self, weights: list[Any]) -> None:
        """Load weights into the model. `weights` is a list in the format that `get_weights` returns."""
        model = self._caller.run.model
        if hasattr(model, "set_weights"):
            model.set_weights(weights)
            return
        import torch

        state = self._state()
        model.load_state_dict({name: torch.as_tensor(value) for name, value in zip(state, weights, strict=True)})

    def _state(self) -> dict[str, Any]:
        model = self._caller.run.model
        if not hasattr(model, "state_dict"):
            why = f"but a {type(model).__name__} has neither get_weights nor state_dict"
            raise NotOffered(self._caller.name, "self.model.get_weights()", self._offered(), why)
        state: dict[str, Any] = model.state_dict()
        return state


def is_keras(model: Any) -> bool:
    """Return whether an object is a Keras model."""
    names = {(cls.__module__.partition(".")[0], cls.__name__) for cls in type(model).__mro__}
    return ("keras", "Model") in names


def _to_numpy(tensor: Any) -> Any:
    tensor = tensor.detach().cpu()
    if "bfloat16" in str(tensor.dtype):  # NumPy has no bfloat16
        tensor = tensor.float()
    return tensor.numpy().copy()
