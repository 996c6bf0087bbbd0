"""Data settings: values that the training code sets and that the handlers of a loader receive."""

from __future__ import annotations

import copy
from collections.abc import Iterator, KeysView, Mapping
from typing import Any

from hookpoint.core.errors import BadValue, UnknownSetting

PLAIN = (bool, int, float, str, type(None))
MAX_AHEAD = 1000  # how many batches workers may be ahead of training; settings for older batches are dropped


class DataSettings:  # not a Mapping: a checkpoint would store its items separately, not the object
    """Settings of a loader by name. A change applies from the next pass on, in every process; a running pass keeps its values.

    With `per_batch`, a change applies from the next batch on, in training and in other passes. The settings for batches that
    workers have already begun are saved, so that a resumed pass uses the same ones again.

    `is_resumed` tells `begin_pass` that the training pass is resumed and keeps its settings.

    Values are plain: numbers, strings, True, False and None, alone or in lists, tuples and mappings.

    >>> settings = DataSettings({"strength": 0.0})
    >>> settings["strength"] = 0.5
    >>> dict(settings)
    {'strength': 0.5}
    """

    def __init__(self, values: Mapping[str, Any] | None = None, *, per_batch: bool = False) -> None:
        self.per_batch = per_batch
        self._values: dict[str, Any] = {name: _plain(name, value) for name, value in (values or {}).items()}
        self._of_pass: dict[str, Any] = {}
        self._begun = 0  # number of batches begun in the training pass
        self._changes: list[tuple[int, dict[str, Any]]] = []  # the first batch after each change, and the values from there on
        self.is_resumed = False

    def __getitem__(self, name: str) -> Any:
        return self._values[self._known(name)]

    def __setitem__(self, name: str, value: Any) -> None:
        self._values[self._known(name)] = _plain(name, value)

    def keys(self) -> KeysView[str]:
        return self._values.keys()

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def __repr__(self) -> str:
        return f"DataSettings({self._values!r})"

    def param(self, name: str) -> SettingParam:
        """Return a setting for `run.hyper.register(...)`. Callbacks that set hyper-parameters can then set it."""
        return SettingParam(self, self._known(name))

    def begin_pass(self, *, trains: bool) -> Mapping[str, Any]:
        """Return the settings for a new pass: the current ones, or the saved ones if the pass is resumed."""
        values = copy.deepcopy(self._values)
        if not trains:
            return values
        if not self.is_resumed:
            self._of_pass = values
            self._begun, self._changes = 0, []
        return self._of_pass

    def of_batch(self, number: int, *, trains: bool) -> Mapping[str, Any]:
        """Return the settings for a new batch: the current ones, or the ones it had before the run was resumed."""
        if not trains:
            return copy.deepcopy(self._values)
        if number < self._begun:
            return next((values for first, values in reversed(self._changes) if first <= number), self._of_pass)
        self._begun = number + 1
        if not self._changes or self._changes[-1][1] != self._values:
            self._changes.append((number, copy.deepcopy(self._values)))
            while len(self._changes) > 1 and self._changes[1][0] < self._begun - MAX_AHEAD:
                del self._changes[0]
        return self._changes[-1][1]

    def state_dict(self) -> dict[str, Any]:
        """Return the current settings and the settings of the last training pass."""
        state = {"values": copy.deepcopy(self._values), "of_pass": copy.deepcopy(self._of_pass)}
        batches = {"begun": self._begun, "changes": [[first, copy.deepcopy(values)] for first, values in self._changes]}
        return {**state, **batches} if self.per_batch else state

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore what `state_dict` returned; settings that it does not contain keep their values."""
        saved = copy.deepcopy(dict(state))
        self._values.update({name: value for name, value in saved["values"].items() if name in self._values})
        self._of_pass = {**self._values, **saved["of_pass"]}
        self._begun = saved.get("begun", 0)
        self._changes = [(first, {**self._values, **values}) for first, values in saved.get("changes", ())]

    def _known(self, name: str) -> str:
        if name not in self._values:
            raise UnknownSetting(name, self._values, declare=f'HookedLoader(..., settings={{"{name}": ...}})')
        return name


class SettingParam:
    """A setting as a hyper-parameter."""

    def __init__(self, settings: DataSettings, name: str) -> None:
        self._settings, self.name = settings, name

    def get_value(self) -> Any:
        return self._settings[self.name]

    def set_value(self, value: Any) -> None:
        self._settings[self.name] = value


def _plain(name: str, value: Any) -> Any:
    """Return a private copy of a value; raise if it could not be sent to a worker and saved in a checkpoint."""
    if type(value) in PLAIN:
        return value
    if type(value) in (list, tuple):
        return type(value)(_plain(name, item) for item in value)
    if type(value) is dict:
        return {key: _plain(name, item) for key, item in value.items()}
    raise BadValue(
        f"setting '{name}': expected numbers, strings, True, False, None, or lists and mappings of them.",
        got=f"{type(value).__name__} {value!r}"[:80],
        write="float(value) or value.tolist()",
    )
