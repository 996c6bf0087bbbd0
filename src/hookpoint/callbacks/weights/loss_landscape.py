"""LossLandscape: the loss on a plane through the weights of a run."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable, Sequence
from itertools import islice
from pathlib import Path
from time import monotonic
from typing import Any, Unpack

from hookpoint.callbacks._shared.arguments import function, integer, misfit, number
from hookpoint.callbacks._shared.sharded_tensors import is_replicated
from hookpoint.callbacks._shared.workdir import require_workdir
from hookpoint.callbacks.weights._landscape_grid import Loss, loss_on_plane, same_randomness
from hookpoint.callbacks.weights._landscape_plane import PCA, Directions, Plane, check_directions, check_shapes, plane_of
from hookpoint.callbacks.weights._weight_snapshots import WeightSnapshots
from hookpoint.core.callback.callback import Callback, Options
from hookpoint.core.checkpoint.stateful import named_parameters
from hookpoint.core.data.array_batches import AUTO, BatchSize, as_batches
from hookpoint.core.errors import BadArgument, BadData, BadLoop, BadValue
from hookpoint.core.logger import logger
from hookpoint.core.loop.services import machine_of
from hookpoint.core.run.run import Run
from hookpoint.core.text.terminal import say
from hookpoint.storage.checkpoint.layout import LANDSCAPE, LANDSCAPE_FILE
from hookpoint.storage.disk import disk

FORMAT = 1
PROGRESS_SECONDS = 5.0  # time between two lines of progress output
MAX_SIZE = 501


class LossLandscape(Callback):
    """Collect the weights during a run, and evaluate the loss on a plane through them when the run ends.

        data: Batches, or a tuple of arrays with `batch_size`. They are read once, when the evaluation begins.
        loss: Function of the model and a batch that returns the loss. By default, `criterion(model(inputs), targets)`.
        directions: "pca" for the two directions in which the weights moved most, "random" for two random,
            filter-normalized directions, or a pair of dicts from parameter names to tensors.
        size: The grid has `size` x `size` points. The loss is computed at each of them, over all batches.
        margin: How far the grid extends beyond the path of the weights, relative to the path's extent.
        max_batches: Number of batches to use; None for all.
        max_snapshots: Maximum number of stored snapshots of the weights. When there are more, every second snapshot is removed,
            and from then on snapshots are taken half as often.
        evaluate_at_end: If False, only collect the weights; call `evaluate` later.
        seed: Seed for random directions.

    `hookpoint plot --landscape` draws the result, `landscape/landscape.json`. The weights are written to files in the folder
    `landscape` when the run begins, when the callback is triggered (by default at the end of each epoch) and when the run ends.
    A resumed run keeps the files that were written before its checkpoint, and removes the newer files. The files are not
    encrypted, so LossLandscape raises in a run with `checkpoint_key`.

    The evaluation takes place after the last checkpoint, in eval mode without gradients, and prints its progress. Weights,
    buffers, modes and random number generators are restored afterwards. Buffers, such as batch norm statistics, have the same
    values at each point of the grid. If the run ends with an exception or a signal, there is no evaluation. Ctrl-C ends an
    evaluation in progress. If the evaluation fails, the run still succeeds: the error is logged, and you can call `evaluate`
    later. The evaluation needs memory for four copies of the weights.

    Raises if the model is split over ranks. Otherwise, the chief collects and evaluates its own weights.

    >>> landscape = LossLandscape([([[1.0]], [[0.0]])], size=11).when(Every(epochs=2))
    """

    ranks = "chief"
    keeps = "which weights have been collected; the weights themselves are in the folder `landscape`"
    step_cost = "nothing; a trigger writes the weights and waits until they are on disk"
    is_internal = True  # reports of callback costs omit this callback

    def __init__(
        self,
        data: Any,
        loss: Loss | None = None,
        *,
        directions: Directions = PCA,
        size: int = 21,
        margin: float = 0.25,
        batch_size: BatchSize = AUTO,
        max_batches: int | None = 32,
        max_snapshots: int = 30,
        evaluate_at_end: bool = True,
        seed: int = 0,
        **options: Unpack[Options],
    ) -> None:
        super().__init__(**options)
        self.data = as_batches(data, batch_size)
        self.loss = function("LossLandscape", "loss", loss, or_none=True, write="lambda model, batch: ...")
        if loss is not None and (problem := misfit(loss, None, None)):
            write = "lambda model, batch: ..."
            raise BadArgument(f"LossLandscape: loss must take a model and a batch: {problem}.", write=write)
        check_directions(directions)
        self.directions = directions
        self.size = integer("LossLandscape", "size", size, least=3)
        if size > MAX_SIZE:
            raise BadArgument(f"LossLandscape: size must be at most {MAX_SIZE}, got {size}.")
        self.margin = number("LossLandscape", "margin", margin, least=0.0)
        self.max_batches = None if max_batches is None else integer("LossLandscape", "max_batches", max_batches, least=1)
        self.max_snapshots = integer("LossLandscape", "max_snapshots", max_snapshots, least=4)
        self.evaluates_at_end, self.seed = evaluate_at_end, integer("LossLandscape", "seed", seed)
        self._snapshots: WeightSnapshots | None = None
        self._ended: Run | None = None
        self._reset()

    def _reset(self) -> None:
        self._collected: list[tuple[int, int]] = []  # the step and epoch of each snapshot
        self._seen, self._stride = 0, 1
        self._missing: list[int] = []  # steps whose snapshots were missing when the run resumed
        self._removable: set[int] = set()  # steps whose snapshots the next checkpoint does not need
        self._removable_after_save: set[int] = set()

    @property
    def _owner(self) -> str:
        return self.name or "LossLandscape"

    # Collecting

    def on_setup(self, run: Run) -> None:
        owner = self._owner
        require_workdir(owner, run)
        parameters = dict(named_parameters(run.model))
        if not parameters and not run.team.has_stages:
            raise BadLoop(f"{owner} needs a model with parameters.", give="model=..., a torch.nn.Module")
        split = [name for name, parameter in parameters.items() if not is_replicated(parameter)]
        if split or run.team.has_stages:
            where = f" ({split[0]})" if split else ""
            raise BadLoop(f"{owner}: the model is split over ranks{where}.", drop="LossLandscape")
        if self.loss is None and self.evaluates_at_end and run.criterion is None:
            raise BadLoop(f"{owner} cannot compute a loss.", give="criterion= to the run, or LossLandscape(data, loss=...)")
        if getattr(machine_of(run).saving.store, "key_fingerprint", None) is not None:
            why = f"{owner} stores weights that are not encrypted, but this run encrypts its checkpoints."
            raise BadLoop(why, drop="LossLandscape, or checkpoint_key")
        check_shapes(owner, self.directions, parameters)

    def on_run_begin(self, run: Run) -> None:
        self._snapshots, self._ended = WeightSnapshots(Path(run.workdir) / LANDSCAPE), None
        self._reset()
        if not run.resuming:
            self._snapshots.remove_all_but([])
            self._collect(run)

    def on_trigger(self, run: Run) -> None:
        self._seen += 1
        if self._seen % self._stride == 0:
            self._collect(run)

    def on_save(self) -> None:
        self._remove(self._removable_after_save)

    def on_run_end(self, run: Run) -> None:
        self._ended = run

    def state_dict(self) -> dict[str, Any]:
        self._removable_after_save = set(self._removable)
        return {"collected": [list(pair) for pair in self._collected], "seen": self._seen, "stride": self._stride}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._collected = [(step, epoch) for step, epoch in state["collected"]]
        self._seen, self._stride = state["seen"], state["stride"]
        if self._snapshots is not None:
            existing = set(self._snapshots.steps())
            missing = [step for step, _ in self._collected if step not in existing]
            if missing and missing != self._missing:
                line = "%s: %d of %d snapshots of the weights are missing from %s; the remaining snapshots are used"
                logger.warning(line, self._owner, len(missing), len(self._collected), self._snapshots.folder)
            self._missing = missing
            self._collected = [pair for pair in self._collected if pair[0] in existing]
            self._snapshots.remove_all_but([step for step, _ in self._collected])

    def _collect(self, run: Run) -> None:
        assert self._snapshots is not None
        if self._collected and self._collected[-1][0] >= run.step:
            return
        weights = {name: tensor.detach() for name, tensor in named_parameters(run.model) if tensor.is_floating_point()}
        try:
            self._snapshots.write(run.step, weights)
        except OSError as error:
            logger.warning("%s could not store the weights at step %d: %s; the run continues", self._owner, run.step, error)
            return
        for steps in (self._removable, self._removable_after_save):
            steps.discard(run.step)
        self._collected.append((run.step, run.epoch))
        if len(self._collected) > self.max_snapshots:
            kept = self._collected[::2]  # the first snapshot, and every second snapshot after it
            self._removable |= {step for step, _ in self._collected} - {step for step, _ in kept}
            self._collected, self._stride = kept, self._stride * 2
            if not machine_of(run).saving.saves:
                self._remove(self._removable)

    def _remove(self, steps: set[int]) -> None:
        assert self._snapshots is not None
        for step in sorted(steps):
            self._removable.discard(step)
            try:
                disk.remove(self._snapshots.path(step))
            except OSError as error:
                logger.warning("%s could not remove the weights stored at step %d: %s", self._owner, step, error)
        self._removable_after_save = set()

    # Evaluating

    def __enter__(self) -> LossLandscape:
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        """Evaluate the landscape after the last checkpoint, unless an exception or a signal has ended the run."""
        run, self._ended = self._ended, None
        snapshots = self._snapshots
        if run is None or snapshots is None or error is not None:
            return
        try:
            self._collect(run)
            if self.evaluates_at_end:
                signals = machine_of(run).signals
                self._evaluate(snapshots, self._collected, run.model, run.criterion, lambda: signals.caught is not None)
        except Exception as problem:
            line = "%s could not evaluate the loss: %s. The weights are kept: call LossLandscape(...).evaluate(%r, model)"
            logger.error(line, self._owner, problem, str(run.workdir), exc_info=problem)

    def evaluate(self, workdir: str | os.PathLike[str], model: Any, criterion: Any = None) -> Path:
        """Evaluate the loss with the weights that a run has collected; return the path of landscape.json.

        The model's current weights do not matter. They are restored afterwards. `criterion` is needed only if
        `loss` was not passed to the constructor.
        """
        snapshots = WeightSnapshots(Path(workdir) / LANDSCAPE)
        steps = snapshots.steps()
        if not steps:
            add = "LossLandscape to the run's callbacks"
            raise BadArgument(f"LossLandscape: there are no collected weights in {snapshots.folder}.", add=add)
        return self._evaluate(snapshots, [(step, None) for step in steps], model, criterion, lambda: False)

    def _evaluate(
        self,
        snapshots: WeightSnapshots,
        collected: Sequence[tuple[int, int | None]],
        model: Any,
        criterion: Any,
        is_stopped: Callable[[], bool],
    ) -> Path:
        steps = [step for step, _ in collected]
        center = snapshots.read(steps[-1])
        _check_model(center, model)
        check_shapes("LossLandscape", self.directions, center)
        plane = plane_of(snapshots, steps, self.directions, self.seed)
        with same_randomness(self.data):
            batches = list(islice(self.data, self.max_batches))
        if not batches:
            raise BadData("LossLandscape: the data yielded no batch.", check="that the loader is not an exhausted generator")
        xs, ys = (self._axis_values([point[axis] for point in plane.path]) for axis in (0, 1))
        progress = _Progress(len(xs) * len(ys))
        rows: list[list[float]] = []
        with loss_on_plane(model, center, plane, batches, self.loss or _loss_of(criterion)) as loss_at:
            final = loss_at(0.0, 0.0)
            for y in ys:
                rows.append([])
                for x in xs:
                    if is_stopped():
                        raise BadLoop("the evaluation was stopped by a signal")
                    rows[-1].append(loss_at(x, y))
                    progress.advance()
        target = snapshots.folder / LANDSCAPE_FILE
        result = self._result(plane, collected, xs, ys, rows, final)
        disk.replace(target, json.dumps(result, allow_nan=False).encode())
        return target

    def _axis_values(self, coordinates: Sequence[float]) -> list[float]:
        """Return the grid's coordinates along one axis. They cover at least -1 to 1, unless the directions are from PCA."""
        given = () if self.directions == PCA else (-1.0, 1.0)
        low, high = min(*coordinates, *given), max(*coordinates, *given)
        room = self.margin * (high - low)
        low, high = low - room, high + room
        return [low + (high - low) * place / (self.size - 1) for place in range(self.size)]

    def _result(
        self,
        plane: Plane,
        collected: Sequence[tuple[int, int | None]],
        xs: Sequence[float],
        ys: Sequence[float],
        rows: Sequence[Sequence[float]],
        final: float,
    ) -> dict[str, Any]:
        path = [
            {"step": step, "epoch": epoch, "x": x, "y": y} for (step, epoch), (x, y) in zip(collected, plane.path, strict=True)
        ]
        return {
            "format": FORMAT,
            "directions": self.directions if isinstance(self.directions, str) else "given",
            "explained": plane.explained,
            "x": list(xs),
            "y": list(ys),
            "loss": [[_plain(value) for value in row] for row in rows],
            "final_loss": _plain(final),
            "path": path,
        }


class _Progress:
    """Print the evaluation's progress and the estimated time left."""

    def __init__(self, total: int) -> None:
        self._done, self._total = 0, total
        self._began = self._last = monotonic()

    def advance(self) -> None:
        self._done += 1
        now = monotonic()
        if now - self._last >= PROGRESS_SECONDS:
            self._last = now
            left = (now - self._began) / self._done * (self._total - self._done)
            say(f"loss landscape: {self._done} of {self._total} points, {left:.0f} s left")


def _loss_of(criterion: Any) -> Loss:
    if criterion is None:
        raise BadArgument("LossLandscape cannot compute a loss.", give="criterion=, or LossLandscape(data, loss=...)")

    def loss(model: Any, batch: Any) -> Any:
        if not isinstance(batch, tuple | list) or len(batch) != 2:
            kind = type(batch).__name__
            write = "loss=lambda model, batch: ..."
            raise BadValue(f"LossLandscape: a batch is a {kind}, not a pair of inputs and targets.", write=write)
        return criterion(model(batch[0]), batch[1])

    return loss


def _check_model(weights: dict[str, Any], model: Any) -> None:
    parameters = {name: tuple(tensor.shape) for name, tensor in named_parameters(model)}
    wrong = [name for name, tensor in weights.items() if parameters.get(name) != tuple(tensor.shape)]
    if wrong:
        shape = parameters.get(wrong[0])
        has = "is missing from the model" if shape is None else f"has shape {shape} in the model"
        stored = f"{wrong[0]!r} has shape {tuple(weights[wrong[0]].shape)} in the collected weights and {has}"
        raise BadLoop(f"LossLandscape: the model does not match the collected weights: {stored}.")


def _plain(value: float) -> float | None:
    return value if math.isfinite(value) else None
