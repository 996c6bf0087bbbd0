"""Lookup: find a run's callback by name or class."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

from hookpoint.core.callback.callback_info import identity_of
from hookpoint.core.errors import BadArgument, UnknownCallback

if TYPE_CHECKING:
    from hookpoint.core.hooks.entry import Entry
    from hookpoint.core.hooks.hooks import Hooks


def named_callbacks(entries: Iterable[Entry]) -> dict[str, Any]:
    """Return a dict that maps names to callbacks, in list order.

    For a callback from another library, the dict contains the user's object, not the wrapper.
    """
    return {entry.name: getattr(entry.subject, "theirs", entry.subject) for entry in entries}


def find_callback(hooks: Hooks, key: Any) -> Any:
    """Return the callback with this name or class. Raise UnknownCallback if there is none or more than one."""
    if not isinstance(key, str | type):
        raise BadArgument(f"run.callback: pass a class or a name, got {key!r}.", write='run.callback("EarlyStopping")')
    here, everywhere = (named_callbacks(entries) for entries in (hooks.entries, hooks.all_entries))
    if isinstance(key, str) and key in here:
        return here[key]
    found = list(_matching(hooks.entries, key))
    if len(found) == 1:
        return found[0]
    label = key if isinstance(key, str) else key.__name__
    if found:
        names = [name for name, callback in here.items() if any(callback is other for other in found)]
        raise UnknownCallback(f"the run has {len(found)} callbacks of class {label}.", use=f"one of the names {_quoted(names)}")
    for entry in hooks.all_entries:
        if entry.ranks != "all" and (entry.name == key or _fits(everywhere[entry.name], key)):
            raise UnknownCallback(f"{entry.name} runs on the {entry.ranks} only, not on this rank.", check="run.is_chief first")
    raise UnknownCallback(f"the run has no callback {label}.", known=_quoted(here))


def _matching(entries: Iterable[Entry], key: str | type) -> Iterator[Any]:
    """Yield the callbacks, pipelines and wrappers that match a class or name."""
    seen: set[int] = set()
    for entry in entries:
        theirs = getattr(entry.subject, "theirs", entry.subject)
        for callback in (*entry.path, theirs):
            if id(callback) not in seen and _fits(callback, key, is_group=callback is not theirs):
                seen.add(id(callback))
                yield callback


def _fits(callback: Any, key: str | type, *, is_group: bool = False) -> bool:
    if isinstance(key, type):
        return isinstance(callback, key)
    return type(callback).__name__ == key or (is_group and identity_of(callback) == key)


def _quoted(names: Iterable[str]) -> str:
    return ", ".join(map(repr, names)) or "none"
