"""LightningTrainer: the object that Lightning callbacks receive as `trainer`."""

from __future__ import annotations

import os
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

from hookpoint.adapters.foreign_callbacks._adopted import number_of
from hookpoint.adapters.foreign_callbacks._lightning_parts import FitLoop, Logger, LoggerConnector, Strategy
from hookpoint.adapters.foreign_callbacks._offers import Caller, Offers
from hookpoint.core.errors import NotOffered
from hookpoint.core.run.run import stepper_of

OPTIONS: dict[str, Any] = {"check_val_every_n_epoch": 1, "log_every_n_steps": 50, "val_check_interval": 1.0}
PRECISIONS = {"torch.bfloat16": "bf16-true", "torch.float16": "16-true", "torch.float64": "64-true"}


class LightningTrainer(Offers):
    """Offer the run's values under the attribute names of a Lightning Trainer.

    All Lightning callbacks of a run share one LightningTrainer.
    """

    __slots__ = (
        "_logger_connector",
        "_metrics",
        "_options",
        "_package",
        "fit_loop",
        "is_over",
        "loggers",
        "module",
        "state",
        "strategy",
    )

    SHOWN = "trainer"
    ckpt_path = None
    datamodule = None
    fast_dev_run = False
    max_steps = -1
    min_epochs = None
    min_steps = None
    num_sanity_val_batches: tuple[int, ...] = ()
    num_sanity_val_steps = 0
    sanity_checking = False
    testing = False

    def __init__(self, caller: Caller, package: str, options: Mapping[str, Any]) -> None:
        super().__init__(caller)
        self._package, self._options = package, {**OPTIONS, **options}
        states = self._import("trainer.states")
        self.state = states.TrainerState(fn=None, status=states.TrainerStatus.RUNNING)
        self.strategy, self.loggers, self.fit_loop = Strategy(caller), [Logger(caller)], FitLoop(caller)
        self._logger_connector = LoggerConnector(caller, self._options["log_every_n_steps"])
        self._metrics: dict[str, Any] = {}
        self.module: Any = None
        self.is_over = False

    def enter(self, function: str, stage: str) -> None:
        """Set the trainer's function ("fit", "validate" or "predict") and its stage."""
        states = self._import("trainer.states")
        self.state.fn, self.state.stage = states.TrainerFn(function), states.RunningStage(stage)

    def _import(self, module: str) -> Any:
        return import_module(f"{self._package}.{module}")

    # Clocks

    @property
    def current_epoch(self) -> int:
        return max(self._caller.run.epoch - (not self.is_over), 0)

    @property
    def global_step(self) -> int:
        return self._caller.run.step

    @property
    def accumulate_grad_batches(self) -> int:
        return stepper_of(self._caller.run).accumulate

    @property
    def max_epochs(self) -> int:
        number = self._caller.run.max_epochs
        return -1 if number is None else number

    @property
    def num_training_batches(self) -> float:
        number = number_of(self._caller.run.train_loader)
        return float("inf") if number is None else number

    @property
    def num_val_batches(self) -> list[float]:
        if self._caller.run.val_loader is None:
            return []
        number = number_of(self._caller.run.val_loader)
        return [float("inf") if number is None else number]

    @property
    def is_last_batch(self) -> bool:
        return self.fit_loop.epoch_loop.batch_progress.is_last_batch

    @property
    def training(self) -> bool:
        return self._caller.run.mode == "train" or (self._caller.run.mode is None and self.state.fn == "fit")

    @property
    def validating(self) -> bool:
        return self._caller.run.mode == "val"

    @property
    def predicting(self) -> bool:
        return self._caller.run.mode == "pred"

    # Options

    @property
    def check_val_every_n_epoch(self) -> int | None:
        number: int | None = self._options["check_val_every_n_epoch"]
        return number

    @property
    def val_check_interval(self) -> float:
        interval: float = self._options["val_check_interval"]
        return interval

    @property
    def log_every_n_steps(self) -> int:
        number: int = self._options["log_every_n_steps"]
        return number

    # Values

    @property
    def callback_metrics(self) -> dict[str, Any]:
        """The latest value of each metric as a tensor. Callbacks may add their own values."""
        import torch

        run = self._caller.run
        self._metrics.update({name: torch.tensor(float(value)) for name, value in run.metrics.items()})
        return self._metrics

    @property
    def logged_metrics(self) -> dict[str, Any]:
        return self.callback_metrics

    @property
    def progress_bar_metrics(self) -> dict[str, float]:
        return {name: float(value) for name, value in self._caller.run.logs.items()}

    # Objects

    @property
    def model(self) -> Any:
        return self._caller.run.model

    @property
    def lightning_module(self) -> Any:
        return self.module

    @property
    def logger(self) -> Any:
        return self.loggers[0]

    @property
    def optimizers(self) -> list[Any]:
        return list(self._caller.run.optimizers)

    @property
    def lr_scheduler_configs(self) -> list[Any]:
        config = self._import("utilities.types").LRSchedulerConfig
        return [config(scheduler) for scheduler in self._caller.run.schedulers]

    @property
    def precision(self) -> str:
        """The precision of the weights, as a string that Lightning uses, such as "32-true"."""
        parameters = getattr(self._caller.run.model, "parameters", None)
        first = next(iter(parameters()), None) if parameters is not None else None
        return PRECISIONS.get(str(getattr(first, "dtype", "")), "32-true")

    @property
    def train_dataloader(self) -> Any:
        return self._caller.run.train_loader

    @property
    def val_dataloaders(self) -> Any:
        return self._caller.run.val_loader

    @property
    def accelerator(self) -> Any:
        accelerators = self._import("accelerators")
        kinds = {"cuda": "CUDAAccelerator", "mps": "MPSAccelerator"}
        return getattr(accelerators, kinds.get(self.strategy.root_device.type, "CPUAccelerator"))()

    @property
    def callbacks(self) -> list[Any]:
        """The run's Lightning callbacks."""
        subjects = [getattr(entry.subject, "theirs", None) for entry in self._caller.run.hooks.entries]
        base = self._import("callbacks").Callback
        return [theirs for theirs in subjects if isinstance(theirs, base)]

    @property
    def progress_bar_callback(self) -> Any:
        return next((one for one in self.callbacks if isinstance(one, self._import("callbacks").ProgressBar)), None)

    @property
    def checkpoint_callbacks(self) -> list[Any]:
        return [one for one in self.callbacks if isinstance(one, self._import("callbacks").Checkpoint)]

    @property
    def checkpoint_callback(self) -> Any:
        return next(iter(self.checkpoint_callbacks), None)

    @property
    def early_stopping_callbacks(self) -> list[Any]:
        return [one for one in self.callbacks if isinstance(one, self._import("callbacks").EarlyStopping)]

    @property
    def early_stopping_callback(self) -> Any:
        return next(iter(self.early_stopping_callbacks), None)

    # Ranks

    @property
    def world_size(self) -> int:
        return self._caller.run.world_size

    @property
    def global_rank(self) -> int:
        return self._caller.run.rank

    @property
    def local_rank(self) -> int:
        return self._caller.run.local_rank

    @property
    def is_global_zero(self) -> bool:
        return self._caller.run.is_chief

    # Requests

    @property
    def should_stop(self) -> bool:
        return self._caller.run.stop_reason is not None

    @should_stop.setter
    def should_stop(self, value: bool) -> None:
        if value and not self.should_stop:
            self._caller.stop("set trainer.should_stop")

    @property
    def default_root_dir(self) -> str:
        workdir = self._caller.run.workdir
        if workdir is None:
            why = "but the run has no workdir"
            raise NotOffered(
                self._caller.name,
                "trainer.default_root_dir",
                self._offered(),
                why,
                **{"pass": "workdir= to the Runner or Loop, or a folder to the callback (ModelCheckpoint: dirpath=)"},
            )
        return str(workdir)

    def save_checkpoint(
        self, filepath: str | os.PathLike[str], weights_only: bool | None = None, storage_options: Any = None
    ) -> None:
        """Write a checkpoint that Lightning can load. With `weights_only`, leave out optimizers and schedulers."""
        run = self._caller.run
        if not run.is_chief:
            return
        import torch

        checkpoint: dict[str, Any] = {
            "epoch": self.current_epoch,
            "global_step": self.global_step,
            "pytorch-lightning_version": import_module(self._package).__version__,
            "state_dict": run.model.state_dict(),
            "loops": {},
        }
        if not weights_only:
            checkpoint["callbacks"] = {}
            checkpoint["optimizer_states"] = [optimizer.state_dict() for optimizer in run.optimizers]
            checkpoint["lr_schedulers"] = [scheduler.state_dict() for scheduler in run.schedulers]
        path = Path(filepath)
        path.parent.mkdir(parents=True, exist_ok=True)
        written = path.with_name(f".{path.name}.new")
        torch.save(checkpoint, written)
        written.replace(path)

    @classmethod
    def _offered(cls) -> list[str]:
        return [*(name for name in super()._offered() if name not in ("enter", "is_over", "module")), "_logger_connector"]
