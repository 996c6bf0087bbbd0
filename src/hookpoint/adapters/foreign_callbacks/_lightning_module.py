"""LightningModuleView: the object that Lightning callbacks receive as `pl_module` if the model is not a LightningModule."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hookpoint.adapters.foreign_callbacks._offers import Caller, Offers


class LightningModuleView(Offers):
    """The run's model, with the LightningModule attributes that callbacks read. All other attributes come from the model."""

    __slots__ = ("trainer",)

    SHOWN = "pl_module"
    automatic_optimization = True

    def __init__(self, caller: Caller, trainer: Any) -> None:
        super().__init__(caller)
        self.trainer = trainer

    def __getattr__(self, name: str) -> Any:
        model = self._caller.run.model
        if not name.startswith("__") and hasattr(model, name):
            return getattr(model, name)
        return super().__getattr__(name)

    @property
    def current_epoch(self) -> int:
        epoch: int = self.trainer.current_epoch
        return epoch

    @property
    def global_step(self) -> int:
        return self._caller.run.step

    @property
    def device(self) -> Any:
        return self.trainer.strategy.root_device

    @property
    def logger(self) -> Any:
        return self.trainer.logger

    @property
    def loggers(self) -> Any:
        return self.trainer.loggers

    def log(self, name: str, value: Any, *args: Any, **kwargs: Any) -> None:
        self._caller.run.log(name, value)

    def log_dict(self, dictionary: Mapping[str, Any], *args: Any, **kwargs: Any) -> None:
        self._caller.run.log(dict(dictionary))

    def optimizers(self, use_pl_optimizer: bool = True) -> Any:
        optimizers = self._caller.run.optimizers
        return optimizers[0] if len(optimizers) == 1 else list(optimizers)
