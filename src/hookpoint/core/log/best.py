"""Best: track the best value of a metric."""

from __future__ import annotations

import math
import re
from typing import Any, Literal, cast

from hookpoint.core.errors import BadArgument
from hookpoint.core.schedule.moment import Moment

Mode = Literal["min", "max"]

LOWER_IS_BETTER = {"cer", "err", "error", "loss", "mae", "mape", "mse", "nll", "perplexity", "ppl", "rmse", "wer", "wrong"}
HIGHER_IS_BETTER = set("acc accuracy auc auroc bleu dice f1 iou map miou precision psnr recall".split())  # noqa: SIM905

# Names with only these words, such as "val_acc" and "val-error-top1", are unambiguous. "neg_loss" and "acc_drop" are not.
CLEAR = {"acc", "accuracy", "error", "loss"}
PREFIXES = {"eval", "test", "top", "train", "val", "valid", "validation"}


class Best:
    """Track the best value so far, and its step or moment.

    A new best value must be strictly better than the previous best, by more than `min_delta` if it is given.

    With `relative`, `min_delta` is a fraction of the value to beat: 0.01 means one percent.

    The first value that is not NaN becomes the best, even if it is infinite. With a `threshold`, the first best value must
    beat the threshold. NaN is never better.

    >>> best = Best("min")
    >>> [best.take(value, step) for step, value in enumerate([float("nan"), 0.5, 0.5, 0.0, 0.1])]
    [False, True, False, True, False]
    >>> best.value, best.step
    (0.0, 3)
    """

    def __init__(
        self, mode: Mode = "min", *, min_delta: float = 0.0, threshold: float | None = None, relative: bool = False
    ) -> None:
        if mode not in ("min", "max"):
            raise BadArgument(f"mode must be 'min' or 'max', got {mode!r}.")
        if not min_delta >= 0:
            raise BadArgument(f"min_delta must be a number >= 0, got {min_delta!r}.")
        self.mode, self.min_delta, self.relative, self.threshold = mode, min_delta, relative, threshold
        self.reset()

    def reset(self) -> None:
        """Forget the best value."""
        self.value: float | None = None
        self.step: int | None = None
        self.moment: Moment | None = None

    def is_beaten_by(self, value: float) -> bool:
        """Return whether a value would be a new best, without storing it."""
        to_beat = self.threshold if self.value is None else self.value
        if to_beat is None:
            return not math.isnan(value)
        scale = abs(to_beat) if self.relative and math.isfinite(to_beat) else 1.0
        margin = self.min_delta * scale
        return value < to_beat - margin if self.mode == "min" else value > to_beat + margin

    def take(self, value: float, at: Moment | int) -> bool:
        """Add a value with its moment or step. Return whether it is the new best."""
        is_better = self.is_beaten_by(value)
        if is_better:
            self.value = value
            self.moment, self.step = (at, at.step) if isinstance(at, Moment) else (None, at)
        return is_better

    def state_dict(self) -> dict[str, Any]:
        return {"value": self.value, "step": self.step, "moment": None if self.moment is None else list(self.moment)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        moment = state.get("moment")
        self.value, self.step, self.moment = state["value"], state["step"], None if moment is None else Moment(*moment)


def mode_of(metric: str, mode: str) -> Mode:
    """Return whether lower ("min") or higher ("max") values are better. "auto" infers this from the metric's name.

    >>> mode_of("val-error-top1", "auto"), mode_of("val_acc", "auto")
    ('min', 'max')
    """
    if mode in ("min", "max"):
        return cast(Mode, mode)
    if mode != "auto":
        raise BadArgument(f"mode must be 'auto', 'min' or 'max', got {mode!r}.")
    words = set(re.findall(r"f1|[a-z]+", metric.lower()))
    if bool(words & LOWER_IS_BETTER) == bool(words & HIGHER_IS_BETTER):
        raise BadArgument(f"mode='auto': the name '{metric}' is ambiguous.", write="mode='min' or mode='max'")
    return "min" if words & LOWER_IS_BETTER else "max"


def clear_mode_of(metric: str) -> Mode | None:
    """Return the mode of an accuracy, an error or a loss. Return None for any other name, even if `mode_of` infers a mode.

    >>> clear_mode_of("val_acc"), clear_mode_of("neg_loss"), clear_mode_of("val/SMA")
    ('max', None, None)
    """
    words = set(re.findall("[a-z]+", metric.lower())) - PREFIXES
    if not words or not words <= CLEAR or (words & LOWER_IS_BETTER and words & HIGHER_IS_BETTER):
        return None
    return mode_of(metric, "auto")
