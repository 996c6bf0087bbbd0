"""DatasetRecord: which random generators of a loader's dataset continue from pass to pass."""

from __future__ import annotations

import weakref
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from hookpoint.engine.data import _loader_state
from hookpoint.engine.data._loader_state import is_same


class DatasetRecord:
    """The states of the generators of a loader's dataset, at their first use and in the last pass.

    The user's script may reset a generator to the same state before each pass, or create the dataset for each pass. A run
    detects this from the second pass on. A checkpoint has no first state of such a generator, so that a run that resumes
    between two passes does not restore it.

    `before` is the record for the loader that this loader replaces. Both may have the same dataset.
    """

    def __init__(self, loader: Any, before: DatasetRecord | None) -> None:
        self._first = _loader_state.states_of_datasets(loader)
        self._begun: dict[str, Any] = {}
        self._ended: dict[str, Any] = {}
        self._owners = {path: owner for path, data in _loader_state.datasets(loader).items() if (owner := _reference_to(data))}
        self._reset: set[str] = set()
        if before is not None:
            self._continue(before)

    def _continue(self, before: DatasetRecord) -> None:
        for path in self._first:
            if not self._stays(path, before):
                self._reset.add(path)  # the script has created the dataset again
                continue
            self._reset |= {path} & before._reset
            for mine, earlier in ((self._first, before._first), (self._begun, before._begun), (self._ended, before._ended)):
                mine |= {path: earlier[path]} if path in earlier else {}

    def _stays(self, path: str, before: DatasetRecord) -> bool:
        """Return whether a generator belongs to the same dataset as in an earlier loader."""
        name = path.rpartition(".")[0]
        owner, earlier = self._owners.get(name), before._owners.get(name)
        return owner is not None and earlier is not None and owner() is earlier()

    def begin(self, loader: Any) -> None:
        now = _loader_state.states_of_datasets(loader)
        for path, state in now.items():
            begun, ended = self._begun.get(path), self._ended.get(path)
            if ended is not None and not is_same(ended, begun):  # otherwise, the last pass does not tell
                (self._reset.add if is_same(state, begun) else self._reset.discard)(path)
        self._begun, self._ended = now, {}

    def end(self, loader: Any) -> None:
        self._ended = _loader_state.states_of_datasets(loader)

    def load(self, record: Mapping[str, Any], *, in_pass: bool = False) -> None:
        """Take over which generators the script resets, from a checkpoint."""
        now, first = (_loader_state.of_datasets(record[name]["generators"]) for name in ("now", "first"))
        self._reset = now.keys() - first.keys()
        self._first = _loader_state.first_values(self._first, now, first)
        if in_pass:
            self._begun = _loader_state.of_datasets(record["begun"]["generators"])

    def put_first(self, state: Mapping[str, Any]) -> dict[str, Any]:
        """Return a loader's first state with the first states of the generators that are not reset."""
        others = {path: one for path, one in state["generators"].items() if path not in _loader_state.of_datasets({path: one})}
        kept = {path: one for path, one in self._first.items() if path not in self._reset}
        return {**state, "generators": {**others, **kept}}


def _reference_to(data: Any) -> weakref.ref[Any] | None:
    with suppress(TypeError):  # some builtin objects have no weak references
        return weakref.ref(data)
    return None
