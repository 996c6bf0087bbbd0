"""CheckedTeam: a team that labels every collective, so that calls which do not match raise instead of hanging."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import fsum
from typing import TYPE_CHECKING, Any

from hookpoint.core.callback.current import CURRENT_CALL
from hookpoint.core.errors import OutOfStep

if TYPE_CHECKING:
    from hookpoint.core.run_view import RunView
    from hookpoint.core.team.team import Answer, Team


class CheckedTeam:
    """Pass words on to a team, and compare what each rank says it is about: the same call, of the same callback, at one point.

    Ranks that talk about different things, or to nobody, get an error that names who was where, instead of waiting for ever
    or of taking one number for another. `count` is how often the team has talked: the same on every rank.
    """

    def __init__(self, team: Team, run: RunView) -> None:
        self.rank, self.local_rank, self.size = team.rank, team.local_rank, team.size
        self.data_rank, self.data_size, self.model_rank = team.data_rank, team.data_size, team.model_rank
        self.has_stages = team.has_stages
        self.lag, self.inexact, self.notes = team.lag, team.inexact, team.notes
        self.count = 0
        self._team = team
        self._run = run
        self._is_off = ""

    def gather(self, value: Any, what: str = "run.team.gather()", *, counts: bool = True) -> list[Any]:
        """Return the value of every rank. Without `counts`, the iteration is none in which the team has talked."""
        about = f"{what} {self._where()}"
        said = self._words(lambda: about, lambda: self._team.gather([about, value]), counts=counts)
        if any(one[0] != about for one in said):
            raise apart([one[0] for one in said])
        return [one[1] for one in said]

    def broadcast(self, value: Any, source: int = 0, what: str = "run.team.broadcast()", *, counts: bool = True) -> Any:
        return self.gather(value if self.rank == source else None, what, counts=counts)[source]

    def sums(self, values: Sequence[float], what: str = "run.team.sums()") -> list[float]:
        said = self.gather([self.model_rank, *values], what)
        return [fsum(column) for column in zip(*(one[1:] for one in said if one[0] == 0), strict=True)]

    def barrier(self, what: str = "run.team.barrier()") -> None:
        self.gather(None, what)

    def to_chief(self, data: bytes) -> list[bytes]:
        self.gather(None, "run.team.to_chief()")
        words: list[bytes] = self._words(lambda: "run.team.to_chief()", lambda: self._team.to_chief(data))
        return words

    def start_agreeing(self, number: int) -> Answer:
        iteration, epoch = self._run.iteration, self._run.epoch

        def about() -> str:
            return f"the agreement of iteration {iteration}, epoch {epoch}"

        answer = self._words(about, lambda: self._team.start_agreeing(number), counts=False)
        return lambda: int(self._words(about, answer, counts=False))

    def any_of(self, bits: int) -> int:
        return int(
            self._words(lambda: f"what is to be skipped, {self._where()}", lambda: self._team.any_of(bits), counts=False)
        )

    def close(self) -> None:
        self._team.close()

    @property
    def has_ended(self) -> bool:
        return bool(self._is_off)

    def end(self, why: str) -> None:
        """Talk no more: this rank has failed, and nobody would answer."""
        self._is_off = why

    def _words(self, about: Callable[[], str], talk: Callable[[], Any], *, counts: bool = True) -> Any:
        if self._is_off:
            raise OutOfStep(f"{about()}: nobody would answer, as {self._is_off}.")
        self.count += counts
        try:
            return talk()
        except RuntimeError as error:
            raise unanswered(self.rank, self.size, about(), error) from error

    def _where(self) -> str:
        run, call = self._run, CURRENT_CALL.get()
        who = "in the loop" if call is None else f"in {call.entry.name} at {call.point}"
        return f"{who}, iteration {run.current_iteration}, epoch {run.epoch}"


def apart(abouts: Sequence[str]) -> OutOfStep:
    """Return the error for ranks that talk about different things."""
    groups: dict[str, list[int]] = {}
    for rank, about in enumerate(abouts):
        groups.setdefault(about, []).append(rank)
    said = {f"rank {','.join(map(str, ranks))}": about for about, ranks in groups.items()}
    cure = "on all ranks, or on none: what one process alone knows must not decide it"
    return OutOfStep("the processes are not at the same place.", **said, call=cure)


def unanswered(rank: int, size: int, about: str, error: BaseException) -> OutOfStep:
    """Return the error for a rank that waited in vain."""
    others = "the other rank" if size == 2 else f"one of the other {size - 1} ranks"
    late = "timed out" in str(error).lower() or "timeout" in str(error).lower()
    what = f"{others} did not come in time" if late else f"{others} is gone"
    cures = {"call": "it on all ranks, or on none; say collective = True in a callback that does", "see": "what they say"}
    if not late:
        cures = {"see": "what it says: it has failed, or was ended"}
    return OutOfStep(f"rank {rank} waits in {about}; {what}.", **cures)
