"""Landscape: the loss on a plane through the weights of a run."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple


class Stop(NamedTuple):
    """The position of the weights on the plane at a given step."""

    step: int
    x: float
    y: float


@dataclass(frozen=True)
class Landscape:
    """`loss[row][column]` is the loss at `y[row]`, `x[column]`; NaN where it is not finite.

    The final weights of the run are at (0, 0). `explained` contains two fractions: how much of the weights' total movement is
    along the x axis, and how much is along the y axis. `explained` is None if these fractions are unknown.
    """

    title: str
    x: list[float]
    y: list[float]
    loss: list[list[float]]
    path: list[Stop]
    directions: str
    explained: tuple[float, float] | None
    final_loss: float
