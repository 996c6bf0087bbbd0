"""Request details: what the savers of a run add to a checkpoint: values for its manifest, and links to its folder."""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hookpoint.core.hooks.hooks import Hooks
    from hookpoint.core.run_view import RunView


def info_for(hooks: Hooks, run: RunView) -> dict[str, Any]:
    """Return the values that savers append to the manifest, on the chief. Of equal names, the last saver's counts."""
    functions = [getattr(entry.subject, "append_info", None) for entry in hooks.entries] if run.is_chief else []
    return {name: value for function in functions if callable(function) for name, value in function(run).items()}


def links_for(hooks: Hooks, run: RunView, tags: Collection[str]) -> list[str]:
    """Return the names of links to a checkpoint with these tags, on the chief."""
    functions = [getattr(entry.subject, "link_name", None) for entry in hooks.entries] if run.is_chief else []
    names = [function(run, tags) for function in functions if callable(function)]
    return [name for name in names if name is not None]
