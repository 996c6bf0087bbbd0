"""Hyper-parameters by name: read and set the learning rate or any registered attribute during the run."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, MutableMapping
from types import SimpleNamespace
from typing import Any, Protocol

from hookpoint.core.errors import BadValue, NotAssignable, UnknownSetting
from hookpoint.core.run.rates import Address, Groups, Rates, put

ALIASES = {"learning_rate": "lr"}
NAMES_OF_RATE = ("learning_rate", "lr")
NEVER_NEGATIVE = ("lr", "momentum", "weight_decay")
ATTRIBUTES = ("rates", "recapture", "request")
LARGEST = 3.4028234663852886e38  # the largest float32


class HyperParam(Protocol):
    """A setting that can be read and set by name."""

    name: str

    def get_value(self) -> Any: ...

    def set_value(self, value: Any) -> None: ...


class ObjAttrParam:
    """Any object's attribute as a setting: `run.hyper.register(ObjAttrParam(model, "dropout"))`.

    >>> class Model: dropout = 0.5
    >>> param = ObjAttrParam(Model, "dropout"); param.set_value(0.1); Model.dropout
    0.1
    """

    def __init__(self, obj: Any, attribute: str, *, name: str | None = None) -> None:
        if not hasattr(obj, attribute):
            raise UnknownSetting(attribute, (known for known in dir(obj) if not known.startswith("_")))
        self._obj, self._attribute = obj, attribute
        self.name = name or attribute

    @property
    def identity(self) -> object:
        """The identity of the attribute that this param changes. Two params for the same attribute have equal identities."""
        return id(self._obj), self._attribute

    def get_value(self) -> Any:
        return getattr(self._obj, self._attribute)

    def set_value(self, value: Any) -> None:
        setattr(self._obj, self._attribute, checked(self.name, value, self.get_value(), of_optimizer=False))


class GroupParam:
    """A setting in the optimizer's parameter groups. All groups get the same value."""

    def __init__(self, groups: list[dict[str, Any]], key: str, name: str) -> None:
        self._groups, self._key, self.name = groups, key, name

    def get_value(self) -> Any:
        return as_number(self._groups[0][self._key])

    def set_value(self, value: Any) -> None:
        value = checked(self.name, value, self.get_value())
        for group in self._groups:
            put(group, self._key, value)


class RateParam(GroupParam):
    """The learning rate of parameter groups. The value is the first group's rate. The other groups keep their ratios to it."""

    def __init__(self, rates: Rates, groups: Groups, addresses: list[Address], name: str) -> None:
        super().__init__([groups[addresses[0]]], "lr", name)
        self._rates, self._all, self._addresses = rates, groups, addresses

    def get_value(self) -> float:
        return self._rates.read(self._groups[0]["lr"])

    def set_value(self, value: Any) -> None:
        self._rates.set(self.name, self._all, self._addresses, checked(self.name, value, self.get_value()))


class Hyper(MutableMapping[str, Any]):
    """The optimizer's settings and all registered settings, by name. For example, set `run.hyper["learning_rate"] = 0.1`.

    Names are `learning_rate` (or `lr`), `momentum`, `weight_decay` and every other number in the optimizer's parameter groups.
    A value that is not finite or does not have the setting's type raises BadValue. A number is read as a float even if the
    optimizer stores it in a tensor.

    The learning rate is the rate of the first group. If you set it, the groups of all optimizers keep their ratios to the
    first group. If the first group already has this rate, nothing changes. Any other setting gets the same value in all groups
    that have it. A negative learning rate, momentum or weight decay raises BadValue.

    `"lr@0"` is the rate of a single group. Groups are numbered from 0 across all optimizers. With a dict of optimizers,
    `"lr@critic"` is the rate of one optimizer: its first group gets the value, and its other groups keep their ratios to the
    first. If you set `"lr@0"` or `"lr@critic"`, the ratios between these groups and all other groups change permanently.
    """

    def __init__(self, optimizer: Any = None) -> None:
        self._optimizer = optimizer
        self.rates = Rates(self._groups)
        self._registered: dict[str, HyperParam] = {}
        self._pending: dict[str, Any] = {}
        self.request: Callable[[str, Any], None] | None = None
        self.recapture: Callable[[], None] | None = None  # called after a change, because a CUDA graph keeps the old value

    def __setattr__(self, name: str, value: Any) -> None:
        if not name.startswith("_") and name not in ATTRIBUTES:
            raise NotAssignable(f"run.hyper.{name} cannot be assigned.", write=f'run.hyper["{name}"] = {value!r}')
        object.__setattr__(self, name, value)

    def register(self, param: HyperParam) -> None:
        """Add a setting. It takes precedence over an optimizer setting with the same name."""
        self._registered[param.name] = param

    def registered(self, name: str) -> HyperParam | None:
        """Return the setting registered under this name, or None. `lr` and `learning_rate` are treated as the same name."""
        found = self._registered.get(name)
        if found is None and name in NAMES_OF_RATE:
            found = next((self._registered[one] for one in NAMES_OF_RATE if one in self._registered), None)
        return found

    def __getitem__(self, name: str) -> Any:
        pending = self._pending_name(name)
        return self._param(name).get_value() if pending is None else self._pending[pending]

    def __setitem__(self, name: str, value: Any) -> None:
        self.set(name, value)

    def set(self, name: str, value: Any, *, alike: bool = False, same_on_all_ranks: bool = False) -> None:
        """Change a setting. With multiple ranks, all ranks apply the change one step later, at the same step.

        `same_on_all_ranks` (older name: `alike`) declares that every rank sets the same value at this point, so that the value
        is applied immediately.
        """
        param = self._param(name)
        if self.request is None or alike or same_on_all_ranks:
            param.set_value(value)
            if self.recapture is not None and self.registered(name) is not None:
                self.recapture()
            return
        if isinstance(param, GroupParam | ObjAttrParam):
            value = checked(name, value, param.get_value(), of_optimizer=isinstance(param, GroupParam))
        self.request(name, value)
        self._pending.pop(self._pending_name(name) or name, None)
        self._pending[name] = value

    def stored(self, name: str) -> Any:
        """Return a setting's value as it is stored. A number in a parameter group may be stored in a tensor."""
        addresses = [] if self.registered(name) is not None else self.addresses(name)
        return self._groups()[addresses[0]][split_name(name)[0]] if addresses else self[name]

    def _pending_name(self, name: str) -> str | None:
        """Return the name that was used in a pending change to this setting, or None if no change is pending.

        The names may differ: a change to `learning_rate` may be pending as `lr`.
        """
        return next((pending for pending in self._pending if split_name(pending) == split_name(name)), None)

    def apply_agreed(self, values: Mapping[str, Any]) -> None:
        """Set the values that all ranks have agreed on."""
        for name, value in values.items():
            self._pending.pop(self._pending_name(name) or name, None)
            self._param(name).set_value(value)

    def __delitem__(self, name: str) -> None:
        if name not in self._registered:
            raise UnknownSetting(name, self._registered)
        del self._registered[name]

    def __iter__(self) -> Iterator[str]:
        yield from self._registered
        names = {key: None for group in self._groups().values() for key, value in group.items() if _is_setting(value)}
        yield from (name for name in names if name not in self._registered)

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def frozen(self, copied: Callable[[Any], Any]) -> FrozenHyper:
        """Return a read-only snapshot of the settings. The function `copied` copies each value."""
        optimizers, is_mapping = self._optimizer, isinstance(self._optimizer, Mapping)
        if is_mapping or isinstance(optimizers, list | tuple):
            pairs = optimizers.items() if is_mapping else enumerate(optimizers)
            twin: Any = {name: _settings(optimizer, copied) for name, optimizer in pairs}
        else:
            twin = _settings(optimizers, copied)
        values = {name: copied(self[name]) for name in {**self._registered, **self._pending}}
        return FrozenHyper(twin, values)

    def addresses(self, name: str) -> list[Address]:
        """Return the parameter groups that a name refers to. Empty if the name is not an optimizer setting."""
        return self._selected(*split_name(name), self._groups())

    def _selected(self, key: str, of: str, groups: Groups) -> list[Address]:
        if of and isinstance(self._optimizer, Mapping) and of in map(str, self._optimizer):
            chosen = [address for address in groups if address[0] == of]
        else:
            chosen = list(groups)[int(of) : int(of) + 1] if of.isdecimal() else [] if of else list(groups)
        return [address for address in chosen if _is_setting(groups[address].get(key))]

    def group_names(self, name: str) -> list[str]:
        """Return the per-group names of a setting, one for each group that has it."""
        key, _ = split_name(name)
        return [f"{name}@{number}" for number, group in enumerate(self._groups().values()) if _is_setting(group.get(key))]

    def _groups(self) -> dict[Address, dict[str, Any]]:
        """Return the parameter groups of all optimizers, in order."""
        optimizers = self._optimizer
        if not isinstance(optimizers, Mapping):
            optimizers = dict(enumerate(optimizers)) if isinstance(optimizers, list | tuple) else {"": optimizers}
        return {
            (str(name), number): group
            for name, optimizer in optimizers.items()
            for number, group in enumerate(getattr(optimizer, "param_groups", None) or [])
        }

    def _param(self, name: str) -> HyperParam:
        if (registered := self.registered(name)) is not None:
            return registered
        (key, of), groups = split_name(name), self._groups()
        addresses = self._selected(key, of, groups)
        if not addresses:
            raise UnknownSetting(name, self._known(name))
        rates = self.rates.among(groups, addresses) if key == "lr" else []
        if rates:
            return RateParam(self.rates, groups, rates, name)
        return GroupParam([groups[address] for address in addresses], key, name)

    def _known(self, name: str) -> list[str]:
        """Return the known settings. For a name such as "lr@x", return the valid forms of that setting."""
        key, of = split_name(name)
        if not of or not self.addresses(key):
            names = list(self)
            return [*names, *(alias for alias, known in ALIASES.items() if known in names and alias not in names)]
        optimizers = self._optimizer if isinstance(self._optimizer, Mapping) else ()
        return [key, *self.group_names(key), *(f"{key}@{part}" for part in optimizers if self.addresses(f"{key}@{part}"))]


class FrozenHyper(Hyper):
    """A read-only snapshot of the settings. Assigning a value to a setting raises NotAssignable."""

    def __init__(self, optimizer: Any, values: Mapping[str, Any]) -> None:
        super().__init__(optimizer)
        self._pending = dict(values)

    def __iter__(self) -> Iterator[str]:
        return iter(dict.fromkeys([*self._pending, *super().__iter__()]))

    def set(self, name: str, value: Any, *, alike: bool = False, same_on_all_ranks: bool = False) -> None:
        raise NotAssignable(f"run.hyper['{name}'] is read-only in an asynchronous callback.", remove="asynchronous = True")

    def register(self, param: HyperParam) -> None:
        self.set(param.name, param)

    def __delitem__(self, name: str) -> None:
        self.set(name, None)


def _settings(optimizer: Any, copied: Callable[[Any], Any]) -> Any:
    """Return a stand-in for an optimizer, with copies of its parameter groups but without the parameters."""
    groups = getattr(optimizer, "param_groups", None) or []
    return SimpleNamespace(
        param_groups=[{key: copied(value) for key, value in group.items() if key != "params"} for group in groups]
    )


def split_name(name: str) -> tuple[str, str]:
    """Split a name into the key in parameter groups and the optimizer or group number after "@".

    >>> split_name("learning_rate@critic")
    ('lr', 'critic')
    """
    key, _, of = name.partition("@")
    return ALIASES.get(key, key), of


def checked(name: str, value: Any, present: Any, *, of_optimizer: bool = True) -> Any:
    """Return the value if it can replace the current one. Otherwise, raise BadValue."""
    if isinstance(present, tuple):
        if isinstance(value, tuple | list) and len(value) == len(present):
            return tuple(checked(name, item, now, of_optimizer=of_optimizer) for item, now in zip(value, present, strict=True))
        expected = f"{len(present)} values"
    elif isinstance(present, bool):
        if isinstance(value, bool):
            return value
        expected = "True or False"
    elif not hasattr(present, "__float__"):
        if isinstance(value, type(present)):
            return value
        expected = f"a {type(present).__name__}"
    elif isinstance(value := as_number(value), bool) or not isinstance(value, int | float) or not math.isfinite(value):
        expected = "a finite number"
    elif of_optimizer and value < 0 and split_name(name)[0] in NEVER_NEGATIVE:
        expected = ">= 0"
    elif abs(value) <= LARGEST:  # with a larger value, a step raises an error or makes every weight infinite
        return value
    else:
        expected = f"a float32 number, at most {LARGEST:g}"
    raise BadValue(f"{name} must be {expected}, got {value!r}.", now=repr(present))


def as_number(value: Any) -> Any:
    """Return a one-element tensor or array, or a similar object, as a Python number. Return any other value unchanged."""
    is_other = isinstance(value, int | float) or not hasattr(value, "__float__") or math.prod(getattr(value, "shape", ())) != 1
    return value if is_other else value.item() if hasattr(value, "item") else float(value)


def _is_setting(value: Any) -> bool:
    """Return whether an entry of a parameter group is a number or a tuple. Do not read the value of a tensor."""
    return isinstance(value, tuple) or (
        hasattr(value, "__float__") and not isinstance(value, bool) and math.prod(getattr(value, "shape", ())) == 1
    )
