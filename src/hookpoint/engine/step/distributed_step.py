"""Distributed step: divide a Runner's work among ranks."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import torch

from hookpoint.core.callback.current import CURRENT_CALL
from hookpoint.core.callback.main_callback import overrides
from hookpoint.core.data.samples import length_of
from hookpoint.core.errors import BadStrategy
from hookpoint.core.run.run import now_of
from hookpoint.core.team.checked_team import CheckedTeam
from hookpoint.engine.data.rng import rng_kept, seed_all
from hookpoint.engine.step.forward import Forward, PipelinedForward
from hookpoint.engine.step.modules import evaluating, place_model
from hookpoint.parallel.data.distribute_loader import distribute_loader, set_epoch, team_sampler_of
from hookpoint.parallel.data.padded_loader import PaddedLoader
from hookpoint.parallel.shared.model_setup import parameters_of
from hookpoint.parallel.strategy.data_parallel import DataParallel
from hookpoint.parallel.strategy.strategy import LocalUpdates, Pipelined, Strategy
from hookpoint.parallel.team.peer_errors import waiting_in
from hookpoint.parallel.team.world import local_rank, world_size

if TYPE_CHECKING:
    from hookpoint.core.run.run import Run
    from hookpoint.core.team.team import Team

Step = Callable[["Run"], None]


class SingleProcess:
    """Train in a single process. This adds no overhead to a step."""

    strategy = None
    callbacks: tuple[Any, ...] = ()
    state: ClassVar[dict[str, Any]] = {}
    loop_options: ClassVar[dict[str, Any]] = {}
    before_step: Callable[[Run, bool], None] | None = None
    clip_grad_norm: Callable[[Any, float], object] = staticmethod(torch.nn.utils.clip_grad_norm_)

    def place(self, model: Any, device: torch.device) -> None:
        place_model(model, device)

    def forward(self, model: Any, criterion: Any) -> Forward:
        return Forward(model, criterion)

    def begin_fit(self, run: Run, train: Any, seed: int | None) -> Any:
        return train

    def _do_nothing(self, *_: Any) -> None:
        pass

    check_precision = begin_run = begin_epoch = _do_nothing

    def wrap_step(self, step: Step, stepper: Any) -> Step:
        return step

    def shard(self, loader: Any) -> Any:
        return loader

    def evaluating(self, model: Any) -> AbstractContextManager[None]:
        return evaluating(model)


class Distributed:
    """Train on multiple ranks with a strategy. All ranks must call the same methods in the same order.

    The model and the optimizer are set up once, when the first run begins. A loader with torch's default samplers is sharded.
    The random number generators are seeded differently for each data shard, so that ranks draw different numbers for different
    samples. The chief's generators have the same state as in a single process, because they determine the order of the data.
    """

    def __init__(self, strategy: Strategy) -> None:
        self.strategy = strategy
        self.loop_options: dict[str, Any] = {"team": strategy.team}
        self.clip_grad_norm = strategy.clip_grad_norm
        self._local_updates = strategy if isinstance(strategy, LocalUpdates) else None
        self.callbacks = () if self._local_updates is None else tuple(self._local_updates.callbacks)
        self.state = {} if self._local_updates is None else {"fit/strategy": self._local_updates}
        self._team: Team
        self._seed = 0
        self._is_set_up = self._is_accumulating = False
        self._same_batch_count = True
        self._lengths: list[int] | None = None  # number of training batches on each rank, if the numbers differ
        self._shards: weakref.WeakKeyDictionary[Any, Any] = weakref.WeakKeyDictionary()
        if torch.cuda.is_available() and local_rank() < torch.cuda.device_count():
            torch.cuda.set_device(local_rank())

    def place(self, model: Any, device: torch.device) -> None:
        """Move the model to the device.

        With a pipeline, do nothing: each rank later moves only its own stage, because one device might not hold the full model.
        """
        if not isinstance(self.strategy, Pipelined):
            place_model(model, device)

    def check_precision(self, precision: str) -> None:
        if precision == "fp16" and not isinstance(self.strategy, DataParallel):
            kind = type(self.strategy).__name__
            cure = "precision='bf16', which needs no scaler, or '32'"
            raise BadStrategy(f"{kind} does not support precision='fp16': each rank would skip different steps.", choose=cure)

    def begin_run(self, run: Run) -> None:
        """Store the run's team. Before the first run, also distribute the model."""
        self._team = run.team
        if not self._is_set_up:
            self.strategy.setup(run.model, run.optimizer, run.device)
            self._is_set_up = True

    def forward(self, model: Any, criterion: Any) -> Forward:
        if isinstance(self.strategy, Pipelined):
            return PipelinedForward(model, criterion, self.strategy)
        return Forward(model, criterion)

    def begin_fit(self, run: Run, train: Any, seed: int | None) -> Any:
        """Seed the generators, and return this rank's shard of the training data."""
        team = run.team
        with rng_kept():
            drawn = int(torch.randint(2**62, (1,)))
        self._seed = team.broadcast(drawn if seed is None else seed)
        shares_data = team.size != team.data_size  # ranks that train on the same samples need the same random numbers
        if seed is not None or team.rank != 0 or shares_data:
            seed_all(self._seed + team.data_rank)
        train = self._shard(train, trains=True)
        lengths = self._lengths_of(train, "training")
        self._lengths = None
        if None in lengths:
            return UntilShortest(train, team)
        if len(set(lengths)) == 1:
            return train
        self._refuse_uneven(run, lengths)
        self._lengths, longest = lengths[:: team.size // team.data_size], max(lengths)
        return train if lengths[team.rank] == longest else PaddedLoader(train, longest)

    def begin_epoch(self, train: Any, epoch: int) -> None:
        set_epoch(train.data if isinstance(train, PaddedLoader | UntilShortest) else train, epoch)

    def wrap_step(self, step: Step, stepper: Any) -> Step:
        """Return a training step in which ranks exchange gradients only when the optimizer steps."""
        is_pipelined = isinstance(self.strategy, Pipelined)
        begin_batch = None if self._local_updates is None else self._local_updates.begin_batch

        def distributed_step(run: Run) -> None:
            if self._lengths is not None:
                self._set_weight(run, stepper, self._lengths)
            if is_pipelined and stepper.begins_window():
                for optimizer in run.optimizers:  # the forward also computes gradients, so free the old ones
                    optimizer.zero_grad()
            if begin_batch is not None:
                begin_batch()
            self._is_accumulating = not stepper.steps_now(run)
            with waiting_in("a step"), self.strategy.accumulating() if self._is_accumulating else nullcontext():
                step(run)
            if self._local_updates is not None and now_of(run).has_requests and stepper.begins_window():
                self._local_updates.drop_batch()

        return distributed_step

    def before_step(self, run: Run, was_computed: bool) -> None:
        """Merge gradients across ranks if the last backward of the window did not.

        This happens if that backward was skipped, or if its batch was not known to be the last of the window.
        """
        if self._is_accumulating or not was_computed or self._local_updates is not None:
            self.strategy.merge_gradients(parameters_of(run.optimizer))

    def shard(self, loader: Any) -> Any:
        """Return this rank's shard of the evaluation data, or all of the data if a callback evaluates on this rank only."""
        call = CURRENT_CALL.get()
        if call is not None and call.entry.ranks != "all":
            if not isinstance(self.strategy, DataParallel):
                kind = type(self.strategy).__name__
                what = f"{call.entry.name} evaluates on the {call.entry.ranks} only; {kind} needs all ranks."
                raise BadStrategy(what, set='ranks = "all"')
            self._same_batch_count = True
            return loader
        loader = self._shard(loader, trains=False)
        lengths = set(self._lengths_of(loader, "validation"))
        self._same_batch_count = len(lengths) == 1 and None not in lengths
        return loader

    @contextmanager
    def evaluating(self, model: Any) -> Iterator[None]:
        with waiting_in("validation"), evaluating(model), self.strategy.evaluating(same_batch_count=self._same_batch_count):
            yield

    def _lengths_of(self, loader: Any, what: str) -> list[Any]:
        """Return the number of batches on each rank. Raise BadStrategy if the ranks have different data to shard."""
        sampler = team_sampler_of(loader)
        mine = None if sampler is None else f"{sampler.length} samples in batches of {sampler.batch_size}"
        lengths, sizes = zip(*self._team.gather([length_of(loader), mine]), strict=True)
        if len(set(sizes)) > 1:
            found = ", ".join(size or "a custom sampler" for size in sizes)
            cure = "the same data to all ranks, so that it can be sharded, or a custom sampler to each rank"
            raise BadStrategy(f"the ranks have different {what} data: {found}.", give=cure)
        return list(lengths)

    def _set_weight(self, run: Run, stepper: Any, lengths: list[int]) -> None:
        """Set the weight of this rank's batch. A repeated batch has zero weight, and the other ranks' batches get more weight.

        The weights compensate for gradients being averaged over all ranks.
        """
        batch, mine = now_of(run).batch_idx, lengths[run.team.data_rank]
        count = sum(batch < length for length in lengths)
        stepper.set_weight(len(lengths) / count if batch < mine else 0)
        if batch >= mine:
            now_of(run).samples = 0

    def _refuse_uneven(self, run: Run, lengths: list[int]) -> None:
        """Raise BadStrategy if ranks have different numbers of batches and repeated batches cannot have zero weight."""
        model_size = run.team.size // run.team.data_size
        if min(lengths) == 0:
            why = "One rank has no batches"
        elif any(length != lengths[rank - rank % model_size] for rank, length in enumerate(lengths)):
            why = "Ranks that share a model need the same number of batches"
        elif self._local_updates is not None or overrides(run.hooks.main, "on_iter_backward"):
            what = "A custom on_iter_backward" if self._local_updates is None else type(self._local_updates).__name__
            why = f"{what} needs the same number of batches on all ranks"
        else:
            return
        raise BadStrategy(
            f"the ranks have different numbers of training batches: {', '.join(map(str, lengths))}. {why}.",
            give="a DataLoader without a sampler, which is sharded evenly, or a sampler with equal shards",
        )

    def _shard(self, loader: Any, *, trains: bool) -> Any:
        create = partial(distribute_loader, loader, self._team, self._seed, self._from_chief, trains=trains)
        try:
            found = self._shards.get(loader)
        except TypeError:  # lists and other builtin objects do not support weak references
            return create()
        if found is None or (sampler := team_sampler_of(found)) is None or (trains and sampler.seed != self._seed):
            found = create()
            if found is not loader:
                self._shards[loader] = found
        return found

    def _from_chief(self, drawn: Any) -> Any:
        assert isinstance(self._team, CheckedTeam)
        return self._team.broadcast(drawn, what="the order of the data", counts=False)


class UntilShortest:
    """Yield batches from data of unknown length until one rank has no more batches.

    The remaining batches of the other ranks are dropped.
    """

    def __init__(self, data: Any, team: Team) -> None:
        self.data, self.team = data, team

    def __iter__(self) -> Iterator[Any]:
        for batch in self.data:
            if not all(self.team.gather(True)):
                return
            yield batch
        self.team.gather(False)


Distribution = SingleProcess | Distributed
SINGLE_PROCESS = SingleProcess()


def distribution(strategy: Strategy | Literal["auto"] | None) -> Distribution:
    """Return the object that divides a Runner's work according to a strategy. "auto" and None select DataParallel.

    Raise BadStrategy if the argument is not a strategy. A single process ignores the strategy.
    """
    if isinstance(strategy, type):  # a class also has the methods of a strategy
        raise BadStrategy(f"strategy={strategy.__name__} is a class.", give=f"strategy={strategy.__name__}()")
    if strategy != "auto" and strategy is not None and not isinstance(strategy, Strategy):
        cure = '"auto", hookpoint.DataParallel() or another strategy from docs/parallel.md'
        raise BadStrategy(f"strategy={strategy!r} is not a strategy.", choose=cure)
    if world_size() == 1:
        return SINGLE_PROCESS
    return Distributed(DataParallel() if isinstance(strategy, str) or strategy is None else strategy)
