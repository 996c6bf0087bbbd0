"""The run under the names that callbacks of other systems know it by."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from hookpoint.core.errors import NotShared

if TYPE_CHECKING:
    from typing import Self

    from hookpoint.core.log.metrics import Logs
    from hookpoint.core.run._mindspore_args import OriginalArgs


class OtherNames:
    """What tensorpack, MindSpore and Orca call the attributes of a run; each is one of ours."""

    __slots__ = ()

    # MindSpore

    def original_args(self: Any) -> OriginalArgs:
        """Return the run as MindSpore's callbacks know it: one dict, with attributes, that lasts the run."""
        args: OriginalArgs = self._args
        return args

    # tensorpack

    @property
    def trainer(self) -> Self:
        return self

    @property
    def global_step(self: Any) -> int:
        return int(self.step)

    @property
    def epoch_num(self: Any) -> int:
        return int(self.epoch)

    @property
    def local_step(self: Any) -> int:
        return int(self.batch_idx)

    # Orca

    @property
    def output(self: Any) -> Any:
        return self.outputs

    @output.setter
    def output(self: Any, value: Any) -> None:
        self.outputs = value

    @property
    def target(self: Any) -> Any:
        return self.targets

    @target.setter
    def target(self: Any, value: Any) -> None:
        self.targets = value

    @property
    def num_epochs(self: Any) -> int | None:
        number: int | None = self.max_epochs
        return number

    @num_epochs.setter
    def num_epochs(self: Any, value: int | None) -> None:
        self.max_epochs = value

    @property
    def size(self: Any) -> int:
        return int(self.world_size)

    @property
    def models(self: Any) -> list[Any]:
        return _as_list(self.model)

    @property
    def optimizers(self: Any) -> list[Any]:
        return _as_list(self.optimizer)

    @property
    def scheduler(self: Any) -> Any:
        return self.lr_scheduler

    @property
    def schedulers(self: Any) -> list[Any]:
        return _as_list(self.lr_scheduler)

    @property
    def logger(self) -> logging.Logger:
        return logging.getLogger("hookpoint")

    @property
    def epoch_stats(self: Any) -> Logs:
        logs: Logs = self.logs
        return logs

    @property
    def metrics_stats(self: Any) -> dict[str, Any]:
        return {"train_loss": self.loss, "num_samples": self._now.samples}

    def put(self: Any, key: str, value: Any) -> None:
        self.store[key] = value

    def update(self: Any, key: str, value: Any) -> None:
        self.store[key] = value

    def get(self: Any, key: str) -> Any:
        if key not in self.store:
            raise NotShared(key, self.store)
        return self.store[key]

    def remove(self: Any, key: str) -> None:
        self.get(key)
        del self.store[key]


def _as_list(value: Any) -> list[Any]:
    if isinstance(value, Mapping):
        return list(value.values())
    return [] if value is None else [value]
