"""Host: another library's trainer that drives a loop, and the points and verdicts that the trainer does not support."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from hookpoint.core.errors import CompileError

if TYPE_CHECKING:
    from hookpoint.core.hooks.hooks import Hooks


class NotUnderHost(CompileError):
    """A callback needs a point or a verdict that the host does not support."""


@dataclass(slots=True, eq=False, repr=False)
class Host:
    """Another library's trainer. `cannot` maps each point or verdict that the trainer does not support to the reason why.

    Verdicts are named after the methods of `run`: "stop_epoch", "skip_batch", "skip_backward", "skip_step", "retry", "save".
    Skips and retries are rejected unless they are in `can`, because few trainers support them.
    """

    name: str
    cannot: Mapping[str, str] = field(default_factory=dict)
    can: frozenset[str] = frozenset()

    def check(self, hooks: Hooks) -> None:
        """Raise NotUnderHost if a callback needs something that this host does not support. Called before the run begins."""
        for point, why in self.cannot.items():
            for call in hooks.calls(point):
                if point in call.entry.declared("optional_points"):
                    continue
                raise NotUnderHost(f"{call.entry.name}: {self.name} has no {point}: {why}.", remove=call.entry.name)
        for entry in hooks.entries:
            if getattr(entry.subject, "copies_checkpoints", False):
                why = f"{entry.name} copies hookpoint's checkpoints, but {self.name} writes its own."
                raise NotUnderHost(why, remove=entry.name)
            for verdict, option, does in (("skip_batch", "may_skip", "skips batches"), ("save", "saves", "saves checkpoints")):
                if verdict in self.cannot and getattr(entry.subject, option, False):
                    why = f"{entry.name} {does}, which {self.name} does not support: {self.cannot[verdict]}."
                    raise NotUnderHost(why, remove=entry.name)

    def check_verdict(self, verdict: str) -> None:
        """Raise NotUnderHost if this host does not support a verdict."""
        if verdict in self.cannot:
            raise NotUnderHost(f"run.{verdict}() does not work under {self.name}: {self.cannot[verdict]}.")
