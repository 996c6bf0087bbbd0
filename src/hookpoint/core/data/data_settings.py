"""Data settings: values that a training changes, and that the handlers in a loader get."""

from __future__ import annotations

import copy
from collections.abc import Iterator, KeysView, Mapping
from typing import Any

from hookpoint.core.errors import BadValue, UnknownSetting

PLAIN = (bool, int, float, str, type(None))
MOST_AHEAD = 1000  # batches that workers may be ahead of the training: what older ones had is forgotten


class DataSettings:  # no Mapping: a checkpoint would keep what is in it one by one, and not the whole
    """Settings of a loader by name. What is set holds from the next pass on, in every process; a pass keeps what it began with.

    With `per_batch`, it holds from the next batch on that is begun, of a training pass as of any other. What batches had that
    workers have begun is kept, so that a pass that is resumed gives them the same again.

    `goes_on` says that the training pass that begins is one that is gone on with after a resume: it has what it had.

    They are plain values, alone or in lists, tuples and mappings: numbers, text, True, False and None.

    >>> settings = DataSettings({"strength": 0.0})
    >>> settings["strength"] = 0.5
    >>> dict(settings)
    {'strength': 0.5}
    """

    def __init__(self, values: Mapping[str, Any] | None = None, *, per_batch: bool = False) -> None:
        self.per_batch = per_batch
        self._values: dict[str, Any] = {}
        for name, value in (values or {}).items():
            self._values[name] = _plain(name, value)
        self._of_pass: dict[str, Any] = {}
        self._begun = 0  # batches of the training pass
        self._changes: list[tuple[int, dict[str, Any]]] = []  # from which of these batches on which values hold
        self.goes_on = False

    def __getitem__(self, name: str) -> Any:
        return self._values[self._known(name)]

    def __setitem__(self, name: str, value: Any) -> None:
        self._values[self._known(name)] = _plain(name, value)

    def __contains__(self, name: object) -> bool:
        return name in self._values

    def keys(self) -> KeysView[str]:
        return self._values.keys()

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def __repr__(self) -> str:
        return f"DataSettings({self._values!r})"

    def param(self, name: str) -> SettingParam:
        """Return a setting for `run.hyper.register(...)`, so that whatever sets hyper-parameters sets it."""
        return SettingParam(self, self._known(name))

    def begin_pass(self, *, trains: bool) -> Mapping[str, Any]:
        """Return what holds for the pass that begins: what is set now, or what the pass that is gone on with began with."""
        values = copy.deepcopy(self._values)
        if not trains:
            return values
        if not self.goes_on:
            self._of_pass = values
            self._begun, self._changes = 0, []
        return self._of_pass

    def of_batch(self, number: int, *, trains: bool) -> Mapping[str, Any]:
        """Return what holds for a batch that is begun: what is set now, or what it had before the run was resumed."""
        if not trains:
            return copy.deepcopy(self._values)
        if number < self._begun:
            return next((values for first, values in reversed(self._changes) if first <= number), self._of_pass)
        self._begun = number + 1
        if not self._changes or self._changes[-1][1] != self._values:
            self._changes.append((number, copy.deepcopy(self._values)))
            while len(self._changes) > 1 and self._changes[1][0] < self._begun - MOST_AHEAD:
                del self._changes[0]
        return self._changes[-1][1]

    def state_dict(self) -> dict[str, Any]:
        """Return the settings as they are set, and as the last training pass has them."""
        state = {"values": copy.deepcopy(self._values), "of_pass": copy.deepcopy(self._of_pass)}
        batches = {"begun": self._begun, "changes": [[first, copy.deepcopy(values)] for first, values in self._changes]}
        return {**state, **batches} if self.per_batch else state

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take back what `state_dict` returned; a setting that it does not know keeps its value."""
        kept = copy.deepcopy(dict(state))
        self._values.update({name: value for name, value in kept["values"].items() if name in self._values})
        self._of_pass = {**self._values, **kept["of_pass"]}
        self._begun = kept.get("begun", 0)
        self._changes = [(first, {**self._values, **values}) for first, values in kept.get("changes", ())]

    def _known(self, name: str) -> str:
        if name not in self._values:
            raise UnknownSetting(name, self._values, declare=f'HookedLoader(..., settings={{"{name}": ...}})')
        return name


class SettingParam:
    """One of the settings, as a hyper-parameter."""

    def __init__(self, settings: DataSettings, name: str) -> None:
        self._settings, self.name = settings, name

    def get_value(self) -> Any:
        return self._settings[self.name]

    def set_value(self, value: Any) -> None:
        self._settings[self.name] = value


def _plain(name: str, value: Any) -> Any:
    """Return a copy that nobody else holds, or refuse what could not be sent to a worker and kept in a checkpoint."""
    if type(value) in PLAIN:
        return value
    if type(value) in (list, tuple):
        return type(value)(_plain(name, one) for one in value)
    if type(value) is dict:
        return {key: _plain(name, one) for key, one in value.items()}
    raise BadValue(
        f"the setting '{name}' takes numbers, text, True, False, None, or lists and mappings of them.",
        got=f"{type(value).__name__} {value!r}"[:80],
        write="float(value) or value.tolist()",
    )
