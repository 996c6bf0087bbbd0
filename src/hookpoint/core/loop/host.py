"""Host: the trainer of another library that drives a loop, and what it cannot do."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from hookpoint.core.errors import CompileError

if TYPE_CHECKING:
    from hookpoint.core.hooks.hooks import Hooks


class NotUnderHost(CompileError):
    """A callback needs a point or a verdict that the trainer it runs under does not have."""


@dataclass(frozen=True, slots=True, eq=False)
class Host:
    """A trainer, by its name. `cannot` has the points it never reaches and the verdicts it cannot honour, with the reason.

    Verdicts are called as `run` calls them: "stop_epoch", "skip_batch", "skip_backward", "skip_step", "retry", "save". Skips
    and retries are refused unless they are in `can`: few trainers have them.
    """

    name: str
    cannot: Mapping[str, str] = field(default_factory=dict)
    can: frozenset[str] = frozenset()

    def check(self, hooks: Hooks) -> None:
        """Refuse callbacks that need what this host has not, before anything runs."""
        for point, why in self.cannot.items():
            for call in hooks.calls(point):
                raise NotUnderHost(f"{call.entry.name}: {self.name} has no {point}: {why}.", leave=f"{call.entry.name} out")
        for entry in hooks.entries:
            if "skip_batch" in self.cannot and _says(entry.subject, "may_skip"):
                raise NotUnderHost(
                    f"{entry.name} may skip batches, and {self.name} cannot: {self.cannot['skip_batch']}.", leave="it out"
                )
            if "save" in self.cannot and _says(entry.subject, "saves"):
                raise NotUnderHost(
                    f"{entry.name} saves, and {self.name} does not let it: {self.cannot['save']}.", leave="it out"
                )

    def refuse(self, verdict: str) -> None:
        """Refuse a verdict that this host cannot honour, at the call."""
        if verdict in self.cannot:
            raise NotUnderHost(f"run.{verdict}() does not work under {self.name}: {self.cannot[verdict]}.")


def _says(subject: Any, option: str) -> bool:
    return bool(getattr(subject, option, False))
