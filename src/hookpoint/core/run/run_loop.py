"""RunLoop: the services that a run needs from its loop. The run uses nothing else from the loop."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Protocol, TypedDict

if TYPE_CHECKING:
    from typing import Unpack

    from hookpoint.core.checkpoint.store import Keep
    from hookpoint.core.data.array_batches import BatchSize
    from hookpoint.core.hooks.dispatch import Call
    from hookpoint.core.run_view import Dispatch

Mode = Literal["train", "val", "pred"]


class Progress(NamedTuple):
    """The position in a pass. `total` is None if the loader's length is unknown."""

    mode: Mode
    done: int
    total: int | None


Epochs = Iterator[int]  # an iterator over epoch numbers, for the outer `for` loop


class Batches(Iterator[Any], Protocol):
    """The iterator over batches, for the inner `for` loop."""

    def __len__(self) -> int: ...

    @property
    def results(self) -> dict[str, Any]:
        """The means of the values logged in the pass, by name. Empty until the pass has ended."""


class EvaluateOptions(TypedDict, total=False):
    """The options of an evaluation.

    `batch_size` applies to a tuple of arrays or a dataset. `forward` takes the run and sets its outputs. It replaces the run's
    own forward pass. `update` is called with the run after each batch that was not skipped. `results` is called with the means
    of the logged values, by name. It returns a mapping of names to final values. These values are logged under exactly the
    names in the mapping.
    """

    batch_size: BatchSize
    forward: Dispatch | None
    update: Callable[[Any], object]
    results: Callable[[Mapping[str, Any]], Mapping[str, Any]]


class RunLoop(Protocol):
    """The methods and properties of a loop that a run uses.

    `settle` closes the passes and the epoch that a `break` left open. Other methods call `settle` before they begin epochs or
    passes, save a checkpoint, or request a stop, a skip or a retry.
    """

    @property
    def progress(self) -> Progress | None: ...

    @property
    def reports_steps(self) -> bool:
        """Whether the optimizer's hooks or a host report every optimizer step, so that on_step_begin and on_step_end fire."""

    def settle(self) -> None: ...

    def refresh(self) -> None:
        """Resolve the handlers of the open passes again, because an `IdleCallback` is no longer idle."""

    def epochs(self, number: int | None) -> Epochs: ...

    def batches(self, loader: Iterable[Any], mode: Mode) -> Batches: ...

    def evaluate(self, data: Any, **options: Unpack[EvaluateOptions]) -> Mapping[str, Any]: ...

    def at_leave(self, function: Callable[[], object]) -> None:
        """Call a function once, when the open pass ends, is left with a `break`, or fails."""

    def set_step(self, step: int) -> None: ...

    def stop(self, reason: str, *, same_on_all_ranks: bool) -> None: ...

    def stop_epoch(self, *, same_on_all_ranks: bool) -> None: ...

    def skip(self, what: str) -> None: ...

    def retry(self) -> None: ...

    def save(
        self, tag: str, keep: Keep | None, in_background: bool, measured: Mapping[str, Any] | None, *, same_on_all_ranks: bool
    ) -> None: ...

    def gather(self, value: Any, what: str) -> list[Any]:
        """Return the values of all ranks, in rank order."""

    def meet(self, call: Call) -> None:
        """Wait until all ranks are about to call this handler of a collective callback."""

    def agree_on_skips(self) -> None:
        """If any rank has requested to skip a batch, a backward pass or a step, skip it on all ranks."""
