"""ControlCommand: a request to a run in progress, as stored in inbox/ID.json."""

from __future__ import annotations

import math
import re
import secrets
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from hookpoint.core.errors import BadControlFile

FORMAT = 1
COMMANDS = ("set", "call", "pause", "resume", "save", "validate", "log-every", "trace", "stop")
REPLAYED = ("set", "call", "log-every", "validate")  # these change training, so a resumed run replays them
ID = re.compile(r"\d{20}-[0-9a-f]{8}")
ATTEMPT = re.compile(r"[0-9a-f]{32}")
MAX_TEXT = 1000  # maximum length of a reason, tag or sender, in characters


def new_id() -> str:
    """Return a new id. Ids sort by time."""
    return f"{time.time_ns():020d}-{secrets.token_hex(4)}"


@dataclass(frozen=True, slots=True)
class ControlCommand:
    """A command to a run in progress. `do` is the name of the command, such as "pause".

    `args` depends on the command: set {"values": {name: value}}, call {"action": name}, save {"tag": tag}, log-every {"steps":
    n}, trace {"steps": n}, stop {"reason": text}. The other commands take no arguments. Each time a run is started or
    resumed, it gets a new attempt id. `attempt` is the id of the attempt that should execute the command. `expect` maps
    settings to the values that the sender expects. If a setting has a different value, the command is refused. The command
    expires `seconds` after the trainer first sees it. If `seconds` is None, the command never expires. `by` names the sender.

    >>> ControlCommand("set", {"values": {"lr": 0.01}}, attempt="0" * 32).do
    'set'
    """

    do: str
    args: Mapping[str, Any]
    attempt: str
    id: str = field(default_factory=new_id)
    expect: Mapping[str, Any] = field(default_factory=dict)
    seconds: float | None = None
    by: str = ""

    def encoded(self) -> dict[str, Any]:
        """Return the command as a JSON object, in the format of inbox/ID.json."""
        fields = {"id": self.id, "attempt": self.attempt, "do": self.do, "args": dict(self.args), "by": self.by}
        expect = {"expect": dict(self.expect)} if self.expect else {}
        return {"format": FORMAT, **fields, **expect, "seconds": self.seconds}

    @classmethod
    def parsed(cls, content: Any, command_id: str) -> ControlCommand:
        """Create a command from `content`, the JSON value in inbox/ID.json. Raise BadControlFile if the content is invalid."""
        if not isinstance(content, dict) or content.get("format") != FORMAT or content.get("id") != command_id:
            raise BadControlFile(f"expected a command in format {FORMAT} with the same id as its file.")
        attempt, do, by = (content.get(name) for name in ("attempt", "do", "by"))
        args, expect, seconds = content.get("args"), content.get("expect", {}), content.get("seconds")
        if not isinstance(attempt, str) or not ATTEMPT.fullmatch(attempt):
            raise BadControlFile("attempt must match live.json.")
        if do not in COMMANDS:
            raise BadControlFile(f"unknown command {str(do)[:50]!r}.", choose=", ".join(COMMANDS))
        if not isinstance(args, dict) or not isinstance(expect, dict):
            raise BadControlFile("args and expect must be objects.")
        is_number = isinstance(seconds, int | float) and not isinstance(seconds, bool) and math.isfinite(seconds)
        if seconds is not None and not is_number:
            raise BadControlFile("seconds must be a number or null.")
        sender = by[:MAX_TEXT] if isinstance(by, str) else ""
        return cls(do, args, attempt, command_id, expect, seconds, sender)
