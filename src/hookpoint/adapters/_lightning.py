"""The adapter for Lightning."""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any, Unpack

from hookpoint.adapters._hosted_run import NO_SKIPS, UNAVAILABLE, HostedRun, Options, copy_for_tags, guarded
from hookpoint.core.logger import logger
from hookpoint.core.loop.host import Host
from hookpoint.core.run.run_loop import Mode
from hookpoint.storage.checkpoint.layout import safe_name

HOST = Host("Lightning", {**UNAVAILABLE, **NO_SKIPS, "stop_epoch": "it can only stop the whole training run"})
PACKAGES = ("lightning.pytorch", "pytorch_lightning")


def lightning(callbacks: Any, *, last: bool = False, **options: Unpack[Options]) -> Any:
    """Return a Lightning callback that runs hookpoint's callbacks: `Trainer(callbacks=[lightning([...])])`.

    Each call of `trainer.fit` is a run. `trainer.validate` and `trainer.predict` fire only the points of their pass. Metrics
    that the module logs become metrics of the run, under the same names. The callbacks' state is stored in the trainer's
    checkpoints, under a key that contains `name`, so two lists of callbacks in one trainer need different names. Savers call
    `trainer.save_checkpoint`. Their files are in the folder `lightning` in the workdir or, without a workdir, in the trainer's
    default_root_dir. With multiple processes, all ranks stop at the same step.

    last: Run after the module's own on_train_epoch_end, to see the metrics that the module logs there. This requires
        `Trainer(enable_checkpointing=True)`, because only Lightning's checkpoint callbacks run that late.
    options: Options of `hookpoint.Loop`: workdir, name, extra_callbacks, monitors, log_every, samples, config, state,
        wait_seconds, control.
    """
    package = next((name for name in PACKAGES if name in sys.modules), PACKAGES[0])
    try:
        module = import_module(f"{package}.callbacks")
    except ImportError as error:
        raise ImportError("hookpoint.adapters.lightning needs Lightning: pip install lightning") from error
    base = module.Checkpoint if last else module.Callback
    kind = type("HookpointCallback", (LightningEvents, base), {})
    return kind(callbacks, last, options)


class LightningEvents:
    """The methods that Lightning calls. They begin and end the run's epochs and passes.

    When Lightning resumes in the middle of an epoch, it does not report that the epoch begins. The methods begin it themselves.
    """

    def __init__(self, callbacks: Any, last: bool, options: Options) -> None:
        super().__init__()
        self.hosted = HostedRun(callbacks, HOST, options, save=self._save)
        self.driver = self.hosted.driver
        self._made_of = (callbacks, last, options)
        self._trainer: Any = None
        self._loaded: bytes | None = None  # the state in the checkpoint to resume from
        self._kept: bytes | None = None  # the state at the end of the last fit
        self._seen: dict[str, Any] = {}  # the trainer's metrics when the epoch or validation pass began
        self._of_validation: set[str] = set()

    def __reduce__(self) -> Any:  # some strategies pickle the callbacks to start processes
        callbacks, last, options = self._made_of
        return _rebuilt, (callbacks, last, dict(options))

    # State

    @property
    def state_key(self) -> str:
        return f"hookpoint[{self._made_of[2].get('name', 'run')}]"

    def state_dict(self) -> dict[str, Any]:
        import torch

        state = self.hosted.state() if self.hosted.can_save else self._loaded or self._kept
        return {} if state is None else {"state": torch.frombuffer(bytearray(state), dtype=torch.uint8)}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        self._loaded = bytes(state_dict["state"].cpu().numpy())

    def _save(self, tags: Sequence[str], step: int) -> Path:
        workdir, tag = self._made_of[2].get("workdir"), safe_name(str(tags[0]))
        folder = Path(self._trainer.default_root_dir if workdir is None else workdir) / "lightning"
        path = folder / f"{tag}.ckpt"
        self._trainer.save_checkpoint(path)
        if self._trainer.is_global_zero:
            copy_for_tags(path, tags[1:], ".ckpt")
        return path

    # The run

    @guarded
    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        self._start(trainer, pl_module, is_fit=True)
        for optimizer in trainer.optimizers[:1]:
            if hasattr(optimizer, "register_step_post_hook"):
                self.hosted.undo(optimizer.register_step_post_hook(self._stepped).remove)
        self._obey(trainer)

    def _start(self, trainer: Any, module: Any, *, is_fit: bool) -> None:
        optimizers = {str(number): optimizer for number, optimizer in enumerate(trainer.optimizers)}
        schedulers = [config.scheduler for config in trainer.lr_scheduler_configs]
        epochs = trainer.max_epochs
        progress = self._progress(trainer) if is_fit else {}
        self._trainer = trainer
        self.hosted.start(
            **progress,
            run_points=is_fit,
            model=module,
            optimizer=next(iter(optimizers.values()), None) if len(optimizers) < 2 else optimizers,
            lr_scheduler=next(iter(schedulers), None) if len(schedulers) < 2 else schedulers,
            device=module.device,
            epochs=epochs if is_fit and epochs is not None and epochs >= 0 else None,
        )

    def _progress(self, trainer: Any) -> dict[str, Any]:
        """Return the state to continue from: the state in the checkpoint, or the state at the end of the last fit.

        If there is no such state, return clocks with the trainer's epoch and step.
        """
        done, step = trainer.current_epoch, trainer.global_step
        state, self._loaded = self._loaded, None
        if state is None and trainer is self._trainer and (done or step):
            state = self._kept
        if state is not None:
            return {"state": state, "source": "hookpoint's state in Lightning's checkpoint"}
        if (done or step) and trainer.is_global_zero:
            logger.warning(
                "Lightning starts at step %d without the state of hookpoint's callbacks: they start from scratch", step
            )
        return {"clocks": {"epoch": done, "epochs_done": done, "step": step}}

    def _obey(self, trainer: Any) -> None:
        if self.driver.wants_stop:
            trainer.should_stop = True

    @guarded
    def on_train_end(self, trainer: Any, pl_module: Any) -> None:
        self._kept = self.hosted.state()  # a second fit, or a checkpoint that is saved later, uses this state
        self.hosted.finish()

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
        self.hosted.fail(exception)

    # Training

    @guarded
    def on_train_epoch_start(self, trainer: Any, pl_module: Any) -> None:
        driver = self.driver
        if driver.resumes_in_epoch and driver.run.epoch <= trainer.current_epoch:
            # The state was saved after the epoch's last batch, so Lightning starts the next epoch.
            self._return_to_epoch(trainer)
            driver.finish_epoch()
        self._open_epoch(trainer)
        if driver.mode is None:
            self._start_training(trainer)
        self._obey(trainer)

    def _open_epoch(self, trainer: Any) -> None:
        self.driver.start_epoch()
        self._seen, self._of_validation = dict(trainer.callback_metrics), set()

    def _start_training(self, trainer: Any) -> None:
        self.driver.start_pass("train", total=_count(trainer.num_training_batches), loader=trainer.train_dataloader)

    def _return_to_epoch(self, trainer: Any) -> None:
        """Begin the epoch and the training pass in which the trainer resumes. The trainer fires no event for this."""
        if not self.driver.epoch_is_open:
            self._open_epoch(trainer)
            if self.driver.resumes_in_training:
                self._start_training(trainer)

    @guarded
    def on_train_batch_start(self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int) -> None:
        self._return_to_epoch(trainer)
        if self.driver.mode is None:
            self._start_training(trainer)
        self.driver.start_iteration(batch)
        self._obey(trainer)

    @guarded
    def on_before_backward(self, trainer: Any, pl_module: Any, loss: Any) -> None:
        if self.driver.in_iteration:
            self.driver.run.loss = _undivided(loss, trainer)
            self.driver.fire("on_backward_begin")

    @guarded
    def on_after_backward(self, trainer: Any, pl_module: Any) -> None:
        if self.driver.in_iteration:
            self.driver.fire("on_backward_end")

    @guarded
    def on_before_optimizer_step(self, trainer: Any, pl_module: Any, optimizer: Any) -> None:
        if self.driver.in_iteration and optimizer is trainer.optimizers[0]:
            self.driver.start_step()

    @guarded
    def _stepped(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        if self.driver.in_iteration:
            self.driver.finish_step()

    @guarded
    def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        loss = outputs.get("loss") if isinstance(outputs, Mapping) else outputs
        self.driver.finish_iteration(outputs=outputs, loss=None if loss is None else _undivided(loss, trainer))
        self._obey(trainer)

    @guarded
    def on_train_epoch_end(self, trainer: Any, pl_module: Any) -> None:
        self._return_to_epoch(trainer)
        if self.driver.mode == "train":
            self.driver.finish_pass()
        values = {name: value for name, value in self._new(trainer).items() if name not in self._of_validation}
        known = self.driver.run.metrics
        for name, value in values.items():  # log the trainer's means for the epoch, but keep our own mean loss
            if name != "loss" or "loss" not in known:
                self.driver.run.log(name, value)
        self.driver.finish_epoch()
        self._obey(trainer)

    # Validation and prediction

    @guarded
    def on_validation_start(self, trainer: Any, pl_module: Any) -> None:
        if trainer.sanity_checking:
            return
        if not self.hosted.is_running:
            self._start(trainer, pl_module, is_fit=False)
        else:
            self._return_to_epoch(trainer)
            if self.driver.mode == "train" and (trainer.is_last_batch or trainer.fit_loop.epoch_loop.done):
                self.driver.finish_pass()  # if batches are left, this is a validation pass in the middle of the epoch
        self._seen = dict(trainer.callback_metrics)
        self.driver.start_pass("val", total=_total(trainer.num_val_batches), loader=trainer.val_dataloaders)

    @guarded
    def on_validation_batch_start(
        self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int, dataloader_idx: int = 0
    ) -> None:
        self._begin_in("val", batch)

    @guarded
    def on_validation_batch_end(
        self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int, dataloader_idx: int = 0
    ) -> None:
        self._end_in("val", outputs)

    @guarded
    def on_validation_end(self, trainer: Any, pl_module: Any) -> None:
        if not self._is_in("val"):
            return
        new = self._new(trainer)
        self._of_validation.update(new)
        self.driver.finish_pass(new)
        if trainer.state.fn == "fit":
            self._obey(trainer)
        else:
            self.hosted.finish()

    @guarded
    def on_predict_start(self, trainer: Any, pl_module: Any) -> None:
        self._start(trainer, pl_module, is_fit=False)
        self.driver.start_pass("pred", total=_total(trainer.num_predict_batches), loader=trainer.predict_dataloaders)

    @guarded
    def on_predict_batch_start(self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int, dataloader_idx: int = 0) -> None:
        self._begin_in("pred", batch)

    @guarded
    def on_predict_batch_end(
        self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int, dataloader_idx: int = 0
    ) -> None:
        self._end_in("pred", outputs)

    @guarded
    def on_predict_end(self, trainer: Any, pl_module: Any) -> None:
        self.driver.finish_pass()
        self.hosted.finish()

    def _is_in(self, mode: Mode) -> bool:
        return self.hosted.is_running and self.driver.mode == mode

    def _begin_in(self, mode: Mode, batch: Any) -> None:
        if self._is_in(mode):
            self.driver.start_iteration(batch)

    def _end_in(self, mode: Mode, outputs: Any) -> None:
        if self._is_in(mode):
            self.driver.finish_iteration(outputs=outputs)

    def _new(self, trainer: Any) -> dict[str, Any]:
        """Return only the metrics that were updated since the epoch or validation pass began.

        The trainer also keeps old values.
        """
        now, seen = dict(trainer.callback_metrics), self._seen
        self._seen = now
        return {name: value for name, value in now.items() if name not in seen or seen[name] is not value}


def _rebuilt(callbacks: Any, last: bool, options: dict[str, Any]) -> Any:
    return lightning(callbacks, last=last, **options)


def _undivided(loss: Any, trainer: Any) -> Any:
    """Return the loss of a batch before Lightning divided it by the number of batches per step.

    Lightning divides the loss only with automatic optimization.
    """
    count = trainer.accumulate_grad_batches
    return loss * count if count > 1 and trainer.lightning_module.automatic_optimization else loss


def _count(number: Any) -> int | None:
    return None if math.isinf(number) else int(number)


def _total(numbers: Sequence[Any]) -> int | None:
    """Return the number of batches in all loaders, or None if one of them has no length."""
    return _count(sum(numbers)) if numbers else None
