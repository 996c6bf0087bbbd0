"""The run under the names that callbacks of other systems know it by."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from hookpoint.core.errors import NotShared
from hookpoint.core.run._mindspore_args import OriginalArgs
from hookpoint.core.run._values import Values

if TYPE_CHECKING:
    from typing import Self

    from hookpoint.core.log.metrics import Logs


class PeerNames(Values):
    """What tensorpack, MindSpore and Orca call the attributes of a run; each is one of ours."""

    __slots__ = ("_args",)

    def __init__(self, *parts: Any, **given: Any) -> None:
        super().__init__(*parts, **given)
        self._args = OriginalArgs(self)

    # MindSpore

    def request_stop(self) -> None:
        """Stop the run, in MindSpore's words."""
        self._loop.settle()
        self._loop.stop("request_stop() was called", same_on_all_ranks=False)

    def original_args(self) -> OriginalArgs:
        """Return the run as MindSpore's callbacks know it: one dict, with attributes, that lasts the run."""
        return self._args

    # tensorpack

    @property
    def trainer(self) -> Self:
        return self

    @property
    def global_step(self) -> int:
        return self.step

    @property
    def epoch_num(self) -> int:
        return self.epoch

    @property
    def local_step(self) -> int:
        return self.batch_idx

    # Orca

    @property
    def output(self) -> Any:
        return self.outputs

    @output.setter
    def output(self, value: Any) -> None:
        self.outputs = value

    @property
    def target(self) -> Any:
        return self.targets

    @target.setter
    def target(self, value: Any) -> None:
        self.targets = value

    @property
    def num_epochs(self) -> int | None:
        return self.max_epochs

    @num_epochs.setter
    def num_epochs(self, value: int | None) -> None:
        self.max_epochs = value

    @property
    def size(self) -> int:
        return self.world_size

    @property
    def models(self) -> list[Any]:
        return _as_list(self.model)

    @property
    def optimizers(self) -> list[Any]:
        return _as_list(self.optimizer)

    @property
    def scheduler(self) -> Any:
        return self.lr_scheduler

    @property
    def schedulers(self) -> list[Any]:
        return _as_list(self.lr_scheduler)

    @property
    def logger(self) -> logging.Logger:
        return logging.getLogger("hookpoint")

    @property
    def epoch_stats(self) -> Logs:
        return self.logs

    @property
    def metrics_stats(self) -> dict[str, Any]:
        return {"train_loss": self.loss, "num_samples": self._now.samples}

    def put(self, key: str, value: Any) -> None:
        self.store[key] = value

    def update(self, key: str, value: Any) -> None:
        self.store[key] = value

    def get(self, key: str) -> Any:
        if key not in self.store:
            raise NotShared(key, self.store)
        return self.store[key]

    def remove(self, key: str) -> None:
        self.get(key)
        del self.store[key]


def _as_list(value: Any) -> list[Any]:
    if isinstance(value, Mapping):
        return list(value.values())
    return [] if value is None else [value]
