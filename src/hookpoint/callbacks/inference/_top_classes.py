"""Which samples are wrong, from the scores of classes and the classes they belong to."""

from __future__ import annotations

from typing import Any

from hookpoint.core.errors import BadValue


def wrong_in_top(reader: str, scores: Any, targets: Any, k: int) -> tuple[Any, Any]:
    """Return how many samples do not have their class among the k with the highest scores, and how many samples count.

    Scores are (samples, classes), (samples, classes, ...) as criteria take them, or (..., classes); targets are classes, or
    scores of their own, of which the highest is the class. A sample whose target is below zero does not count, as criteria
    ignore it; one with a score that is NaN is wrong. Neither waits for a device.
    """
    if getattr(targets, "shape", None) is None or getattr(scores, "shape", None) is None:
        what = f"{type(scores).__name__} and targets are {type(targets).__name__}"
        raise BadValue(f"{reader}: outputs are {what}.", give="tensors or arrays, or wrong=a function of the two")
    if not hasattr(scores, "topk"):
        return _wrong_in_numpy(reader, scores, targets, k)
    axis = _class_axis(reader, tuple(scores.shape), tuple(targets.shape), k)
    if targets.shape == scores.shape:
        targets = targets.float().argmax(axis)
    best = scores.topk(k, axis).indices
    wrong = (best != targets.unsqueeze(axis)).all(axis) | scores.isnan().any(axis)
    counts = targets >= 0
    return (wrong & counts).sum(), counts.sum()


def _wrong_in_numpy(reader: str, scores: Any, targets: Any, k: int) -> tuple[Any, Any]:
    import numpy

    scores, targets = numpy.asarray(scores), numpy.asarray(targets)
    axis = _class_axis(reader, scores.shape, targets.shape, k)
    if targets.shape == scores.shape:
        targets = targets.argmax(axis)
    best = numpy.take(numpy.argsort(-scores, axis=axis, kind="stable"), range(k), axis=axis)
    wrong = (best != numpy.expand_dims(targets, axis)).all(axis) | numpy.isnan(scores).any(axis)
    counts = targets >= 0
    return (wrong & counts).sum(), counts.sum()


def _class_axis(reader: str, scores: tuple[int, ...], targets: tuple[int, ...], k: int) -> int:
    """Return which dimension of the scores is that of the classes."""
    last = len(scores) - 1
    if last > 0 and targets in (scores, scores[:1] + scores[2:]):
        axis = 1
    elif last > 0 and targets == scores[:-1]:
        axis = last
    else:
        raise BadValue(
            f"{reader}: outputs of shape {scores} are no scores of classes for targets of shape {targets}.",
            give="scores of shape (samples, classes) and targets of shape (samples,)",
            write="or wrong=a function (outputs, targets) -> a vector of 0 and 1",
        )
    classes = scores[axis]
    if k > classes:
        raise BadValue(f"{reader}: there are no {k} best among {classes} classes.", ask=f"for 'wrong-top{classes}' at most")
    return axis
