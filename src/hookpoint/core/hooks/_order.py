"""Order: the list's, refined by what callbacks declare, per point and stably."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass

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
        placed: list[Unit] = []
        held: list[Unit] = []
        for unit in units:
            held.append(unit)
            while ready := next((one for one in held if all(of[n.first] in placed for n in waits[id(one)])), None):
                held.remove(ready)
                placed.append(ready)
                if ready is not unit:
                    last = max(waits[id(ready)], key=lambda need: placed.index(of[need.first]))
                    self._moved_behind(ready, last, of)
        if held:
            raise OrderError.cycle(self._point, self._cycle(held, waits, of))
        return placed

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
    needs = []
    for owner in entries:
        for other in entries:
            if other is owner:
                continue
            if any(other.is_called(name) for name in owner.declared("after")):
                needs.append(Need(other, owner, owner, f"comes after {other.name}"))
            if any(other.is_called(name) for name in owner.declared("before")):
                needs.append(Need(owner, other, owner, f"comes before {other.name}"))
            metrics = sorted(set(owner.declared("reads")) & set(other.declared("writes")))
            needs += [Need(other, owner, owner, f"reads '{metric}' from {other.name}") for metric in metrics]
    return needs
