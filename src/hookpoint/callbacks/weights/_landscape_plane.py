"""Plane: two directions in weight space, and a run's path projected onto the plane that they span."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from hookpoint.callbacks.weights._weight_snapshots import WeightSnapshots
from hookpoint.core.errors import BadArgument, BadLoop, BadValue
from hookpoint.core.text.terminal import few

PCA, RANDOM = "pca", "random"
Direction = Mapping[str, Any]  # a tensor for each parameter that the direction changes
Directions = str | tuple[Direction, Direction]
MIN_RATIO = 1e-12  # if the second variance is smaller than this fraction of the first, the weights moved along a line


@dataclass(frozen=True)
class Plane:
    """A plane in weight space. It contains the weights at the last step.

    `path` contains the coordinates of the weights at each step. `explained` is each direction's share of the variance.
    """

    directions: tuple[dict[str, Any], dict[str, Any]]
    path: list[tuple[float, float]]
    explained: tuple[float, float] | None = None


def check_directions(directions: Any) -> None:
    """Raise BadArgument unless `directions` is "pca", "random" or a pair of mappings."""
    if isinstance(directions, str) and directions in (PCA, RANDOM):
        return
    if isinstance(directions, tuple | list) and len(directions) == 2 and all(isinstance(one, Mapping) for one in directions):
        return
    write = 'directions="pca", "random", or a pair of dicts from parameter names to tensors'
    raise BadArgument(f"LossLandscape: directions must be 'pca', 'random' or a pair of dicts, got {directions!r}.", write=write)


def check_shapes(owner: str, directions: Directions, parameters: Mapping[str, Any]) -> None:
    """Raise BadLoop if a direction has an unknown parameter name, or a tensor with a different shape than its parameter."""
    for number, direction in enumerate(directions if not isinstance(directions, str) else (), 1):
        for name, tensor in direction.items():
            if name not in parameters:
                what = f"{owner}: direction {number} contains {name!r}, which is not a parameter."
                raise BadLoop(what, known=few(list(parameters), 8))
            if tuple(tensor.shape) != tuple(parameters[name].shape):
                shapes = f"{tuple(tensor.shape)}; the parameter has shape {tuple(parameters[name].shape)}"
                raise BadLoop(f"{owner}: {name!r} in direction {number} has shape {shapes}.")


def plane_of(snapshots: WeightSnapshots, steps: Sequence[int], directions: Directions, seed: int) -> Plane:
    """Return a plane that contains the weights at the last step. `directions` determines which plane is returned."""
    if not isinstance(directions, str):
        return _given(snapshots, steps, directions)
    if directions == PCA:
        return _principal(snapshots, steps)
    last = snapshots.read(steps[-1])
    return _given(snapshots, steps, (_random(last, 2 * seed), _random(last, 2 * seed + 1)))


def _principal(snapshots: WeightSnapshots, steps: Sequence[int]) -> Plane:
    """Return the plane that is spanned by the two directions in which the weights moved most.

    Subtract the weights at the last step from the weights at each earlier step. The directions are the principal components of
    these differences.
    """
    import torch

    if len(steps) < 3:
        raise BadLoop(
            f"LossLandscape: finding two directions takes weights from at least 3 steps, got {len(steps)}.",
            collect="weights more often, as in .when(Every(steps=100))",
            give='directions="random"',
        )
    products = torch.zeros(len(steps) - 1, len(steps) - 1, dtype=torch.float64)
    for _, _, values in snapshots.chunks(steps):
        moved = values[:-1] - values[-1]
        products += moved @ moved.T
    if not products.isfinite().all():
        raise BadValue("LossLandscape: some collected weights are NaN or infinite.", add="CheckNumerics, which detects this")
    variances, vectors = torch.linalg.eigh(products)
    first, second = float(variances[-1]), float(variances[-2])
    if second <= MIN_RATIO * first:
        raise BadLoop(
            "LossLandscape: the weights moved along a line or not at all, so there is no second direction.",
            collect="weights more often, as in .when(Every(steps=100))",
            give='directions="random"',
        )
    chosen = torch.stack([vectors[:, -1], vectors[:, -2]])
    chosen = torch.where(chosen[:, :1] > 0, -chosen, chosen)  # choose the signs so that the path begins at the lower left
    lengths = torch.tensor([first, second], dtype=torch.float64).sqrt()
    parts: dict[str, list[Any]] = {}
    for name, _, values in snapshots.chunks(steps):
        parts.setdefault(name, []).append((chosen @ (values[:-1] - values[-1]) / lengths[:, None]).float())
    shapes = {name: tensor.shape for name, tensor in snapshots.read(steps[-1]).items()}
    flat = {name: torch.cat(pieces, dim=1) for name, pieces in parts.items()}
    u, v = ({name: rows[number].reshape(shapes[name]) for name, rows in flat.items()} for number in (0, 1))
    coordinates = (chosen * lengths[:, None]).T.tolist()
    total = float(variances.clamp(min=0).sum())
    return Plane((u, v), [(x, y) for x, y in coordinates] + [(0.0, 0.0)], (first / total, second / total))


def _given(snapshots: WeightSnapshots, steps: Sequence[int], directions: Sequence[Direction]) -> Plane:
    """Return the plane that two directions span, with the weights at each step projected onto this plane."""
    import torch

    u, v = ({name: tensor.detach().cpu().float() for name, tensor in direction.items()} for direction in directions)
    shadows, squares = torch.zeros(2, len(steps), dtype=torch.float64), torch.zeros(2, 2, dtype=torch.float64)
    for name, piece, values in snapshots.chunks(steps):
        zeros = torch.zeros(piece.stop - piece.start, dtype=torch.float64)
        both = torch.stack([d[name].reshape(-1)[piece].double() if name in d else zeros for d in (u, v)])
        shadows += both @ (values - values[-1]).T
        squares += both @ both.T
    if not float(torch.linalg.det(squares)) > MIN_RATIO * float(squares.diagonal().prod()):
        raise BadLoop("LossLandscape: the two directions are zero, parallel or not finite.", give="two different directions")
    path = torch.linalg.solve(squares, shadows).T.tolist()
    return Plane((u, v), [(x, y) for x, y in path])


def _random(weights: Direction, seed: int) -> dict[str, Any]:
    """Return a random direction whose filters have the same norms as the weights' filters.

    The direction does not change vectors such as biases.
    """
    import torch

    generator = torch.Generator().manual_seed(seed)
    direction = {}
    for name, tensor in weights.items():
        if tensor.ndim > 1:
            noise = torch.randn(tensor.shape, generator=generator)
            dims = tuple(range(1, tensor.ndim))
            lengths = noise.norm(dim=dims, keepdim=True).clamp(min=1e-10)
            direction[name] = noise / lengths * tensor.float().norm(dim=dims, keepdim=True)
    return direction
