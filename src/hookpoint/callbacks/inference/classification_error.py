"""ClassificationError: the fraction of misclassified samples in a dataset."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Any

from hookpoint.callbacks.inference._outputs import Source, check_source, outputs_of, read, targets_of, vector
from hookpoint.callbacks.inference._running_ratio import RunningRatio
from hookpoint.core.errors import BadArgument, BadValue
from hookpoint.core.fields import named_fields
from hookpoint.core.run.run import Run

TOP = re.compile(r"wrong-top([1-9]\d*)")


class ClassificationError:
    """Measure the fraction of misclassified samples over the dataset. The result is exact, whatever the batch sizes.

    `wrong` defines which samples are wrong. With "wrong-top1", "wrong-top5" and so on, the outputs are scores, which are
    compared with the targets. If the outputs have names, the output "logits" contains the scores. Samples with a negative
    target do not count, because a negative target, such as torch's `ignore_index=-100`, marks a sample to ignore. Samples with
    a NaN score are wrong. If `wrong` is any other string, it is the name of an output. If `wrong` is a function, it is called
    with the outputs and the targets. The named output, or the function's result, is a vector that contains 0 for each correct
    sample. If an output has the name "wrong-top1", that output is used instead of the scores. Each update queues a few
    operations on the device and does not wait for them.

    >>> ClassificationError("wrong-top5", "val-error-top5").names
    ('val-error-top5',)
    """

    def __init__(self, wrong: Source = "wrong-top1", summary_name: str = "validation_error") -> None:
        check_source("ClassificationError", "wrong", wrong)
        if isinstance(wrong, str) and wrong.startswith("wrong-top") and not TOP.fullmatch(wrong):
            raise BadArgument(
                f"ClassificationError: wrong={wrong!r} must have an integer >= 1 after 'wrong-top'.",
                write="'wrong-top1', 'wrong-top5', ...",
            )
        self.wrong = wrong
        self.names = (summary_name,)
        self.reset()

    def reset(self) -> None:
        self._error = RunningRatio()

    def update(self, run: Run) -> None:
        reader, wrong = f"ClassificationError({self.names[0]})", self.wrong
        top = TOP.fullmatch(wrong) if isinstance(wrong, str) else None
        outputs = outputs_of(reader, run)
        if top is not None and wrong not in (fields := named_fields(outputs)):
            scores = read(reader, run, "logits") if fields else outputs
            self._error.add(*wrong_in_top(reader, scores, targets_of(run), int(top[1])))
        else:
            is_wrong = vector(reader, "wrong", read(reader, run, wrong))
            self._error.add((is_wrong != 0).sum(), math.prod(is_wrong.shape))

    def share(self, run: Run) -> None:
        self._error.share(run)

    def results(self, logged: Mapping[str, Any]) -> dict[str, Any]:
        return {self.names[0]: self._error}


def wrong_in_top(reader: str, scores: Any, targets: Any, k: int) -> tuple[Any, Any]:
    """Return the number of samples whose class is not among the k highest scores, and the number of samples that count.

    Scores have shape (samples, classes), (samples, classes, ...) as for torch's loss functions, or (..., classes). Targets are
    class indices, or scores whose highest entry marks the class. A sample with a negative target does not count, because a
    negative target, such as torch's `ignore_index=-100`, marks a sample to ignore. A sample with a NaN score is wrong. Does not
    wait for a device.
    """
    if getattr(targets, "shape", None) is None or getattr(scores, "shape", None) is None:
        kinds = f"{type(scores).__name__} outputs and {type(targets).__name__} targets"
        raise BadValue(
            f"{reader}: cannot compare {kinds}.",
            give="tensors or arrays, or wrong=a function (outputs, targets) -> a vector of 0 and 1",
        )
    is_tensor = hasattr(scores, "topk")
    if not is_tensor:
        import numpy

        scores, targets = numpy.asarray(scores), numpy.asarray(targets)
    axis = _class_axis(reader, tuple(scores.shape), tuple(targets.shape), k)
    if targets.shape == scores.shape:
        targets = (targets.float() if is_tensor else targets).argmax(axis)
    if is_tensor:
        best, expected, is_nan = scores.topk(k, axis).indices, targets.unsqueeze(axis), scores.isnan()
    else:
        best = numpy.take(numpy.argsort(-scores, axis=axis, kind="stable"), range(k), axis=axis)
        expected, is_nan = numpy.expand_dims(targets, axis), numpy.isnan(scores)
    wrong = (best != expected).all(axis) | is_nan.any(axis)
    counts = targets >= 0
    return (wrong & counts).sum(), counts.sum()


def _class_axis(reader: str, scores: tuple[int, ...], targets: tuple[int, ...], k: int) -> int:
    """Return the dimension of the scores that holds the classes."""
    last = len(scores) - 1
    if last > 0 and targets in (scores, scores[:1] + scores[2:]):
        axis = 1
    elif last > 0 and targets == scores[:-1]:
        axis = last
    else:
        give = "scores of shape (samples, classes) and targets of shape (samples,)"
        write = "or wrong=a function (outputs, targets) -> a vector of 0 and 1"
        raise BadValue(f"{reader}: output shape {scores} does not match target shape {targets}.", give=give, write=write)
    if k > scores[axis]:
        raise BadValue(f"{reader}: top {k} needs at least {k} classes, got {scores[axis]}.", use=f"'wrong-top{scores[axis]}'")
    return axis
