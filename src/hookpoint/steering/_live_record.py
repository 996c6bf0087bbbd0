"""LiveRecord: the contents of live.json, which describes a run's training process and the settings that can be changed."""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from typing import Any

from hookpoint.core.errors import BadControlFile
from hookpoint.storage.workdir.lock import Holder

FORMAT = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveRecord:
    """The live-control state of a run.

    `attempt` identifies this start of the run. A command that was sent to an earlier start is not applied. `knobs` contains a
    dict per setting with the keys name, type and value. The type is "float", "int", "bool", "str" or "list". The keys low,
    high, choices and about are optional. `actions` contains each action's name and description (`about`). `cannot` lists
    the commands that this run does not support. It maps the name of each command to the reason.
    """

    attempt: str
    holder: Holder
    world_size: int = 1
    paused: bool = False
    ended: bool = False
    commands: Sequence[str] = ()
    cannot: Mapping[str, str] = field(default_factory=dict)
    knobs: Sequence[Mapping[str, Any]] = ()
    actions: Sequence[Mapping[str, Any]] = ()

    @property
    def is_running(self) -> bool:
        """Whether the training process is still running.

        A process on another host cannot be checked. In this case, the result is True unless the run has recorded its end.
        """
        if self.ended:
            return False
        is_here = self.holder.host == socket.gethostname()
        return not is_here or self.holder.pid == os.getpid() or self.holder.runs()

    def encoded(self) -> dict[str, Any]:
        """Return the record as a JSON object, for live.json."""
        content = {one.name: getattr(self, one.name) for one in fields(self) if one.name != "holder"}
        return {"format": FORMAT, **content, **asdict(self.holder)}

    @classmethod
    def parsed(cls, content: Any) -> LiveRecord:
        """Return the record from a file's JSON object. Raise BadControlFile if it is invalid."""
        if not isinstance(content, dict) or content.get("format") != FORMAT or not isinstance(content.get("attempt"), str):
            raise BadControlFile(f"live.json is not in format {FORMAT}.", use="the hookpoint release that the run uses")
        try:
            holder = Holder(**{one.name: content[one.name] for one in fields(Holder)})
            known = {one.name: content[one.name] for one in fields(cls) if one.name in content}
            record = cls(**known, holder=holder)
        except (KeyError, TypeError):
            raise BadControlFile("live.json is incomplete.") from None
        lists, maps = (record.commands, record.knobs, record.actions), [record.cannot, *record.knobs, *record.actions]
        if not all(isinstance(one, list) for one in lists) or not all(isinstance(one, dict) for one in maps):
            raise BadControlFile("live.json has a field of the wrong type.")
        return record
