"""Data settings: values that the training code sets, and that a loader's handlers receive."""

from __future__ import annotations

import copy
from collections.abc import Iterator, KeysView, Mapping
from typing import Any

from hookpoint.core.errors import BadValue, UnknownSetting

PLAIN = (bool, int, float, str, type(None))
MAX_AHEAD = 1000  # workers load at most this many batches ahead of training; older settings are dropped


class DataSettings:  # not a Mapping, because a checkpoint would then store the items instead of the object
    """A loader's settings, by name. A change takes effect with the next pass, in every process. A pass in progress keeps its
    values.

    With `per_batch`, a change takes effect with the next batch, in training and in other passes. Checkpoints include the
    settings of batches that workers have already begun to load, so that a resumed pass loads these batches with the same
    settings.

    While `is_resumed` is True, `begin_pass` returns the saved settings for a training pass, not the current settings.

    Values must be plain: numbers, strings, True, False and None, alone or in lists, tuples and dicts.

    >>> settings = DataSettings({"strength": 0.0})
    >>> settings["strength"] = 0.5
    >>> dict(settings)
    {'strength': 0.5}
    """

    def __init__(self, values: Mapping[str, Any] | None = None, *, per_batch: bool = False) -> None:
        self.per_batch = per_batch
        self._values: dict[str, Any] = {name: _plain(name, value) for name, value in (values or {}).items()}
        self._of_pass: dict[str, Any] = {}
        self._begun = 0  # number of batches whose loading has begun in the training pass
        # For each change: the first batch that it affects, and the new settings.
        self._changes: list[tuple[int, dict[str, Any]]] = []
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
        """Return an object for `run.hyper.register(...)`, so that callbacks can set this setting like a hyper-parameter."""
        return SettingParam(self, self._known(name))

    def begin_pass(self, *, trains: bool) -> Mapping[str, Any]:
        """Return the settings for a new pass. If the pass is resumed, these are the saved settings."""
        values = copy.deepcopy(self._values)
        if not trains:
            return values
        if not self.is_resumed:
            self._of_pass = values
            self._begun, self._changes = 0, []
        return self._of_pass

    def of_batch(self, number: int, *, trains: bool) -> Mapping[str, Any]:
        """Return the settings for a batch. If its loading began before the checkpoint, these are the saved settings."""
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
        """Restore the state that `state_dict` returned. Settings that are not in the state keep their values."""
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
    """A hyper-parameter that reads and sets a loader setting. Register it with `run.hyper.register(...)`."""

    def __init__(self, settings: DataSettings, name: str) -> None:
        self._settings, self.name = settings, name

    def get_value(self) -> Any:
        return self._settings[self.name]

    def set_value(self, value: Any) -> None:
        self._settings[self.name] = value


def _plain(name: str, value: Any) -> Any:
    """Return a copy of a value. Raise BadValue if it cannot be sent to a worker or saved in a checkpoint."""
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
