"""Settings: the hyper-parameters, knobs and actions that commands can set or call, and `log_every`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from hookpoint.core.callback.handlers import call_with_named
from hookpoint.core.callback.knob import Knob, actions_of, knobs_of
from hookpoint.core.control.controlled_loop import ControlledLoop
from hookpoint.core.errors import BadValue, UnknownSetting
from hookpoint.core.hooks.entry import Entry
from hookpoint.core.run.hyper import checked, split_name

NEVER_NEGATIVE = ("lr", "momentum", "weight_decay")
TYPES = {float: "float", int: "int", bool: "bool", str: "str", tuple: "list", list: "list"}
LOG_EVERY = Knob("log_every", int, low=1, about="steps between two log steps")


@dataclass(frozen=True, slots=True)
class CallbackKnob:
    """A knob and its callback's entry."""

    entry: Entry
    knob: Knob

    @property
    def name(self) -> str:
        return f"{self.entry.name}.{self.knob.name}"

    @property
    def value(self) -> Any:
        return getattr(self.entry.subject, self.knob.name)


class Settings:
    """A run's settings, under the names that commands use, such as `lr`, `log_every` and `MixUp.alpha`.

    The part before the dot is the callback's name, or its class name if it is the only callback of its class. Once a command
    has changed a setting that no other part of the checkpoint contains, this class saves and restores it.
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
                low = {"low": 0.0} if split_name(name)[0] in NEVER_NEGATIVE else {}
                rows.append({"name": name, "type": kind or "float", "value": _number(value), **low})
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
        return knob.value if knob is not None else _number(self._run.hyper[name])

    # Changing

    def check(self, name: str, value: Any) -> None:
        """Raise if the setting does not exist or does not accept this value. Do not change anything."""
        if name == "log_every":
            if not self._loop.log_every:
                raise BadValue("log_every is 0 in this run: there are no log steps.")
            LOG_EVERY.check(name, value)
        elif (knob := self._find(name)) is not None:
            knob.knob.check(name, value)
        else:
            checked(name, value, self._run.hyper[name])
            if split_name(name)[0] in NEVER_NEGATIVE and isinstance(value, int | float) and value < 0:
                raise BadValue(f"{name} must be >= 0, got {value!r}.")

    def turn_knobs(self, values: Mapping[str, Any]) -> Callable[[], None]:
        """Set knobs to checked values. Return a function that restores the old values. Raise if a callback refuses a value."""
        done: list[tuple[CallbackKnob, Any, Any]] = []

        def undo() -> None:
            while done:
                knob, was, value = done.pop()
                self._turn(knob, value, was)

        for name, value in values.items():
            if name != "log_every" and (knob := self._find(name)) is not None:
                was, value = knob.value, knob.knob.check(name, value)
                try:
                    self._turn(knob, was, value)
                except BaseException:
                    undo()
                    raise
                done.append((knob, was, value))
        return undo

    def put(self, values: Mapping[str, Any]) -> None:
        """Set the checked values, except those of knobs, which are already set."""
        for name, value in values.items():
            if name == "log_every":
                self._changed.add(name)
                self._loop.set_log_every(value)
            elif (knob := self._find(name)) is not None:
                self._changed.add(knob.name)
            else:
                if self._run.hyper.registered(name) is not None:
                    self._changed.add(name)
                self._run.hyper.set(name, tuple(value) if isinstance(value, list) else value, same_on_all_ranks=True)

    def _turn(self, knob: CallbackKnob, was: Any, value: Any) -> None:
        subject, name = knob.entry.subject, knob.knob.name
        setattr(subject, name, value)
        if callable(reacts := getattr(subject, "on_knob", None)) and knob.entry in self._loop.hooks.entries:
            try:
                call_with_named(reacts, {"run": self._run, "name": name, "was": was, "value": value})
            except BaseException:
                setattr(subject, name, was)
                raise
        self._run.recapture()

    def find_action(self, name: str) -> Callable[[], Any]:
        """Return a function that calls an action. Raise UnknownSetting if there is no such action."""
        owner, _, action = name.rpartition(".")
        entry = self._entry(owner, lambda subject: action in actions_of(type(subject)))
        if entry is None:
            raise UnknownSetting(name, (row["name"] for row in self.action_rows()))
        runs_here = entry in self._loop.hooks.entries
        method, payload = getattr(entry.subject, action), {"run": self._run}
        return lambda: call_with_named(method, payload) if runs_here else None

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
        """Return the current values of the settings that commands have changed and that nothing else saves."""
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
                        self.turn_knobs({name: value})
                        self.put({name: value})
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
            if owner and name not in self._run.hyper:
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


def _number(value: Any) -> Any:
    """Return a plain value. A one-element tensor becomes a float."""
    return value if type(value) in TYPES or not hasattr(value, "__float__") else float(value)
