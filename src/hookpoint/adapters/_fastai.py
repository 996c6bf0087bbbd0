"""The adapter for fastai."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from types import ModuleType
from typing import Any, Literal, Unpack

from hookpoint.adapters._epoch_state import EpochState
from hookpoint.adapters._hosted_run import UNAVAILABLE, ErrorsFromWith, HostedRun, Options, guarded
from hookpoint.core.data.samples import length_of
from hookpoint.core.loop.host import Host
from hookpoint.core.run.run_loop import Mode

HOST = Host(
    "fastai",
    {**UNAVAILABLE, "save": "it writes its own checkpoints; use its SaveModelCallback"},
    frozenset(["skip_batch", "skip_backward", "skip_step"]),
)
# Run after fastai's own callbacks: the recorder then has its values, and skipped epochs and cancelled steps fire no event here.
ORDER = 80
NAMES = {"lr": ("learning_rate", "lr"), "mom": ("momentum", "mom"), "wd": ("weight_decay", "wd")}
# An event handler returns "Fit" to raise fastai's CancelFitException, and so on. None raises no exception.
Cancels = Literal["Fit", "Train", "Valid", "Batch", "Backward", "Step"] | None


def fastai(callbacks: Any, **options: Unpack[Options]) -> Any:
    """Return a fastai callback that runs hookpoint's callbacks: `Learner(..., cbs=[fastai([...])])`.

    `learner.fit` is a run. `validate` and `get_preds` fire only the points of a validation or prediction pass. In the run,
    `valid_loss` becomes `val_loss`, and the learner's metric `x` becomes `val_x`. `loss` is the mean over the epoch, whereas
    fastai's own `train_loss` is smoothed. All skip requests work.

    fastai does not save callback state. With a workdir, the adapter writes it to a file after each epoch, and
    `learner.fit(..., start_epoch=k)` restores the state saved after epoch k. fastai has no event for errors. To have errors
    reported, use the callback in a `with` statement.

    options: Options of `hookpoint.Loop`: workdir, name, extra_callbacks, monitors, log_every, samples, config, state,
        wait_seconds, control.
    """
    try:
        core = import_module("fastai.callback.core")
    except ImportError as error:
        raise ImportError("hookpoint.adapters.fastai needs fastai: pip install fastai") from error
    events = FastaiEvents(HostedRun(callbacks, HOST, options), options.get("workdir"))
    return type("HookpointCallback", (FastaiListener, core.Callback), {})(events, core)


class FastaiListener(ErrorsFromWith):
    """Forward the learner's events to FastaiEvents. `fastai` combines this class with fastai's Callback class."""

    order = ORDER
    learn: Any
    run: bool  # fastai's switch that turns a callback on or off

    def __init__(self, events: FastaiEvents, core: ModuleType) -> None:
        super().__init__()
        self.hosted, self._events, self._core = events.hosted, events, core

    def __call__(self, event_name: str) -> None:
        """Forward an event, and raise fastai's cancel exception if a callback requests an early end.

        This method does not call its base method, which would change an exception's message.
        """
        handler: Callable[[Any], Cancels] | None = getattr(self._events, event_name, None)
        cancelled = handler(self.learn) if self.run and handler is not None else None
        if event_name == "after_fit":
            self.run = True  # fastai's own callbacks also turn themselves on again after a fit
        if cancelled is not None:
            raise getattr(self._core, f"Cancel{cancelled}Exception")

    def __reduce__(self) -> tuple[Any, ...]:
        # Learner.export() pickles callbacks. Only training needs this callback, so pickle an empty fastai Callback instead.
        return self._core.Callback, ()


class FastaiEvents:
    """Handle a learner's events. Each method returns what to cancel, or None.

    `Learner.validate` and `get_preds` also fire before_fit and before_epoch, so a run begins at the first before_train. `_fits`
    contains the fits in progress. `_fit` is the fit that belongs to the run.
    """

    def __init__(self, hosted: HostedRun, workdir: Any) -> None:
        self.hosted, self.driver = hosted, hosted.driver
        self._state = EpochState(hosted, workdir)
        self._fits: list[object] = []
        self._fit: object = None
        self._is_alone = False  # whether a validation or prediction pass runs outside a fit
        self._backward_is_skipped = self._step_is_cancelled = False

    def _is_watched(self) -> bool:
        """Return whether the current event belongs to the run, not to a validation pass that a fastai callback has started."""
        return self.hosted.is_running and (self._is_alone or (bool(self._fits) and self._fits[-1] is self._fit))

    def _is_in_batch(self) -> bool:
        return self._is_watched() and self.driver.in_iteration

    def _cancels(self) -> Cancels:
        if self.driver.wants_stop:
            return "Fit"
        if self.driver.mode is not None and self.driver.wants_end_pass:
            return "Train" if self.driver.mode == "train" else "Valid"
        return None

    # The run

    def before_fit(self, learn: Any) -> None:
        if self._is_alone:
            self._is_alone = False
            self.hosted.abandon()
        self._fits.append(object())

    @guarded
    def before_train(self, learn: Any) -> Cancels:
        if hasattr(learn, "lr_finder"):
            return None
        if self._is_alone or not self._is_watched():
            self._fit, self._is_alone = self._fits[-1], False
            self._begin(learn)
        if not self.driver.wants_stop:
            self.driver.start_epoch()
        if not self.driver.wants_stop:
            self.driver.start_pass("train", total=length_of(learn.dl), loader=learn.dl)
        return self._cancels()

    def _begin(self, learn: Any) -> None:
        # The torch optimizer inside fastai's wrapper, if there is one; fastai's own optimizers have no hooks.
        wrapped = getattr(learn.opt, "opt", None)
        done, batches = learn.epoch, length_of(learn.dl) or 0
        state = self._state.after(done)
        counts = {"epoch": done, "epochs_done": done, "iteration": done * batches, "step": done * batches}
        self.hosted.start(
            state=state,
            source="the state in the workdir",
            clocks=counts if done and state is None else None,
            epochs=learn.n_epoch,
            model=learn.model,
            optimizer=learn.opt if wrapped is None else wrapped,
            criterion=learn.loss_func,
            settings=_settings(learn.opt) if wrapped is None else (),
        )

    @guarded
    def after_epoch(self, learn: Any) -> Cancels:
        if not self._is_watched() or self._is_alone or not self.driver.epoch_is_open:
            return None
        self.driver.finish_epoch()
        self._state.write()
        return self._cancels()

    @guarded
    def after_fit(self, learn: Any) -> None:
        if self._is_watched() and not self._is_alone:
            if self.driver.epoch_is_open and self.driver.mode is None:  # a fastai callback has ended the fit at after_epoch
                self.driver.finish_epoch()
            self.hosted.finish()
        if self._fits:
            self._fits.pop()

    # Passes

    @guarded
    def after_train(self, learn: Any) -> None:
        if self._is_watched() and self.driver.mode == "train":
            recorded = _recorded(learn)
            self.driver.finish_pass({name[6:]: value for name, value in recorded.items() if name.startswith("train_")})

    @guarded
    def before_validate(self, learn: Any) -> Cancels:
        if not self.hosted.is_running:
            self._is_alone = True
            self.hosted.start(run_points=False, model=learn.model, criterion=learn.loss_func)
        if not self._is_watched():
            return None
        mode: Mode = "pred" if hasattr(learn, "gather_preds") else "val"
        self.driver.start_pass(mode, total=length_of(learn.dl), loader=learn.dl)
        return self._cancels()

    @guarded
    def after_validate(self, learn: Any) -> None:
        if not self._is_watched() or self.driver.mode not in ("val", "pred"):
            return
        recorded = _recorded(learn) if self.driver.mode == "val" else {}
        values = {name.removeprefix("valid_"): value for name, value in recorded.items() if not name.startswith("train_")}
        self.driver.finish_pass(values)
        if self._is_alone:
            self._is_alone = False
            self.hosted.finish()

    # A batch

    @guarded
    def before_batch(self, learn: Any) -> Cancels:
        if not self._is_watched() or self.driver.mode is None or self.driver.start_iteration((*learn.xb, *learn.yb)):
            return None
        learn.yb = ()  # without targets, the recorder ignores this batch
        return "Batch"

    @guarded
    def after_pred(self, learn: Any) -> None:
        if self._is_in_batch():
            self.driver.run.outputs = learn.pred

    @guarded
    def after_loss(self, learn: Any) -> None:
        if self._is_in_batch() and len(learn.yb):
            run = self.driver.run
            run.targets, run.loss = learn.y, learn.loss
            if run.mode != "pred":
                run.log("loss", learn.loss.detach())

    @guarded
    def before_backward(self, learn: Any) -> Cancels:
        self._backward_is_skipped = False
        if not self._is_in_batch():
            return None
        self.driver.fire("on_backward_begin")
        self._backward_is_skipped = bool(self.driver.run.skipped & {"batch", "backward"})
        return "Backward" if self._backward_is_skipped else None

    @guarded
    def after_backward(self, learn: Any) -> None:
        if self._is_in_batch():
            self.driver.fire("on_backward_end")

    @guarded
    def before_step(self, learn: Any) -> Cancels:
        self._step_is_cancelled = False
        if not self._is_in_batch():
            return None
        if self._backward_is_skipped or self._step_is_skipped():
            return "Step"
        self.driver.start_step()
        return "Step" if self._step_is_skipped() else None

    def _step_is_skipped(self) -> bool:
        return bool(self.driver.run.skipped & {"batch", "step"})

    def after_cancel_step(self, learn: Any) -> None:
        self._step_is_cancelled = True

    @guarded
    def after_step(self, learn: Any) -> None:
        """Count the step. fastai also fires this event after a cancelled step."""
        if self._is_in_batch() and not self._step_is_cancelled:
            self.driver.finish_step()

    @guarded
    def after_batch(self, learn: Any) -> Cancels:
        if not self._is_in_batch():
            return None
        self.driver.finish_iteration()
        return self._cancels()


class FastaiSetting:
    """A hyperparameter of a fastai optimizer.

    Its value is the value of the last parameter group. A new learning rate scales the rates of the other groups in proportion.
    """

    def __init__(self, optimizer: Any, key: str, name: str) -> None:
        self._optimizer, self._key, self.name = optimizer, key, name

    def get_value(self) -> Any:
        return self._optimizer.hypers[-1][self._key]

    def set_value(self, value: Any) -> None:
        present = self.get_value()
        if self._key == "lr" and present:
            value = [value if group["lr"] == present else group["lr"] * value / present for group in self._optimizer.hypers]
        self._optimizer.set_hyper(self._key, value)


def _settings(optimizer: Any) -> list[FastaiSetting]:
    keys = [key for key, value in optimizer.hypers[-1].items() if isinstance(value, int | float)]
    return [FastaiSetting(optimizer, key, name) for key in keys for name in NAMES.get(key, (key,))]


def _recorded(learn: Any) -> dict[str, Any]:
    """Return the recorder's values for the current epoch so far. `final_record` still has the previous epoch's values."""
    recorder = getattr(learn, "recorder", None)
    if recorder is None:
        return {}
    pairs = zip(recorder.metric_names, recorder.log, strict=False)
    return {name: value for name, value in pairs if name not in ("epoch", "time") and isinstance(value, int | float)}
