"""Order: the list's, refined by what callbacks declare, per point and stably."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from heapq import heappop, heappush

from hookpoint.core.callback.kept import identity_of
from hookpoint.core.errors import OrderError
from hookpoint.core.hooks.entry import MAIN, MONITOR, PLAIN, Entry

logger = logging.getLogger("hookpoint")

IN_LIST_ORDER = "list order"
BY_KIND = {MAIN: "first: the MainCallback", PLAIN: IN_LIST_ORDER, MONITOR: "last: a monitor"}


@dataclass(slots=True, eq=False)
class Need:
    """`first` has to come before `second`; `owner`, one of the two, says so, and is the one that moves."""

    first: Entry
    second: Entry
    owner: Entry
    why: str


@dataclass(slots=True, eq=False)
class Unit:
    """What moves as one inside a list: a callback, or a pipeline with all that is in it."""

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
    """Arrange the callbacks of one point. `why` says of each why it stands where it stands."""

    def __init__(self, point: str, entries: Sequence[Entry], said: set[str]) -> None:
        self._point = point
        self._needs = _needs(entries)
        self._said = said
        self.why = {entry: BY_KIND[entry.kind] for entry in entries}
        self.entries = self._arranged(list(entries), 0)

    def _arranged(self, entries: list[Entry], depth: int) -> list[Entry]:
        units = self._units(entries, depth)
        units.sort(key=lambda unit: unit.kind)
        units = self._moved_up(units)
        units = self._moved_down(units)
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

    def _moved_up(self, units: list[Unit]) -> list[Unit]:
        """Move callbacks that declare `before` up, each to just before the first it names."""
        of = _unit_of(units)
        for need in self._needs:
            mine, other = of.get(need.first), of.get(need.second)
            if need.owner is not need.first or mine is None or other is None or mine.pipeline:
                continue
            if units.index(mine) > units.index(other):
                units.remove(mine)
                units.insert(units.index(other), mine)
                self._moved(need.owner, need.why)
        return units

    def _moved_down(self, units: list[Unit]) -> list[Unit]:
        """Hold back what waits for others, and put it just after the last of them."""
        of = _unit_of(units)
        waits: dict[int, list[Need]] = {id(unit): [] for unit in units}
        for need in self._needs:
            first, second = of.get(need.first), of.get(need.second)
            if first and second and first is not second:
                waits[id(second)].append(need)
        missing = {id(unit): {id(of[need.first]) for need in waits[id(unit)]} for unit in units}
        waiting: dict[int, list[int]] = {}  # by unit: the numbers of those that wait for it
        for number, unit in enumerate(units):
            for waited_for in missing[id(unit)]:
                waiting.setdefault(waited_for, []).append(number)
        placed: dict[int, int] = {}  # the place of each unit, in the order of places
        for arrived, unit in enumerate(units):
            ready = [arrived] if not missing[id(unit)] else []
            while ready:  # of several that are ready, the one that stands first in the list
                one = units[heappop(ready)]
                placed[id(one)] = len(placed)
                if one is not unit:
                    last = max(waits[id(one)], key=lambda need: placed[id(of[need.first])])
                    self._moved_behind(one, last, of)
                for number in waiting.get(id(one), ()):
                    missing[id(units[number])].discard(id(one))
                    if number < arrived and not missing[id(units[number])]:
                        heappush(ready, number)
        if len(placed) < len(units):
            held = [unit for unit in units if id(unit) not in placed]
            raise OrderError.cycle(self._point, self._cycle(held, waits, of))
        return sorted(units, key=lambda unit: placed[id(unit)])

    def _moved_behind(self, unit: Unit, need: Need, of: dict[Entry, Unit]) -> None:
        why = need.why if need.owner is need.second else f"goes behind {need.first.name}, which {need.why}"
        if unit.pipeline:
            raise OrderError.pipeline(need.second.name, unit.pipeline, why, behind=of[need.first].label)
        self._moved(need.second, why)

    def _moved(self, entry: Entry, why: str) -> None:
        self.why[entry] = f"moved: {why}"
        line = f"{entry.name} was moved: it {why}"
        if line not in self._said:
            self._said.add(line)
            logger.info("%s", line)

    def _cycle(self, held: list[Unit], waits: dict[int, list[Need]], of: dict[Entry, Unit]) -> list[str]:
        path = [held[0]]
        while True:
            waited = next(of[need.first] for need in waits[id(path[-1])] if of[need.first] in held)
            if waited in path:
                return [unit.label for unit in (*path[path.index(waited) :], waited)]
            path.append(waited)


def _unit_of(units: list[Unit]) -> dict[Entry, Unit]:
    return {entry: unit for unit in units for entry in unit.entries}


def _needs(entries: Sequence[Entry]) -> list[Need]:
    """Return what the callbacks declare, in the order of the list. Each is compared with those only that it may mean."""
    called, writing = _by_what(entries, Entry.names), _by_what(entries, lambda entry: entry.declared("writes"))
    needs = []
    for place, owner in enumerate(entries):
        after, before, reads = (owner.declared(option) for option in ("after", "before", "reads"))
        meant = [called.get(name, ()) for name in (*after, *before)] + [writing.get(name, ()) for name in reads]
        for number in sorted({number for numbers in meant for number in numbers} - {place}):
            other = entries[number]
            if any(other.is_called(name) for name in after):
                needs.append(Need(other, owner, owner, f"comes after {other.name}"))
            if any(other.is_called(name) for name in before):
                needs.append(Need(owner, other, owner, f"comes before {other.name}"))
            metrics = sorted(set(reads) & set(other.declared("writes")))
            needs += [Need(other, owner, owner, f"reads '{metric}' from {other.name}") for metric in metrics]
    return needs


def _by_what(entries: Sequence[Entry], names_of: Callable[[Entry], Iterable[str]]) -> dict[str, list[int]]:
    """Return the places of the entries that have each name."""
    found: dict[str, list[int]] = {}
    for number, entry in enumerate(entries):
        for name in names_of(entry):
            found.setdefault(name, []).append(number)
    return found
