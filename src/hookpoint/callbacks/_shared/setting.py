"""Setting: a hyper-parameter that a callback changes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from hookpoint.core.callback.current import is_on_all_ranks
from hookpoint.core.errors import BadArgument, BadValue
from hookpoint.core.logger import logger
from hookpoint.core.run.hyper import NEVER_NEGATIVE, HyperParam, split_name
from hookpoint.core.run.rates import as_stored
from hookpoint.core.run.run import Run


class Setting:
    """Read and change a setting, given by its name in `run.hyper` or as an object such as ObjAttrParam.

    Each change sends the event "setting" and logs a line. A learning rate is read and set in the first parameter group; the
    other groups keep their ratios to it. Any other setting is changed separately in each group. If two callbacks change the
    same setting, one warning names both. A checkpoint stores the value, unless the optimizer's state already contains it.

    In a distributed run, all ranks apply a new value at the same step, one step after a rank has set it. Pass
    `same_on_all_ranks=True` if every rank sets the same value. The ranks then apply the value immediately.
    """

    def __init__(self, param: str | HyperParam, *, same_on_all_ranks: bool = False) -> None:
        is_object = hasattr(param, "get_value") and hasattr(param, "set_value") and hasattr(param, "name")
        if not (isinstance(param, str) and param) and not is_object:
            give = 'a name such as "learning_rate", or ObjAttrParam(obj, "attr")'
            raise BadArgument(f"{param!r} is not a setting.", give=give)
        self.name: str = param if isinstance(param, str) else param.name
        self.has_written = self.has_warned = False
        self.owner = ""  # the name of the callback
        self._same_on_all_ranks = self._is_same_everywhere = same_on_all_ranks
        self._param = None if isinstance(param, str) else param
        self._own: HyperParam | None = self._param  # None if the setting belongs to parameter groups
        self._rivals: list[Setting] = []
        self._stored: Any = None

    def begin(self, run: Run, by: str, *, takes_over: bool = False) -> None:
        """Look up the setting; raise if it does not exist. Discard the state of the previous run.

        If the run also has a scheduler for this learning rate, log a warning. With `takes_over=True`, log no warning, because
        the callback deliberately replaces the scheduler's value before each step.
        """
        self.owner = by
        self._is_same_everywhere = self._same_on_all_ranks and is_on_all_ranks()
        if self._param is None:
            self._own = run.hyper.registered(self.name)
        if self._is_broadcast(run) and self._own is not None:
            run.hyper.register(self._own)
        self.value(run)
        settings = [getattr(entry.subject, "setting", None) for entry in run.hooks.entries]
        targets = self.targets(run)
        self._rivals = [
            other for other in settings if isinstance(other, Setting) and other is not self and targets & other.targets(run)
        ]
        self.has_warned = False
        self.has_written, self._stored = False, None
        if run.lr_scheduler is not None and self._own is None and self._key == "lr" and not takes_over:
            self._warn_about(f"the lr_scheduler, {type(run.lr_scheduler).__name__}")

    def is_called(self, name: str) -> bool:
        """Return whether `name` refers to this setting. `lr` and `learning_rate` are synonyms."""
        return split_name(name) == split_name(self.name)

    def value(self, run: Run) -> Any:
        """Return the current value; with parameter groups, the value of the first group."""
        return self._get(run, self._names(run)[0])

    def set(self, run: Run, value: Any, *, quietly: bool = False) -> bool:
        """Set the value; return whether it changed."""
        return self.adjust(run, lambda old: value, quietly=quietly)

    def adjust(self, run: Run, function: Callable[[Any], Any], *, quietly: bool = False) -> bool:
        """Set the value to `function(old)` unless the result is None; return whether the value changed.

        For a learning rate, the function is called once, with the rate of the first parameter group. For any other setting, it
        is called once for each distinct value in the parameter groups. With `quietly`, no event is sent and no line is logged.
        """
        names = self._names(run)
        old = [self._get(run, name) for name in names]
        results = [(value, _plain(function(value))) for position, value in enumerate(old) if value not in old[:position]]
        new = [next(_like(value, result) for known, result in results if known == value) for value in old]
        return self._change(run, names, old, new, quietly=quietly)

    def set_each(self, run: Run, values: list[Any]) -> bool:
        """Set a separate value for each parameter group, without keeping their ratios. Return whether any value changed."""
        names = run.hyper.group_names(self.name)
        return self._change(run, names, [self._get(run, name) for name in names], values)

    def _change(self, run: Run, names: list[str], old: list[Any], new: list[Any], *, quietly: bool = False) -> bool:
        triples = zip(names, old, new, strict=True)
        changes = [(name, now) for name, was, now in triples if now is not None and not self._holds(run, name, was, now)]
        for name, value in changes:
            if self._own is None and self._key in NEVER_NEGATIVE and isinstance(value, int | float) and value < 0:
                raise BadValue(f"{self.name} must not be negative.", got=repr(value), by=self.owner)
            if self._own is None or self._is_broadcast(run):
                run.hyper.set(name, value, same_on_all_ranks=self._is_same_everywhere)
            else:
                self._own.set_value(value)
                run.recapture()
        if not changes:
            return False
        self.has_written = True
        for rival in self._rivals:
            if rival.has_written:
                self._warn_about(rival.owner)
                rival.has_warned = True
        if not quietly:
            before, after = _merged(old), _merged([self._get(run, name) for name in names])
            logger.info("%s: %s -> %s (set by %s)", self.name, before, after, self.owner)
            run.put_event("setting", param=self.name, value=after, previous=before, by=self.owner)
        return True

    def log(self, run: Run) -> None:
        """Log the value as a metric, unless the metric already has a value in this epoch.

        For example, a Runner already logs the learning rate.
        """
        if self.name not in run.logs:
            run.put_scalar(self.name, self.value(run))

    def state_dict(self) -> dict[str, Any]:
        if self._own is not None and self.has_written:
            self._stored = self._own.get_value()
        return {"has_written": self.has_written, "value": self._stored}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.has_written, self._stored = state["has_written"], state["value"]
        if self._own is not None and self.has_written:
            self._own.set_value(self._stored)

    @property
    def _key(self) -> str:
        return split_name(self.name)[0]

    def targets(self, run: Run) -> frozenset[Any]:
        """Return identifiers of what this setting changes: an object, or entries in parameter groups.

        If two settings have an identifier in common, they change the same value.
        """
        if self._own is not None:
            return frozenset([getattr(self._own, "identity", id(self._own))])
        return frozenset((self._key, address) for address in run.hyper.addresses(self.name))

    def _names(self, run: Run) -> list[str]:
        """Return the names whose values a change sets: one name for each parameter group.

        For a learning rate, an object, or a name with "@", return only the name of the setting.
        """
        if self._own is not None or "@" in self.name or self._key == "lr":
            return [self.name]
        return run.hyper.group_names(self.name) or [self.name]

    def _holds(self, run: Run, name: str, value: Any, new: Any) -> bool:
        """Return whether the setting already has the new value, after rounding if the setting is stored in a tensor."""
        if new == value or self._own is not None or not isinstance(new, int | float):
            return bool(new == value)
        return bool(as_stored(run.hyper.stored(name), new) == value)

    def _get(self, run: Run, name: str) -> Any:
        value = run.hyper[name] if self._own is None or self._is_broadcast(run) else self._own.get_value()
        return float(value) if hasattr(value, "fill_") else value  # a learning rate may be a tensor

    def _is_broadcast(self, run: Run) -> bool:
        """Return whether a change must be sent to the other ranks."""
        return run.hyper.request is not None and not self._is_same_everywhere

    def _warn_about(self, other: str) -> None:
        if not self.has_warned:
            self.has_warned = True
            logger.warning("%s and %s both set %s; the last write wins", other, self.owner, self.name)


def _plain(value: Any) -> Any:
    """Convert a NumPy scalar, or a tensor with one element, to a Python number. Return other values unchanged."""
    return value.item() if hasattr(value, "item") and not isinstance(value, int | float) else value


def _like(old: Any, value: Any) -> Any:
    """Convert a number to the type of the old value, unless this would change the number."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return value
    if type(old) is float and type(value) is int:
        return float(value)
    return int(value) if type(old) is int and type(value) is float and value.is_integer() else value


def _merged(values: list[Any]) -> Any:
    return values[0] if all(value == values[0] for value in values) else values
