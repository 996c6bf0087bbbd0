"""ReduceLROnPlateau: lower the learning rate when a metric no longer improves."""

from __future__ import annotations

from typing import Any, ClassVar, Unpack

from hookpoint.callbacks._shared.arguments import choice, integer, number
from hookpoint.callbacks._shared.setting import Setting
from hookpoint.callbacks.hyper_params._hyper_param_setter import MetricParamSetter
from hookpoint.core.callback.callback import Options
from hookpoint.core.callback.knob import Knob
from hookpoint.core.errors import BadArgument
from hookpoint.core.log.best import Best, Mode, mode_of
from hookpoint.core.run.hyper import HyperParam
from hookpoint.core.run.run import Run
from hookpoint.core.schedule.moment import Moment
from hookpoint.core.text.terminal import say


class ReduceLROnPlateau(MetricParamSetter):
    """Multiply the learning rate by `factor` when a metric stops improving.

        monitor: Name of the metric. Raises if the metric is missing.
        factor: Number between 0 and 1.
        patience: Number of values without improvement before a reduction.
        mode: "min", "max", or "auto", which infers it from the metric's name.
        min_delta: Smallest change that counts as an improvement.
        min_delta_mode: "abs", or "rel" for a `min_delta` relative to the best value, like torch's `threshold_mode`.
        cooldown: Number of values that do not count towards `patience` after a reduction. As in Keras, the value that causes
            the reduction is the first of them.
        min_lr: Lower bound for the rate.
        verbose: 1 prints each reduction.
        param: Name of another setting to change instead, such as "lr@critic".

    The rate and `min_lr` refer to the first parameter group. All other groups, including those of other optimizers, keep their
    ratios to it. The resulting rates are the same as in Keras. Unlike in Keras, NaN is never the best value, and an epoch
    without a new value does not count. With a step schedule, a value is the mean of the values logged since the last trigger.

    Reads `monitor` and sends the event "setting". Logs `learning_rate` at on_epoch_end unless it is already logged.

    >>> reduce_lr = ReduceLROnPlateau(monitor="val_loss", factor=0.2, patience=5, min_lr=0.001)
    >>> reduce_lr.name
    'ReduceLROnPlateau(val_loss)'
    """

    knobs = (
        Knob("patience", int, low=0, about="values without improvement before a reduction"),
        Knob("factor", float, low=0.0, high=1.0, about="factor by which the rate is multiplied"),
        Knob("min_lr", float, low=0.0, about="lower bound for the rate"),
    )
    keeps: ClassVar[str] = "the best value, and the counts towards patience and cooldown"

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
        super().__init__(monitor, Setting(param), **options)
        self.factor = factor
        self.min_lr = number("ReduceLROnPlateau", "min_lr", min_lr, least=0.0)
        self.verbose = verbose
        self.may_write = (self.setting.name,)
        self._plateau = self._decision = Plateau(
            mode_of(monitor, mode),
            patience=integer("ReduceLROnPlateau", "patience", patience),
            min_delta=number("ReduceLROnPlateau", "min_delta", min_delta, least=0.0),
            relative=choice("ReduceLROnPlateau", "min_delta_mode", min_delta_mode, ("abs", "rel")) == "rel",
            cooldown=integer("ReduceLROnPlateau", "cooldown", cooldown),
        )

    @property
    def factor(self) -> float:
        """The factor by which the rate is multiplied."""
        return self._factor

    @factor.setter
    def factor(self, factor: float) -> None:
        if not 0 < number("ReduceLROnPlateau", "factor", factor) < 1:
            raise BadArgument(f"ReduceLROnPlateau: factor must be between 0 and 1, got {factor!r}.")
        self._factor = factor

    @property
    def patience(self) -> int:
        """The number of values without improvement before a reduction."""
        return self._plateau.patience

    @patience.setter
    def patience(self, number: int) -> None:
        self._plateau.patience = integer("ReduceLROnPlateau", "patience", number)

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


class Plateau:
    """Count the values since the best one, up to `patience`. After a reduction, skip `cooldown` values before counting again.

    As in Keras, the value that causes the reduction is the first of the skipped values.

    >>> plateau = Plateau("min", patience=2)
    >>> [plateau.take(value, step) for step, value in enumerate([3.0, 2.0, 2.0, 2.0])]
    [False, False, False, True]
    """

    def __init__(self, mode: Mode, *, patience: int, min_delta: float = 0.0, relative: bool = False, cooldown: int = 0) -> None:
        self.best = Best(mode, min_delta=min_delta, relative=relative)
        self.patience = patience
        self.cooldown = cooldown
        self.reset()

    def reset(self) -> None:
        """Forget the best value, and start counting from 0 again."""
        self.best.reset()
        self.waited = self.cools_for = 0

    def take(self, value: float, at: Moment | int) -> bool:
        """Add a value; return whether to reduce the setting now.

        Call `start_cooling` after a reduction. Otherwise, `take` returns True again for the next value without improvement.
        """
        if self.cools_for:
            self.cools_for -= 1
            self.waited = 0
        if self.best.take(value, at):
            self.waited = 0
        elif not self.cools_for:
            self.waited += 1
            return self.waited >= self.patience
        return False

    def start_cooling(self) -> None:
        self.cools_for, self.waited = self.cooldown, 0

    def state_dict(self) -> dict[str, Any]:
        return {"best": self.best.state_dict(), "waited": self.waited, "cools_for": self.cools_for}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.best.load_state_dict(state["best"])
        self.waited, self.cools_for = state["waited"], state["cools_for"]
