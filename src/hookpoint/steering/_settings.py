"""Settings: the hyper-parameters, knobs and actions that commands can set or call, and `log_every`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from hookpoint.core.callback.handlers import call_with_named
from hookpoint.core.callback.knob import Knob, actions_of, knobs_of
from hookpoint.core.control.controlled_loop import ControlledLoop
from hookpoint.core.errors import BadValue, UnknownSetting, listed
from hookpoint.core.hooks.entry import Entry
from hookpoint.core.run.hyper import NEVER_NEGATIVE, as_number, checked, split_name
from hookpoint.core.run.rates import put

TYPES = {float: "float", int: "int", bool: "bool", str: "str", tuple: "list", list: "list"}
LOG_EVERY = Knob("log_every", int, low=1, about="steps between two log steps")


@dataclass(frozen=True, slots=True)
class CallbackKnob:
    """A knob of a callback. `entry` holds the callback itself, its name and its handlers."""

    entry: Entry
    knob: Knob

    @property
    def name(self) -> str:
        return f"{self.entry.name}.{self.knob.name}"

    @property
    def value(self) -> Any:
        return getattr(self.entry.subject, self.knob.name)


class Change:
    """A change to one or more settings, which can be applied and undone.

    `put(undo)` sets the new values. `undo` is a list. For each value, `put` appends a function that restores the old value.
    """

    def __init__(self, put: Callable[[list[Callable[[], None]]], None]) -> None:
        self._put = put
        self._undo: list[Callable[[], None]] = []

    def apply(self) -> None:
        self._put(self._undo)

    def undo(self) -> None:
        """Restore the old values, the last one first. If some cannot be restored, restore the others and raise the error."""
        problem: Exception | None = None
        while self._undo:
            try:
                self._undo.pop()()
            except Exception as error:
                problem = problem or error
        if problem is not None:
            raise problem

    def apply_or_undo(self) -> None:
        """Apply the change. If this fails, restore the old values and raise the error."""
        try:
            self.apply()
        except Exception:
            self.undo()
            raise


class Settings:
    """A run's settings, under the names that commands use, such as `lr`, `log_every` and `MixUp.alpha`.

    The part before the dot is the callback's name, or its class name if it is the only callback of its class. If a command has
    changed a setting, and no other part of the checkpoint contains this setting, this class saves and restores its value.
    """

    def __init__(self, loop: ControlledLoop) -> None:
        self._loop, self._run = loop, loop.run
        self._changed: set[str] = set()

    # Reading

    def rows(self) -> list[dict[str, Any]]:
        """Return one row per setting, with its name, type, value and limits."""
        rows = []
        for name in self._run.hyper:
            value = self._run.hyper[name]
            if (kind := TYPES.get(type(value))) is not None or hasattr(value, "__float__"):
                is_own, is_rate = self._run.hyper.registered(name) is None, split_name(name)[0] in NEVER_NEGATIVE
                if kind == "int" and is_own and (is_rate or value in (0, 1)):
                    kind = "float"  # optimizers have defaults such as weight_decay=0, but Muon's ns_steps=5 is a count
                low = {"low": 0.0} if is_own and is_rate else {}
                rows.append({"name": name, "type": kind or "float", "value": as_number(value), **low})
        if self._loop.log_every:
            rows.append(LOG_EVERY.described("log_every", self._loop.log_every))
        return rows + [one.knob.described(one.name, one.value) for one in self._knobs()]

    def action_rows(self) -> list[dict[str, Any]]:
        """Return one row per action, with its name and the first line of its docstring."""
        rows = []
        for entry in self._loop.hooks.all_entries:
            for action in actions_of(type(entry.subject)):
                lines = (getattr(entry.subject, action).__doc__ or "").strip().splitlines()
                rows.append({"name": f"{entry.name}.{action}", **({"about": lines[0]} if lines else {})})
        return rows

    def value(self, name: str) -> Any:
        """Return the current value of a setting. Raise UnknownSetting if there is no such setting."""
        if name == "log_every":
            return self._loop.log_every
        knob = self._find(name)
        return knob.value if knob is not None else as_number(self._run.hyper[name])

    # Changing

    def check(self, values: Mapping[str, Any]) -> None:
        """Raise if a setting does not exist, does not accept its value, or is given twice. Do not change anything."""
        given: dict[str, str] = {}
        for name, value in values.items():
            full_name = self._check(name, value)
            if full_name in given:
                raise BadValue(f"{given[full_name]} and {name} are the same setting.")
            given[full_name] = name

    def _check(self, name: str, value: Any) -> str:
        """Check a value. Return the setting's full name."""
        if name == "log_every":
            if not self._loop.log_every:
                raise BadValue("log_every is 0 in this run: there are no log steps.")
            LOG_EVERY.check(name, value)
            return name
        if (knob := self._find(name)) is not None:
            knob.knob.check(name, value)
            return knob.name
        checked(name, value, self._run.hyper[name], of_optimizer=self._run.hyper.registered(name) is None)
        key, of = split_name(name)
        return f"{key}@{of}"

    def change(self, values: Mapping[str, Any]) -> Change:
        """Return a Change that sets these values when it is applied. The values must have passed `check`."""
        return Change(lambda undo: self._put(values, undo))

    def _put(self, values: Mapping[str, Any], undo: list[Callable[[], None]]) -> None:
        """Set the values. For each value, append a function to the list `undo`. This function restores the old value."""
        changed = set(self._changed)
        undo.append(lambda: setattr(self, "_changed", changed))
        found = {name: None if name == "log_every" else self._find(name) for name in values}
        for name, knob in found.items():  # knobs first, because their callbacks may refuse a value
            if knob is not None:
                self._turn(knob, knob.knob.check(name, values[name]), undo)
        for name, value in values.items():
            if found[name] is None:
                self._set(name, value, undo)

    def _set(self, name: str, value: Any, undo: list[Callable[[], None]]) -> None:
        if name == "log_every":
            undo.append(self._loop.set_log_every(value))
            self._changed.add(name)
            return
        hyper, was = self._run.hyper, self._run.hyper[name]
        if hyper.registered(name) is None:
            undo.append(self._groups_restorer(split_name(name)[0]))
        else:
            undo.append(lambda: hyper.set(name, was, same_on_all_ranks=True))
            self._changed.add(name)
        hyper.set(name, tuple(value) if isinstance(value, list) else value, same_on_all_ranks=True)

    def _groups_restorer(self, key: str) -> Callable[[], None]:
        """Return a function that restores an optimizer setting in all parameter groups.

        The function also restores the ratios between the learning rates of the groups.
        """
        rates = self._run.hyper.rates
        ratios = rates.state_dict()
        groups = [group for optimizer in self._run.optimizers for group in optimizer.param_groups if key in group]
        values = [as_number(group[key]) for group in groups]

        def restore() -> None:
            for group, value in zip(groups, values, strict=True):
                put(group, key, value)
            rates.load_state_dict(ratios)

        return restore

    def _turn(self, knob: CallbackKnob, value: Any, undo: list[Callable[[], None]]) -> None:
        subject, name, was = knob.entry.subject, knob.knob.name, knob.value
        reacts = getattr(subject, "on_knob", None) if knob.entry in self._loop.hooks.entries else None

        def turn(old: Any, new: Any) -> None:
            setattr(subject, name, new)
            if callable(reacts):
                call_with_named(reacts, {"run": self._run, "name": name, "was": old, "value": new})
            self._run.recapture()

        # If `on_knob` refuses the new value, it is not called for the old value.
        undo.append(lambda: setattr(subject, name, was))
        turn(was, value)
        undo[-1] = lambda: turn(value, was)
        self._changed.add(knob.name)

    def find_action(self, name: str) -> Callable[[], Any] | None:
        """Return a function that calls an action, or None if its callback does not run on this rank.

        Raise BadValue if there is no such action.
        """
        owner, _, action = name.rpartition(".")
        entry = self._entry(owner, lambda subject: action in actions_of(type(subject)))
        if entry is None:
            raise BadValue(f"there is no action {name!r}.", known=listed(row["name"] for row in self.action_rows()))
        if entry not in self._loop.hooks.entries:
            return None
        method, payload = getattr(entry.subject, action), {"run": self._run}
        return lambda: call_with_named(method, payload)

    def who_else_sets(self, name: str) -> list[str]:
        """Return the names of the schedulers and callbacks that also set a hyper-parameter and may overwrite it later."""
        if name == "log_every" or self._find(name) is not None:
            return []
        callbacks = []
        for entry in self._loop.hooks.entries:
            is_called = getattr(getattr(entry.subject, "setting", None), "is_called", None)
            if callable(is_called) and is_called(name):
                callbacks.append(entry.name)
        is_rate = split_name(name)[0] == "lr"
        return [*(type(one).__name__ for one in self._run.schedulers if is_rate), *callbacks]

    # Checkpoints

    def state_dict(self) -> dict[str, Any]:
        """Return the current values of settings that commands have changed, unless they are saved elsewhere."""
        return {name: self.value(name) for name in sorted(self._changed)}

    def load_state_dict(self, state: Mapping[str, Any]) -> list[str]:
        """Restore saved values. Return the names of settings that no longer exist or no longer accept their value."""
        lost = []
        self._changed = set()
        for name, value in state.items():
            try:
                if name == "log_every":
                    self._loop.set_log_every(value, moves_next=False)
                    self._changed.add(name)
                else:
                    if self.value(name) != value:
                        self.change({name: value}).apply_or_undo()
                    self._changed.add(name)
            except Exception:
                lost.append(name)
        return lost

    # Names

    def _knobs(self) -> Iterator[CallbackKnob]:
        for entry in self._loop.hooks.all_entries:
            for knob in knobs_of(type(entry.subject)):
                if isinstance(knob, Knob) and hasattr(entry.subject, knob.name):
                    yield CallbackKnob(entry, knob)

    def _find(self, name: str) -> CallbackKnob | None:
        """Return the knob with this name, or None if there is no such knob."""
        owner, _, attribute = name.rpartition(".")
        entry = self._entry(owner, lambda subject: any(knob.name == attribute for knob in knobs_of(type(subject))))
        if entry is None:
            if name not in self._run.hyper:
                raise UnknownSetting(name, (row["name"] for row in self.rows()))
            return None
        return next(CallbackKnob(entry, knob) for knob in knobs_of(type(entry.subject)) if knob.name == attribute)

    def _entry(self, owner: str, has: Callable[[Any], bool]) -> Entry | None:
        fitting = [entry for entry in self._loop.hooks.all_entries if has(entry.subject)] if owner else []
        named = [entry for entry in fitting if entry.name == owner]
        of_class = [entry for entry in fitting if type(entry.subject).__name__ == owner]
        if not named and len(of_class) > 1:
            names = ", ".join(entry.name for entry in of_class)
            raise BadValue(f"{owner} is the class of {len(of_class)} callbacks.", choose=names)
        return next(iter(named or of_class), None)
