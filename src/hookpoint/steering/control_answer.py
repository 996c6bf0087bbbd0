"""ControlAnswer: the outcome of a command, as stored in answers/ID.json."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from hookpoint.core.errors import BadControlFile

SEEN = "seen"
APPLIED, REFUSED, WITHDRAWN, LOST = FINAL = ("applied", "refused", "withdrawn", "lost")


@dataclass(frozen=True, slots=True)
class ControlAnswer:
    """The answer to a command: "seen", then exactly one of "applied", "refused", "withdrawn" and "lost".

    `step`, `iteration` and `epoch` are the run's position, and `ranks` is the number of ranks that applied the command. `was`
    and `now` contain the changed settings' old and new values. `values` contains the metrics of a validation pass, and `path`
    is the path of a checkpoint or trace. `number` is the command's number in the journal. It is None if the command is not in
    the journal, for example because a resumed run does not have to replay it. `note` contains additional information, such as
    the names of schedulers that may overwrite the new value. `reason` explains why the command was not applied.
    """

    id: str
    status: str
    step: int | None = None
    iteration: int | None = None
    epoch: int | None = None
    time: float | None = None
    ranks: int | None = None
    number: int | None = None
    was: Any = None
    now: Any = None
    values: Mapping[str, Any] | None = None
    path: str | None = None
    note: str | None = None
    reason: str | None = None

    @property
    def is_final(self) -> bool:
        return self.status != SEEN

    def encoded(self) -> dict[str, Any]:
        """Return the answer as a dict that can be written to a JSON file."""
        content = {name: getattr(self, name) for name in _NAMES}
        return {name: value for name, value in content.items() if value is not None}

    @classmethod
    def parsed(cls, content: Any, command_id: str) -> ControlAnswer:
        """Create an answer from the content of its JSON file. Raise BadControlFile if the content is invalid."""
        if not isinstance(content, dict) or content.get("id") != command_id or content.get("status") not in (SEEN, *FINAL):
            raise BadControlFile("expected an answer with the same id as its file.")
        known: dict[str, Any] = {name: content[name] for name in _NAMES if name in content}
        return cls(**known)


_NAMES = tuple(field.name for field in fields(ControlAnswer))
