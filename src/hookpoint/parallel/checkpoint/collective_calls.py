"""Collective calls: call functions so that they fail either on all ranks or on none."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from hookpoint.core import errors
from hookpoint.core.errors import CannotSave, HookpointError
from hookpoint.core.team.team import Team


def on_all_ranks(team: Team, call: Callable[[], Any]) -> Any:
    """Call a function on all ranks. If it fails on any rank, raise an error on all ranks.

    If the function fails on several ranks, all ranks raise the error from the lowest of these ranks.
    """
    result, error = _try(call)
    for rank, record in enumerate(team.gather(None if error is None else _record(error))):
        if record is not None:
            raise error if error is not None and rank == team.rank else _rebuilt(record, rank)
    return result


def on_chief(team: Team, call: Callable[[], Any], summary: Callable[[Any], Any]) -> Any:
    """Call a function on the chief. Return its result on the chief, and a summary of the result on the other ranks.

    If the function fails, its error is raised on all ranks.
    """
    if team.rank == 0:
        result, error = _try(call)
        team.broadcast({"error": _record(error)} if error is not None else {"summary": summary(result)})
        if error is not None:
            raise error
        return result
    message = team.broadcast(None)
    if "error" in message:
        raise _rebuilt(message["error"], 0)
    return message["summary"]


def _try(call: Callable[[], Any]) -> tuple[Any, BaseException | None]:
    try:
        return call(), None
    except BaseException as error:  # also catch a second Ctrl-C, so that the other ranks do not wait for this rank
        return None, error


def _record(error: BaseException) -> dict[str, Any]:
    return {"kind": type(error).__name__, "text": str(error), "errno": getattr(error, "errno", None)}


def _rebuilt(record: Mapping[str, Any], rank: int) -> BaseException:
    """Recreate an error from another rank. A hookpoint error keeps its class, so all ranks handle it in the same way."""
    kind: Any = getattr(errors, record["kind"], None)
    error: BaseException
    if isinstance(kind, type) and issubclass(kind, HookpointError):
        error = kind.__new__(kind)
        error.args = (record["text"],)
    elif record["errno"] is not None:
        error = CannotSave(record["text"])
    else:
        error = RuntimeError(f"{record['kind']}: {record['text']}")
    if isinstance(error, OSError):
        error.errno = record["errno"]
    error.add_note(f"on rank {rank} of the team")
    return error
