"""Distribution: how a Runner's work is shared with other processes, or that it is alone."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Protocol

import torch

from hookpoint.core.callback.current import CURRENT_CALL
from hookpoint.core.data.samples import length_of
from hookpoint.core.errors import BadStrategy
from hookpoint.core.run.run import now_of
from hookpoint.core.team.checked_team import CheckedTeam
from hookpoint.engine._checks import overrides
from hookpoint.engine._device import place_model
from hookpoint.engine._forward import Forward
from hookpoint.engine._staged_forward import StagedForward
from hookpoint.engine.data.rng import rng_kept, seed_all
from hookpoint.engine.module_modes import evaluating
from hookpoint.parallel.data.distribute_loader import distribute_loader, team_sampler_of, tell_epoch
from hookpoint.parallel.data.padded_loader import PaddedLoader
from hookpoint.parallel.strategy.data_parallel import DataParallel
from hookpoint.parallel.strategy.strategy import Loose, Staged, Strategy, chosen
from hookpoint.parallel.team.init_process import local_rank
from hookpoint.parallel.team.peer_errors import waiting_in

if TYPE_CHECKING:
    from hookpoint.core.hooks.dispatch import Call
    from hookpoint.core.run.run import Run
    from hookpoint.core.team.team import Team

Step = Callable[["Run"], None]


class Steps(Protocol):
    """Whoever makes the steps, and knows which batch one follows."""

    def steps_now(self, run: Run) -> bool: ...

    def weigh(self, share: float) -> None: ...

    def begins_window(self) -> bool: ...


class Alone:
    """One process: nothing is shared, and nothing is paid for it."""

    strategy = None
    callbacks: tuple[Any, ...] = ()
    state: ClassVar[dict[str, Any]] = {}
    loop_options: ClassVar[dict[str, Any]] = {}
    before_step: Callable[[Run, bool], None] | None = None
    clip_grad_norm: Callable[[Any, float], object] = staticmethod(torch.nn.utils.clip_grad_norm_)

    def place(self, model: Any, device: torch.device) -> None:
        place_model(model, device)

    def check_precision(self, precision: str) -> None:
        pass

    def begin_run(self, run: Run) -> None:
        pass

    def forward(self, model: Any, criterion: Any) -> Forward:
        return Forward(model, criterion)

    def begin_fit(self, run: Run, train: Any, seed: int | None) -> Any:
        return train

    def begin_epoch(self, train: Any, epoch: int) -> None:
        pass

    def around(self, step: Step, steps: Steps) -> Step:
        return step

    def part(self, loader: Any) -> Any:
        return loader

    def evaluating(self, model: Any) -> AbstractContextManager[None]:
        return evaluating(model)


class Shared:
    """One of several processes, by a strategy; all of them do the same at the same places.

    Model and optimizer are set up once, when the first run begins. Data is split across the processes wherever its order is
    torch's own, and the generators of random numbers get a seed for each part of the data: what is drawn for the samples of one
    process is not drawn for those of another. The chief's generators stay those of one process, which the order of the data is
    drawn from.
    """

    def __init__(self, strategy: Strategy) -> None:
        self.strategy = strategy
        self.loop_options: dict[str, Any] = {"team": strategy.team}
        self.clip_grad_norm = strategy.clip_grad_norm
        self._loose = strategy if isinstance(strategy, Loose) else None
        self.callbacks = () if self._loose is None else tuple(self._loose.callbacks)
        self.state = {} if self._loose is None else {"fit/strategy": self._loose}
        self._team: Team | None = None
        self._seed = 0
        self._is_set_up = self._is_apart = False
        self._is_even = True
        self._lengths: list[int] | None = None  # of the training data of each, where they differ
        self._parts: weakref.WeakKeyDictionary[Any, Any] = weakref.WeakKeyDictionary()
        if torch.cuda.is_available() and local_rank() < torch.cuda.device_count():
            torch.cuda.set_device(local_rank())

    def place(self, model: Any, device: torch.device) -> None:
        """Move the model to the device, unless each process will have its layers of it only: all might not fit."""
        if not isinstance(self.strategy, Staged):
            place_model(model, device)

    def check_precision(self, precision: str) -> None:
        """Refuse the scaler of fp16 where gradients are not the same everywhere: each process would leave out other steps."""
        if precision == "fp16" and not isinstance(self.strategy, DataParallel):
            raise BadStrategy(
                f"precision='fp16' with {type(self.strategy).__name__}: each process would leave out other steps.",
                choose="'bf16', which needs no scaler, or '32'",
            )

    def begin_run(self, run: Run) -> None:
        """Meet the team of a run; before the first one, share the model."""
        self._team = run.team
        if not self._is_set_up:
            self.strategy.setup(run.model, run.optimizer, run.device)
            self._is_set_up = True

    def forward(self, model: Any, criterion: Any) -> Forward:
        """Return what computes outputs and loss of a batch."""
        return (
            StagedForward(model, criterion, self.strategy) if isinstance(self.strategy, Staged) else Forward(model, criterion)
        )

    def begin_fit(self, run: Run, train: Any, seed: int | None) -> Any:
        """Return this process's part of the training data, and seed what is drawn for it."""
        team = run.team
        with rng_kept():
            drawn = int(torch.randint(2**62, (1,)))
        self._seed = team.broadcast(drawn if seed is None else seed)
        is_alone_with_its_data = team.size == team.data_size  # others with the chief's samples have to draw what it draws
        if seed is not None or team.rank != 0 or not is_alone_with_its_data:
            seed_all(self._seed + team.data_rank)
        train = self._part(train, trains=True)
        lengths = self._lengths_of(train, "training")
        self._lengths = None
        if None in lengths:
            return AsLongAsAll(train, team)
        if len(set(lengths)) == 1:
            return train
        self._refuse_uneven(run, lengths)
        self._lengths, longest = lengths[:: team.size // team.data_size], max(lengths)
        return train if lengths[team.rank] == longest else PaddedLoader(train, longest)

    def begin_epoch(self, train: Any, epoch: int) -> None:
        tell_epoch(train.data if isinstance(train, PaddedLoader | AsLongAsAll) else train, epoch)

    def around(self, step: Step, steps: Steps) -> Step:
        """Return a step that talks to the others only where the optimizer steps."""

        is_staged = isinstance(self.strategy, Staged)

        begin_batch = None if self._loose is None else self._loose.begin_batch

        def shared(run: Run) -> None:
            if self._lengths is not None:
                self._weigh(run, steps, self._lengths)
            if is_staged and steps.begins_window():
                for optimizer in run.optimizers:  # the forward computes gradients; those of the last step need no memory
                    optimizer.zero_grad()
            if begin_batch is not None:
                begin_batch()
            self._is_apart = not steps.steps_now(run)
            with waiting_in("a step"), self.strategy.accumulating() if self._is_apart else nullcontext():
                step(run)
            if self._loose is not None and now_of(run).has_requests and steps.begins_window():
                self._loose.drop_batch()

        return shared

    def before_step(self, run: Run, was_computed: bool) -> None:
        """Bring gradients together, where the batch that should have done so was left out, or was not known to be the last."""
        if self._is_apart or not was_computed or self._loose is not None:
            parameters = [parameter for group in run.optimizer.param_groups for parameter in group["params"]]
            self.strategy.merge_gradients(parameters)

    def part(self, loader: Any) -> Any:
        """Return this process's part of data to evaluate on; all of it, where a callback that others have not evaluates."""
        call = CURRENT_CALL.get()
        if call is not None and call.entry.ranks != "all":
            self._refuse_few(call)
            self._is_even = True
            return loader
        loader = self._part(loader, trains=False)
        lengths = set(self._lengths_of(loader, "validation"))
        self._is_even = len(lengths) == 1 and None not in lengths
        return loader

    @contextmanager
    def evaluating(self, model: Any) -> Iterator[None]:
        with waiting_in("a validation"), evaluating(model), self.strategy.evaluating(is_even=self._is_even):
            yield

    def _lengths_of(self, loader: Any, what: str) -> list[Any]:
        """Return how many batches each process has; refuse to share data that is not the same everywhere."""
        assert self._team is not None
        sampler = team_sampler_of(loader)
        mine = None if sampler is None else f"{sampler.length} samples in batches of {sampler.batch_size}"
        said = self._team.gather([length_of(loader), mine])
        shared = [one for _, one in said]
        if len(set(shared)) > 1:
            raise BadStrategy(
                f"the processes have different {what} data: {', '.join(one or 'an order of its own' for one in shared)}.",
                give="each of them all of the data, of which it takes its part; or a sampler to each, for its own part",
            )
        return [length for length, _ in said]

    def _refuse_few(self, call: Call) -> None:
        """Raise BadStrategy where a model cannot be called by some processes alone."""
        if not isinstance(self.strategy, DataParallel):
            raise BadStrategy(
                f"{call.entry.name} evaluates on the {call.entry.ranks} only; {type(self.strategy).__name__} needs all.",
                set='ranks = "all"',
            )

    def _weigh(self, run: Run, steps: Steps, lengths: list[int]) -> None:
        """Let a batch that has come again count for nothing, and those of the others for more: their mean is taken of all."""
        batch, mine = now_of(run).batch_idx, lengths[run.team.data_rank]
        many = sum(batch < length for length in lengths)
        steps.weigh(len(lengths) / many if batch < mine else 0)
        if batch >= mine:
            now_of(run).samples = 0

    def _refuse_uneven(self, run: Run, lengths: list[int]) -> None:
        """Raise BadStrategy where a batch that comes again could not be left out of what is computed."""
        together = run.team.size // run.team.data_size
        if min(lengths) == 0:
            why = "One of them has none"
        elif any(length != lengths[rank - rank % together] for rank, length in enumerate(lengths)):
            why = "Those that share a model need the same"
        elif self._loose is not None or overrides(run.hooks.main, "on_iter_backward"):
            who = "An on_iter_backward of one's own" if self._loose is None else type(self._loose).__name__
            why = f"{who} needs as many for each"
        else:
            return
        raise BadStrategy(
            f"the processes have different numbers of training batches: {', '.join(map(str, lengths))}. {why}.",
            give="a DataLoader without a sampler, which is shared evenly, or a sampler that gives each as many",
        )

    def _part(self, loader: Any, *, trains: bool) -> Any:
        assert self._team is not None
        make = partial(distribute_loader, loader, self._team, self._seed, self._from_chief, trains=trains)
        try:
            found = self._parts.get(loader)
        except TypeError:  # a list, or another builtin
            return make()
        if found is None or (sampler := team_sampler_of(found)) is None or (trains and sampler.seed != self._seed):
            found = make()
            if found is not loader:
                self._parts[loader] = found
        return found

    def _from_chief(self, drawn: Any) -> Any:
        assert isinstance(self._team, CheckedTeam)
        return self._team.broadcast(drawn, what="the order of the data", counts=False)


class AsLongAsAll:
    """Batches of data whose end nobody knows, until one of the processes has no more; what others still have is left out."""

    def __init__(self, data: Any, team: Team) -> None:
        self.data, self.team = data, team

    def __iter__(self) -> Iterator[Any]:
        for batch in self.data:
            if not all(self.team.gather(True)):
                return
            yield batch
        self.team.gather(False)


Distribution = Alone | Shared
ALONE = Alone()


def distribution(strategy: Strategy | Literal["auto"]) -> Distribution:
    """Return how a Runner's work is shared, by the strategy that is given."""
    found = chosen(strategy)
    return ALONE if found is None else Shared(found)
