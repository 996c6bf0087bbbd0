"""By all: work that the processes of a team do at the same place, and that fails on all of them or on none."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from hookpoint.core import errors
from hookpoint.core.errors import CannotSave, HookpointError
from hookpoint.core.team.team import Team


def on_all_ranks(team: Team, work: Callable[[], Any]) -> Any:
    """Do something on each rank; where it fails on any, raise on all what the first of them has raised."""
    result, failure = _tried(work)
    told = team.gather(None if failure is None else _told(failure))
    for rank, other in enumerate(told):
        if other is not None:
            raise failure if failure is not None and rank == team.rank else _retold(other, rank)
    return result


def by_chief(team: Team, work: Callable[[], Any], facts: Callable[[Any], Any]) -> Any:
    """Do something on the chief; return what came of it there, and the facts of it elsewhere, or raise the same on all."""
    if team.rank == 0:
        result, failure = _tried(work)
        team.broadcast({"failure": _told(failure)} if failure is not None else {"facts": facts(result)})
        if failure is not None:
            raise failure
        return result
    heard = team.broadcast(None)
    if "failure" in heard:
        raise _retold(heard["failure"], 0)
    return heard["facts"]


def _tried(work: Callable[[], Any]) -> tuple[Any, BaseException | None]:
    try:
        return work(), None
    except BaseException as error:  # also a second Ctrl-C: the others must not wait for this rank
        return None, error


def _told(failure: BaseException) -> dict[str, Any]:
    return {"kind": type(failure).__name__, "text": str(failure), "errno": getattr(failure, "errno", None)}


def _retold(heard: Mapping[str, Any], rank: int) -> BaseException:
    """Return the error of another rank, of the same class where it is one of ours, so that the same is done about it."""
    kind: Any = getattr(errors, heard["kind"], None)
    made: BaseException
    if isinstance(kind, type) and issubclass(kind, HookpointError):
        made = kind.__new__(kind)
        made.args = (heard["text"],)
    elif heard["errno"] is not None:
        made = CannotSave(heard["text"])
    else:
        made = RuntimeError(f"{heard['kind']}: {heard['text']}")
    if isinstance(made, OSError):
        made.errno = heard["errno"]
    made.add_note(f"on rank {rank} of the team")
    return made
