"""BinaryClassificationStats: precision, recall and confusion counts."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from hookpoint.callbacks.inference._outputs import Source, check_source, outputs_of, read, targets_of, vector
from hookpoint.callbacks.inference._running_ratio import RunningRatio
from hookpoint.core.errors import BadArgument, BadValue
from hookpoint.core.run.run import Run

COUNTS = ("true_positives", "false_positives", "false_negatives", "true_negatives")


class BinaryClassificationStats:
    """Measure the precision, recall and confusion counts of a binary classifier over the dataset.

    `pred` and `label` are names of outputs, or functions of outputs and targets. By default, the outputs are the predictions,
    and the targets are the labels. A prediction above `threshold` is positive: 0.5 suits probabilities and predictions of 0 or
    1, and 0 suits logits. A label above 0.5 is positive. Logs `<prefix>_precision`, `_recall`, `_true_positives`,
    `_false_positives`, `_false_negatives` and `_true_negatives`. Precision is 0.0 if there are no positive predictions, and
    recall is 0.0 if there are no positive labels. Each update queues a few operations on the device and does not wait for them.

    >>> BinaryClassificationStats("is_fraud", prefix="fraud").names[:2]
    ('fraud_precision', 'fraud_recall')
    """

    def __init__(
        self, pred: Source | None = None, label: Source | None = None, prefix: str = "val", *, threshold: float = 0.5
    ) -> None:
        for name, source in (("pred", pred), ("label", label)):
            if source is not None:
                check_source("BinaryClassificationStats", name, source)
        if not isinstance(threshold, int | float) or math.isnan(threshold):
            raise BadArgument(f"BinaryClassificationStats: threshold must be a number, got {threshold!r}.")
        self.pred, self.label, self.threshold = pred, label, threshold
        self.names = tuple(f"{prefix}_{name}" if prefix else name for name in ("precision", "recall", *COUNTS))
        self.reset()

    def reset(self) -> None:
        self._counts: tuple[Any, ...] = (0, 0, 0, 0)

    def update(self, run: Run) -> None:
        reader = f"BinaryClassificationStats({self.names[0]})"
        predictions = outputs_of(reader, run) if self.pred is None else read(reader, run, self.pred)
        labels = targets_of(run) if self.label is None else read(reader, run, self.label)
        predicted, actual = vector(reader, "pred", predictions) > self.threshold, vector(reader, "label", labels) > 0.5
        if math.prod(predicted.shape) != math.prod(actual.shape):
            shapes = f"prediction shape {tuple(predicted.shape)} does not match label shape {tuple(actual.shape)}"
            raise BadValue(f"{reader}: {shapes}.", give="one prediction per label")
        predicted, actual = predicted.reshape(-1), actual.reshape(-1)
        pairs = ((predicted, actual), (predicted, ~actual), (~predicted, actual), (~predicted, ~actual))
        self._counts = tuple(count + (left & right).sum() for count, (left, right) in zip(self._counts, pairs, strict=True))

    def share(self, run: Run) -> None:
        self._counts = tuple(int(run.reduce(count)) for count in self._counts)

    def results(self, logged: Mapping[str, Any]) -> dict[str, Any]:
        hits, false_alarms, misses, _ = self._counts
        precision = RunningRatio(hits, hits + false_alarms, empty=0.0)
        recall = RunningRatio(hits, hits + misses, empty=0.0)
        return dict(zip(self.names, (precision, recall, *self._counts), strict=True))
