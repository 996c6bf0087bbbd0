"""ReduceLROnPlateau: a lower learning rate when a metric no longer gets better."""

from __future__ import annotations

from typing import Any, Unpack

from hookpoint.callbacks._shared.arguments import is_relative, number, whole
from hookpoint.callbacks._shared.metric_watcher import MetricWatcher
from hookpoint.callbacks._shared.setting import Setting
from hookpoint.callbacks.hyper_params._plateau import Plateau
from hookpoint.core.callback.callback import Options
from hookpoint.core.errors import BadArgument
from hookpoint.core.log.best import mode_of
from hookpoint.core.run.hyper import HyperParam
from hookpoint.core.run.run import Run
from hookpoint.core.schedule.moment import Moment
from hookpoint.core.text.terminal import say


class ReduceLROnPlateau(MetricWatcher):
    """Multiply the learning rate by `factor` when a metric has not got better for `patience` values, down to `min_lr`.

    Better is better by more than `min_delta`, or with `min_delta_mode="rel"` by more than that share of the best, as torch's
    `threshold_mode`; `mode` is "min", "max", or "auto", which goes by the metric's name. After a reduction `cooldown` values
    do not count. The rate, and `min_lr`, are those of the first parameter group; the others, of every optimizer, keep their
    ratios to it. The rates are those of Keras; unlike there, NaN is never the best, an epoch without a new value does not
    count, and a missing metric is an error. With `verbose=1` each reduction is printed.
    `param` may be another setting, such as "lr@critic".

    Triggered at the end of each complete epoch, unless `.when(...)` says otherwise; at on_epoch_end logs `learning_rate` where
    nobody else has. Reads `monitor`, sends the event "setting". Keeps the best value and what it has counted in the checkpoint.
    Runs on all ranks. A step pays nothing.

    With a step schedule it looks at the mean of what was logged since it last looked; a
    step that logs the metric pays for an addition then.

    >>> reduce_lr = ReduceLROnPlateau(monitor="val_loss", factor=0.2, patience=5, min_lr=0.001)
    >>> reduce_lr.name
    'ReduceLROnPlateau(val_loss)'
    """

    def __init__(
        self,
        monitor: str = "val_loss",
        factor: float = 0.1,
        patience: int = 10,
        *,
        mode: str = "auto",
        min_delta: float = 1e-4,
        min_delta_mode: str = "abs",
        cooldown: int = 0,
        min_lr: float = 0.0,
        verbose: int = 0,
        param: str | HyperParam = "learning_rate",
        **options: Unpack[Options],
    ) -> None:
        super().__init__(monitor, **options)
        if not 0 < number("ReduceLROnPlateau", "factor", factor) < 1:
            raise BadArgument(f"ReduceLROnPlateau(factor={factor!r}) reduces nothing.", give="a number above 0 and below 1")
        self.factor = factor
        self.min_lr = number("ReduceLROnPlateau", "min_lr", min_lr, least=0.0)
        self.verbose = verbose
        self.setting = Setting(param)
        self.may_write = (self.setting.name,)
        self._plateau = Plateau(
            mode_of(monitor, mode),
            patience=whole("ReduceLROnPlateau", "patience", patience),
            min_delta=number("ReduceLROnPlateau", "min_delta", min_delta, least=0.0),
            relative=is_relative("ReduceLROnPlateau", min_delta_mode),
            cooldown=whole("ReduceLROnPlateau", "cooldown", cooldown),
        )

    def on_run_begin(self, run: Run) -> None:
        self.setting.begin(run, self.name or "")
        super().on_run_begin(run)

    def on_epoch_end(self, run: Run) -> None:
        self.setting.log(run)
        super().on_epoch_end(run)

    def take(self, run: Run, moment: Moment, value: float) -> None:
        if self._plateau.take(value, moment) and self.setting.adjust(run, self._reduced):
            self._plateau.start_cooling()
            if self.verbose:
                say(f"epoch {run.epoch}: {self.name} reduces {self.setting.name} to {self.setting.value(run):g}")

    def _reduced(self, rate: float) -> float:
        return max(rate * self.factor, self.min_lr) if rate > self.min_lr else rate

    def reset(self) -> None:
        super().reset()
        self._plateau.reset()

    def state_dict(self) -> dict[str, Any]:
        return {**super().state_dict(), **self._plateau.state_dict(), "setting": self.setting.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        self._plateau.load_state_dict(state)
        self.setting.load_state_dict(state["setting"])
