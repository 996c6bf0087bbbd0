"""Appended info: values that a checkpoint keeps in its manifest, as in MindSpore."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from hookpoint.core.errors import BadArgument
from hookpoint.core.run.run import Run

CLOCKS: dict[str, Callable[[Run], Any]] = {"epoch_num": lambda run: run.epoch, "step_num": lambda run: run.step}
PLAIN = (str, int, float, type(None))


class AppendInfo:
    """Values to append: "epoch_num", "step_num", metric names, and dicts whose values are constants or functions of the run."""

    def __init__(self, owner: str, given: str | Mapping[str, Any] | Iterable[str | Mapping[str, Any]] | None) -> None:
        self._owner = owner
        self._entries: dict[str, Any] = {}
        items = [] if given is None else [given] if isinstance(given, str | Mapping) else list(given)
        for item in items:
            if isinstance(item, str):
                self._entries[item] = CLOCKS.get(item, _metric(item))
            elif isinstance(item, Mapping) and all(isinstance(name, str) and name for name in item):
                self._entries.update(item)
                for name, value in item.items():
                    if not callable(value):
                        self._plain(name, value)
            else:
                raise BadArgument(
                    f"{owner}: append_info takes names and dicts with string keys, got {item!r}.",
                    write='append_info=["epoch_num", "val_loss", {"team": "vision"}]',
                )

    def __call__(self, run: Run) -> dict[str, Any]:
        """Return the current values. A metric that has no value yet is left out."""
        values = {}
        for name, value in self._entries.items():
            now = value(run) if callable(value) else value
            if now is not _metric:
                values[name] = self._plain(name, now)
        return values

    def _plain(self, name: str, value: Any) -> Any:
        if isinstance(value, PLAIN):
            return value
        if isinstance(value, list | tuple):
            return [self._plain(name, item) for item in value]
        if isinstance(value, Mapping) and all(isinstance(key, str) for key in value):
            return {key: self._plain(name, item) for key, item in value.items()}
        if getattr(value, "numel", lambda: getattr(value, "size", 0))() == 1 and hasattr(value, "item"):
            return value.item()
        raise BadArgument(
            f"{self._owner}: append_info[{name!r}] may contain numbers, strings, lists and dicts, got {type(value).__name__}.",
            save='other objects with Loop(state={"name": thing})',
        )


def _metric(name: str) -> Callable[[Run], Any]:
    return lambda run: run.metrics.get(name, _metric)
