"""Request details: the manifest values, the links and the retention rules that a run's savers add to a checkpoint."""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hookpoint.core.hooks.hooks import Hooks
    from hookpoint.core.run_view import RunView


def info_for(hooks: Hooks, run: RunView) -> dict[str, Any]:
    """Return the values that savers add to the manifest. On ranks other than the chief, the result is empty.

    If two savers use the same name, the value of the last saver is used.
    """
    functions = [getattr(entry.subject, "append_info", None) for entry in hooks.entries] if run.is_chief else []
    return {name: value for function in functions if callable(function) for name, value in function(run).items()}


def links_for(hooks: Hooks, run: RunView, tags: Collection[str]) -> list[str]:
    """Return the names of the links to a checkpoint with these tags. On ranks other than the chief, the result is empty."""
    functions = [getattr(entry.subject, "link_name", None) for entry in hooks.entries] if run.is_chief else []
    names = [function(run, tags) for function in functions if callable(function)]
    return [name for name in names if name is not None]


def rules_for(hooks: Hooks) -> dict[str, Any]:
    """Return the current retention rules of all savers. Commands can change them."""
    subjects = [entry.subject for entry in hooks.entries]
    rules = [rule for subject in subjects for rule in getattr(subject, "marks", {}).items()]
    savers = [subject for subject in subjects if getattr(subject, "saves", False)]
    rules += [rule for subject in savers for rule in getattr(subject, "rules", {}).items()]
    return {tag: keep for tag, keep in dict(rules).items() if keep is not None}
