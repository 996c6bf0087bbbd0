"""Order: put callbacks in list order, except where `after`, `before` or `reads` require a different order."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from heapq import heappop, heappush
from typing import Any, NamedTuple

from hookpoint.core.callback.callback_info import identity_of
from hookpoint.core.errors import OrderError
from hookpoint.core.hooks.entry import MAIN, MONITOR, PLAIN, Entry
from hookpoint.core.logger import logger
from hookpoint.core.text.spelling import near_miss

IN_LIST_ORDER = "list order"
BY_KIND = {MAIN: "first: the MainCallback", PLAIN: IN_LIST_ORDER, MONITOR: "last: a monitor"}


class Constraint(NamedTuple):
    """`first` must run before `second`. `owner` is the callback that declares this: either `first` or `second`."""

    first: Entry
    second: Entry
    owner: Entry
    why: str


@dataclass(slots=True, eq=False, repr=False)
class Unit:
    """A single callback, or a pipeline. No other callback is placed between the callbacks of a pipeline."""

    entries: list[Entry]
    pipeline: str = ""

    @property
    def kind(self) -> int:
        kinds = {entry.kind for entry in self.entries}
        return kinds.pop() if len(kinds) == 1 and (not self.pipeline or kinds == {MONITOR}) else PLAIN

    @property
    def label(self) -> str:
        return self.pipeline or self.entries[0].name


class Order:
    """Arrange the callbacks at one point. `why` maps each entry to the reason for its position."""

    def __init__(self, point: str, entries: Sequence[Entry], logged: set[str]) -> None:
        self._point = point
        self._constraints = _constraints(entries)
        self._logged = logged
        self.why = {entry: BY_KIND[entry.kind] for entry in entries}
        self.entries = self._arranged(list(entries), 0)

    def _arranged(self, entries: list[Entry], depth: int) -> list[Entry]:
        units = self._units(entries, depth)
        units.sort(key=lambda unit: unit.kind)
        units = self._move_down(self._move_up(units))
        return [entry for unit in units for entry in unit.entries]

    def _units(self, entries: list[Entry], depth: int) -> list[Unit]:
        groups: dict[int, list[Entry]] = {}
        for entry in entries:
            groups.setdefault(id(entry.path[depth]) if len(entry.path) > depth else id(entry), []).append(entry)
        units = []
        for group in groups.values():
            if len(group[0].path) > depth:
                pipeline = group[0].path[depth]
                units.append(Unit(self._arranged(group, depth + 1), identity_of(pipeline) or type(pipeline).__name__))
            else:
                units.append(Unit(group))
        return units

    def _move_up(self, units: list[Unit]) -> list[Unit]:
        """Move each callback that comes after a callback named in its `before`. Put it directly before that callback."""
        of = _unit_of(units)
        for constraint in self._constraints:
            mine, other = of.get(constraint.first), of.get(constraint.second)
            if constraint.owner is not constraint.first or mine is None or other is None or mine.pipeline:
                continue
            if units.index(mine) > units.index(other):
                units.remove(mine)
                units.insert(units.index(other), mine)
                self._note_move(constraint.owner, constraint.why)
        return units

    def _move_down(self, units: list[Unit]) -> list[Unit]:
        """Move each callback that must run after other callbacks. It then runs directly after the last of these callbacks."""
        of = _unit_of(units)
        waits: dict[int, list[Constraint]] = {id(unit): [] for unit in units}
        for constraint in self._constraints:
            first, second = of.get(constraint.first), of.get(constraint.second)
            if first and second and first is not second:
                waits[id(second)].append(constraint)
        missing = {id(unit): {id(of[constraint.first]) for constraint in waits[id(unit)]} for unit in units}
        waiting: dict[int, list[int]] = {}  # maps a unit's id to the positions of the units that wait for this unit
        for number, unit in enumerate(units):
            for waited_for in missing[id(unit)]:
                waiting.setdefault(waited_for, []).append(number)
        placed: dict[int, int] = {}  # maps a unit's id to its new position, in ascending order
        for arrived, unit in enumerate(units):
            ready = [arrived] if not missing[id(unit)] else []
            while ready:  # of several ready units, take the earliest in the list
                next_unit = units[heappop(ready)]
                placed[id(next_unit)] = len(placed)
                if next_unit is not unit:
                    last = max(waits[id(next_unit)], key=lambda constraint: placed[id(of[constraint.first])])
                    self._move_after(next_unit, last, of)
                for number in waiting.get(id(next_unit), ()):
                    missing[id(units[number])].discard(id(next_unit))
                    if number < arrived and not missing[id(units[number])]:
                        heappush(ready, number)
        if len(placed) < len(units):
            cycle = " -> ".join(self._cycle([unit for unit in units if id(unit) not in placed], waits, of))
            raise OrderError(
                f"callbacks at {self._point} cannot be ordered: {cycle} is a cycle.",
                drop="one of the after, before or reads declarations",
            )
        return sorted(units, key=lambda unit: placed[id(unit)])

    def _move_after(self, unit: Unit, constraint: Constraint, of: dict[Entry, Unit]) -> None:
        first, second = constraint.first, constraint.second
        why = constraint.why if constraint.owner is second else f"comes after {first.name}, which {constraint.why}"
        if unit.pipeline:
            raise OrderError(
                f"{second.name} {why}, but cannot leave {unit.pipeline}.",
                move=f"{unit.pipeline} after {of[first].label} in the list, or {second.name} out of {unit.pipeline}",
            )
        self._note_move(second, why)

    def _note_move(self, entry: Entry, why: str) -> None:
        self.why[entry] = f"moved: {why}"
        line = f"{entry.name} was moved: it {why}"
        if line not in self._logged:
            self._logged.add(line)
            logger.info("%s", line)

    def _cycle(self, held: list[Unit], waits: dict[int, list[Constraint]], of: dict[Entry, Unit]) -> list[str]:
        path = [held[0]]
        while True:
            waited = next(of[constraint.first] for constraint in waits[id(path[-1])] if of[constraint.first] in held)
            if waited in path:
                return [unit.label for unit in (*path[path.index(waited) :], waited)]
            path.append(waited)


def _unit_of(units: list[Unit]) -> dict[Entry, Unit]:
    return {entry: unit for unit in units for entry in unit.entries}


def _constraints(entries: Sequence[Entry]) -> list[Constraint]:
    """Return the constraints that callbacks declare, in list order.

    For speed, each callback is compared only with the callbacks that its declarations refer to.
    """
    named, writing = _positions(entries, Entry.names), _positions(entries, lambda entry: entry.declared("writes"))
    constraints = []
    for place, owner in enumerate(entries):
        after, before, reads = (owner.declared(option) for option in ("after", "before", "reads"))
        meant = [named.get(name, ()) for name in (*after, *before)] + [writing.get(name, ()) for name in reads]
        for number in sorted({number for numbers in meant for number in numbers} - {place}):
            other = entries[number]
            names = other.names((owner.subject, *owner.path))
            if not names.isdisjoint(after):
                constraints.append(Constraint(other, owner, owner, f"comes after {other.name}"))
            if not names.isdisjoint(before):
                constraints.append(Constraint(owner, other, owner, f"comes before {other.name}"))
            metrics = sorted(set(reads) & set(other.declared("writes")))
            constraints += [Constraint(other, owner, owner, f"reads '{metric}' from {other.name}") for metric in metrics]
    return constraints


def warn_of_unknown_names(entries: Sequence[Entry]) -> None:
    """Warn about each name in `after` and `before` that looks like a misspelled name of a callback. Warn once per process."""
    declared = [(entry, option, name) for entry in entries for option in ("after", "before") for name in entry.declared(option)]
    known = sorted(set().union(*(entry.names() for entry in entries))) if declared and len(entries) > 1 else []
    for entry, option, name in declared if known else ():
        if name not in known and not _is_included(entry.subject, option, name) and (meant := near_miss(name, known)):
            what = f"{entry.name}.{option} names '{name}', but no callback in the list has this name"
            _warn_once(f"{what}; did you mean '{meant}'?")


def _is_included(subject: Any, option: str, name: str) -> bool:
    """Return whether one of hookpoint's own classes declares the name. Few lists contain all these names."""
    kinds = [kind for kind in type(subject).__mro__ if kind.__module__.startswith("hookpoint.")]
    return any(name in vars(kind).get(option, ()) for kind in kinds)


@cache
def _warn_once(text: str) -> None:
    logger.warning("%s", text)


def _positions(entries: Sequence[Entry], names_of: Callable[[Entry], Iterable[str]]) -> dict[str, list[int]]:
    """Return the positions of the entries for each name. `names_of` returns the names of an entry."""
    positions: dict[str, list[int]] = {}
    for number, entry in enumerate(entries):
        for name in names_of(entry):
            positions.setdefault(name, []).append(number)
    return positions
