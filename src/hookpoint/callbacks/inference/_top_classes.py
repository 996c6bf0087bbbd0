"""Count misclassified samples from class scores and target classes."""

from __future__ import annotations

from typing import Any

from hookpoint.core.errors import BadValue


def wrong_in_top(reader: str, scores: Any, targets: Any, k: int) -> tuple[Any, Any]:
    """Return the number of samples whose class is not among the k highest scores, and the number of samples that count.

    Scores are (samples, classes), (samples, classes, ...) as criteria take them, or (..., classes). Targets are classes, or
    scores, of which the highest is the class. A sample with a negative target does not count, as criteria ignore it. A sample
    with a NaN score is wrong. Does not wait for a device.
    """
    if getattr(targets, "shape", None) is None or getattr(scores, "shape", None) is None:
        kinds = f"{type(scores).__name__} outputs and {type(targets).__name__} targets"
        raise BadValue(f"{reader}: cannot compare {kinds}.", give="tensors or arrays, or wrong=a function of the two")
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
        raise BadValue(
            f"{reader}: output shape {scores} does not match target shape {targets}.",
            give="scores of shape (samples, classes) and targets of shape (samples,)",
            write="or wrong=a function (outputs, targets) -> a vector of 0 and 1",
        )
    if k > scores[axis]:
        raise BadValue(f"{reader}: top {k} needs at least {k} classes, got {scores[axis]}.", use=f"'wrong-top{scores[axis]}'")
    return axis
