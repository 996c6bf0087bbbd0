"""Hyper-parameters by name: read and set the learning rate, or any attribute, while the run goes on."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, MutableMapping
from typing import Any, Protocol

from hookpoint.core.errors import BadValue, UnknownSetting
from hookpoint.core.run.rates import Address, Groups, Rates, put

ALIASES = {"learning_rate": "lr"}
LARGEST = 3.4028234663852886e38  # of float32, in which most weights are


class HyperParam(Protocol):
    """A setting that can be read and set by name."""

    name: str

    def get_value(self) -> Any: ...

    def set_value(self, value: Any) -> None: ...


class ObjAttrParam:
    """An attribute of any object as a setting: `run.hyper.register(ObjAttrParam(model, "dropout"))`.

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
        """What it changes: two of them that change the same attribute have the same."""
        return id(self._obj), self._attribute

    def get_value(self) -> Any:
        return getattr(self._obj, self._attribute)

    def set_value(self, value: Any) -> None:
        setattr(self._obj, self._attribute, checked(self.name, value, self.get_value()))


class GroupParam:
    """An entry of parameter groups, which all get the same value."""

    def __init__(self, groups: list[dict[str, Any]], key: str, name: str) -> None:
        self._groups, self._key, self.name = groups, key, name

    def get_value(self) -> Any:
        return self._groups[0][self._key]

    def set_value(self, value: Any) -> None:
        value = checked(self.name, value, self.get_value())
        for group in self._groups:
            put(group, self._key, value)


class RateParam(GroupParam):
    """The learning rate of parameter groups: the first one's, to which the others keep their ratios."""

    def __init__(self, rates: Rates, groups: Groups, addresses: list[Address], name: str) -> None:
        super().__init__([groups[addresses[0]]], "lr", name)
        self._rates, self._all, self._addresses = rates, groups, addresses

    def set_value(self, value: Any) -> None:
        self._rates.set(self.name, self._all, self._addresses, checked(self.name, value, self.get_value()))


class Hyper(MutableMapping[str, Any]):
    """`run.hyper["learning_rate"] = 0.1`: the settings of a run, and those that were registered.

    `learning_rate` (or `lr`), `momentum`, `weight_decay` and every other number in the optimizer's parameter groups. A value
    that is not finite or not of the setting's type is refused.

    The learning rate is that of the first group. Setting it scales all other groups, of every optimizer, by their ratios to
    the first; setting the value that the first group already has changes nothing. Any other setting is set as given in all
    groups that have it.

    `"lr@0"` is one group: groups are numbered from 0, through all optimizers. Of several optimizers in a dict, `"lr@critic"`
    is the rate of one: its first group gets the value, and its other groups keep their ratios to that. Both change the ratios
    from then on.
    """

    def __init__(self, optimizer: Any = None) -> None:
        self._optimizer = optimizer
        self.rates = Rates(self._groups)
        self._registered: dict[str, HyperParam] = {}
        self._wished: dict[str, Any] = {}
        self.wish: Callable[[str, Any], None] | None = None

    def register(self, param: HyperParam) -> None:
        """Add a setting of one's own; its name wins over the optimizer's."""
        self._registered[param.name] = param

    def registered(self, name: str) -> HyperParam | None:
        """Return the setting that was registered under a name, or None."""
        return self._registered.get(name)

    def __getitem__(self, name: str) -> Any:
        return self._wished[name] if name in self._wished else self._param(name).get_value()

    def __setitem__(self, name: str, value: Any) -> None:
        self.set(name, value)

    def set(self, name: str, value: Any, *, alike: bool = False, same_on_all_ranks: bool = False) -> None:
        """Change a setting. In a run of several processes all of them get it at the same step, a step later.

        Whoever says `same_on_all_ranks` (or `alike`, its older name) knows that every process sets the same value at this
        point, and it is set at once.
        """
        param = self._param(name)
        if self.wish is None or alike or same_on_all_ranks:
            param.set_value(value)
            return
        if isinstance(param, GroupParam | ObjAttrParam):
            checked(name, value, param.get_value())
        self.wish(name, value)
        self._wished[name] = value

    def granted(self, values: Mapping[str, Any]) -> None:
        """Set what all processes have agreed on."""
        for name, value in values.items():
            self._wished.pop(name, None)
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

    def addresses(self, name: str) -> list[Address]:
        """Return the parameter groups that a name stands for; none where it is unknown or no optimizer's."""
        return self._selected(*parted(name), self._groups())

    def _selected(self, key: str, of: str, groups: Groups) -> list[Address]:
        if of and isinstance(self._optimizer, Mapping) and of in map(str, self._optimizer):
            found = [address for address in groups if address[0] == of]
        elif of:
            found = list(groups)[int(of) : int(of) + 1] if of.isdecimal() else []
        else:
            found = list(groups)
        return [address for address in found if key in groups[address]]

    def group_names(self, name: str) -> list[str]:
        """Return the names of a setting in each single group that has it."""
        key, _ = parted(name)
        return [f"{name}@{number}" for number, group in enumerate(self._groups().values()) if key in group]

    def _groups(self) -> dict[Address, dict[str, Any]]:
        """Return the parameter groups of all optimizers, in their order."""
        several = self._optimizer
        if not isinstance(several, Mapping):
            several = dict(enumerate(several)) if isinstance(several, list | tuple) else {"": several}
        return {
            (str(name), number): group
            for name, one in several.items()
            for number, group in enumerate(getattr(one, "param_groups", None) or [])
        }

    def _param(self, name: str) -> HyperParam:
        if name in self._registered:
            return self._registered[name]
        (key, of), groups = parted(name), self._groups()
        addresses = self._selected(key, of, groups)
        if not addresses:
            raise UnknownSetting(name, self._known(name))
        rates = self.rates.among(groups, addresses) if key == "lr" else []
        if rates:
            return RateParam(self.rates, groups, rates, name)
        return GroupParam([groups[address] for address in addresses], key, name)

    def _known(self, name: str) -> list[str]:
        """Return the settings there are; where a part of one was asked for, its parts."""
        key, of = parted(name)
        if not of or not self.addresses(key):
            names = list(self)
            return [*names, *(alias for alias, known in ALIASES.items() if known in names and alias not in names)]
        named = self._optimizer if isinstance(self._optimizer, Mapping) else ()
        return [key, *self.group_names(key), *(f"{key}@{one}" for one in named if self.addresses(f"{key}@{one}"))]


def parted(name: str) -> tuple[str, str]:
    """Return the entry of parameter groups that a name stands for, and of which part of them.

    >>> parted("learning_rate@critic")
    ('lr', 'critic')
    """
    key, _, of = name.partition("@")
    return ALIASES.get(key, key), of


def checked(name: str, value: Any, present: Any) -> Any:
    """Return a value that may take the place of the present one, or refuse it."""
    if isinstance(present, tuple):
        if not isinstance(value, tuple | list) or len(value) != len(present):
            raise BadValue(f"{name} takes {len(present)} values.", got=repr(value), now=repr(present))
        return tuple(checked(name, one, now) for one, now in zip(value, present, strict=True))
    if isinstance(present, bool):
        if not isinstance(value, bool):
            raise BadValue(f"{name} takes True or False.", got=repr(value), now=repr(present))
        return value
    if not hasattr(present, "__float__"):
        if not isinstance(value, type(present)):
            raise BadValue(f"{name} takes a {type(present).__name__}.", got=repr(value), now=repr(present))
        return value
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise BadValue(f"{name} takes a finite number.", got=repr(value), now=repr(present))
    if abs(value) > LARGEST:  # a step with it raises, or makes every weight infinite
        raise BadValue(f"{name} takes a number of float32, up to {LARGEST:g}.", got=repr(value), now=repr(present))
    return value


def _is_setting(value: Any) -> bool:
    return isinstance(value, int | float | tuple) and not isinstance(value, bool)
