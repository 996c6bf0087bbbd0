"""CheckedTeam: a team that labels every collective call, so that mismatched calls raise an error instead of hanging."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import fsum
from typing import TYPE_CHECKING, Any, TypeVar

from hookpoint.core.callback.current import CURRENT_CALL
from hookpoint.core.errors import OutOfStep
from hookpoint.core.team.team import Answer, Team

if TYPE_CHECKING:
    from hookpoint.core.run_view import RunView

T = TypeVar("T")


class CheckedTeam(Team):
    """Forward collective calls to a team. Check that all ranks make the same call, in the same callback, at the same point.

    If ranks make different calls, or wait for a rank that has exited, they raise an error that names the call on each rank,
    instead of hanging or mixing up values. `count` is the number of collective calls so far. It is equal on all ranks.
    """

    def __init__(self, team: Team, run: RunView) -> None:
        self.rank, self.local_rank, self.size = team.rank, team.local_rank, team.size
        self.data_rank, self.data_size, self.model_rank = team.data_rank, team.data_size, team.model_rank
        self.has_stages = team.has_stages
        self.lag, self.inexact, self.notes = team.lag, team.inexact, team.notes
        self.count = 0
        self._team, self._run, self._end_reason = team, run, ""

    def gather(self, value: Any, what: str = "run.team.gather()", *, counts: bool = True) -> list[Any]:
        """Return the values of all ranks, in rank order. If `counts` is False, the call does not change `count`."""
        label = f"{what} {self._where()}"
        gathered = self._call(lambda: label, lambda: self._team.gather([label, value]), counts=counts)
        if any(other != label for other, _ in gathered):
            raise mismatch([other for other, _ in gathered])
        return [value for _, value in gathered]

    def broadcast(self, value: Any, source: int = 0, what: str = "run.team.broadcast()", *, counts: bool = True) -> Any:
        return self.gather(value if self.rank == source else None, what, counts=counts)[source]

    def sums(self, values: Sequence[float], what: str = "run.team.sums()") -> list[float]:
        gathered = self.gather([self.model_rank, *values], what)
        return [fsum(column) for column in zip(*(row[1:] for row in gathered if row[0] == 0), strict=True)]

    def barrier(self, what: str = "run.team.barrier()") -> None:
        self.gather(None, what)

    def to_chief(self, data: bytes) -> list[bytes]:
        self.gather(None, "run.team.to_chief()")
        return self._call(lambda: "run.team.to_chief()", lambda: self._team.to_chief(data))

    def start_agreeing(self, number: int) -> Answer:
        iteration, epoch = self._run.iteration, self._run.epoch

        def label() -> str:
            return f"the exchange of requests between ranks at iteration {iteration}, epoch {epoch}"

        answer = self._call(label, lambda: self._team.start_agreeing(number), counts=False)
        return lambda: self._call(label, answer, counts=False)

    def any_of(self, bits: int) -> int:
        return self._call(
            lambda: f"the exchange of skip requests between ranks, {self._where()}",
            lambda: self._team.any_of(bits),
            counts=False,
        )

    def close(self) -> None:
        self._team.close()

    @property
    def has_ended(self) -> bool:
        return bool(self._end_reason)

    def end(self, why: str) -> None:
        """Make no further calls. Called when this rank has failed, because no other rank would answer."""
        self._end_reason = why

    def _call(self, label: Callable[[], str], call: Callable[[], T], *, counts: bool = True) -> T:
        if self._end_reason:
            raise OutOfStep(f"{label()}: no rank would answer, because {self._end_reason}.")
        self.count += counts
        try:
            return call()
        except RuntimeError as error:
            raise unanswered(self.rank, self.size, label(), error) from error

    def _where(self) -> str:
        run, call = self._run, CURRENT_CALL.get()
        who = "in the loop" if call is None else f"in {call.entry.name} at {call.point}"
        return f"{who}, iteration {run.current_iteration}, epoch {run.epoch}"


def mismatch(labels: Sequence[str]) -> OutOfStep:
    """Return the error to raise if ranks make different calls."""
    groups: dict[str, list[int]] = {}
    for rank, label in enumerate(labels):
        groups.setdefault(label, []).append(rank)
    places = {f"rank {','.join(map(str, ranks))}": label for label, ranks in groups.items()}
    return OutOfStep("the ranks do not make the same collective call.", **places, call="on all ranks or on none")


def unanswered(rank: int, size: int, label: str, error: BaseException) -> OutOfStep:
    """Return the error to raise on a rank that gets no answer from the others."""
    others = "the other rank" if size == 2 else f"one of the other {size - 1} ranks"
    late = "timed out" in str(error).lower() or "timeout" in str(error).lower()
    what = f"{others} did not arrive in time" if late else f"{others} is gone"
    cures = {"call": "it on all ranks or on none; set collective = True in a callback that calls it", "see": "their output"}
    if not late:
        cures = {"see": "its output: it has failed or was killed"}
    return OutOfStep(f"rank {rank} waits in {label}; {what}.", **cures)
