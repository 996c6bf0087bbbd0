"""BinaryClassificationStats: precision, recall, and what they are made of."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from hookpoint.callbacks._shared.outputs import Source, outputs_of, read, targets_of, vector
from hookpoint.callbacks.inference._running_ratio import Ratio
from hookpoint.core.errors import BadValue
from hookpoint.core.run.run import Run

COUNTS = ("true_positives", "false_positives", "false_negatives", "true_negatives")


class BinaryClassificationStats:
    """Measure precision and recall of a yes or no over the data set, and count hits and misses.

    `pred` and `label` are names of outputs, or functions of outputs and targets; without them the outputs themselves are the
    predictions and the targets the labels. A prediction above `threshold` is a yes: 0.5 suits 0 and 1, and probabilities;
    logits want 0. A label is a yes above 0.5. Logged are `<prefix>_precision`, `_recall`, `_true_positives`,
    `_false_positives`, `_false_negatives` and `_true_negatives`. Without any yes among the predictions precision is 0.0,
    without any among the labels recall is 0.0. A batch costs a few operations on its device, and no wait.

    >>> BinaryClassificationStats("is_fraud", prefix="fraud").names[:2]
    ('fraud_precision', 'fraud_recall')
    """

    def __init__(
        self, pred: Source | None = None, label: Source | None = None, prefix: str = "val", *, threshold: float = 0.5
    ) -> None:
        for name, source in (("pred", pred), ("label", label)):
            if source is not None and not callable(source) and not isinstance(source, str):
                raise TypeError(
                    f"BinaryClassificationStats({name}=...) takes a name or a function (outputs, targets); got {source!r}"
                )
        if not isinstance(threshold, int | float) or math.isnan(threshold):
            raise ValueError(f"BinaryClassificationStats(threshold=...) takes a number; got {threshold!r}")
        self.pred, self.label, self.threshold = pred, label, threshold
        self.names = tuple(f"{prefix}_{name}" if prefix else name for name in ("precision", "recall", *COUNTS))
        self.reset()

    def reset(self) -> None:
        self._counts: tuple[Any, ...] = (0, 0, 0, 0)

    def update(self, run: Run) -> None:
        who = f"BinaryClassificationStats({self.names[0]})"
        given = outputs_of(who, run) if self.pred is None else read(who, run, self.pred)
        wanted = targets_of(run) if self.label is None else read(who, run, self.label)
        yes, is_yes = vector(who, "pred", given) > self.threshold, vector(who, "label", wanted) > 0.5
        if math.prod(yes.shape) != math.prod(is_yes.shape):
            raise BadValue(
                f"{who}: predictions of shape {tuple(yes.shape)} are none for labels of shape {tuple(is_yes.shape)}.",
                give="one prediction for each label",
            )
        yes, is_yes = yes.reshape(-1), is_yes.reshape(-1)
        new = ((yes & is_yes).sum(), (yes & ~is_yes).sum(), (~yes & is_yes).sum(), (~yes & ~is_yes).sum())
        self._counts = tuple(old + more for old, more in zip(self._counts, new, strict=True))

    def share(self, run: Run) -> None:
        self._counts = tuple(int(run.reduce(count)) for count in self._counts)

    def results(self, logged: Mapping[str, Any]) -> dict[str, Any]:
        hits, false_alarms, misses, _ = self._counts
        precision = Ratio(hits, hits + false_alarms, empty=0.0)
        recall = Ratio(hits, hits + misses, empty=0.0)
        return dict(zip(self.names, (precision, recall, *self._counts), strict=True))
