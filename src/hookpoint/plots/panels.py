"""Which metrics are drawn, and which of them share a panel."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from fnmatch import fnmatchcase

from hookpoint.core.errors import HookpointError
from hookpoint.core.text.terminal import printable

MOST_PANELS, MOST_ASKED = 6, 36

_PASS = re.compile(r"(?:(train|training)|(val|valid|validation))[-_/]", re.IGNORECASE)
_RATE = re.compile(r"(?:learning_rate|lr)(?:$|[-_/])")


class UnknownCurve(HookpointError, KeyError):
    """No run has a metric of that name. `name` is what was asked for."""

    def __init__(self, name: str, known: Iterable[str]) -> None:
        names = sorted(known)
        near = get_close_matches(name, names, n=1)
        meant = f"; {printable(near[0])} is" if near else ""
        listed = ", ".join(map(printable, names[:12])) + (f" and {len(names) - 12} more" if len(names) > 12 else "")
        super().__init__(f"'{printable(name)}' is no metric of it{meant}. There are: {listed or 'none'}")
        self.name = name


class TooManyPanels(HookpointError, ValueError):
    """More was asked for than anybody could look at."""

    def __init__(self, count: int) -> None:
        super().__init__(f"these metrics would be {count} panels; at most {MOST_ASKED} are drawn: name fewer")


@dataclass(frozen=True, slots=True)
class Group:
    """Metrics that share a panel: that of training first, then that of validation."""

    title: str
    names: tuple[str, ...]


def chosen(known: Collection[str], asked: Sequence[str] = (), watched: Collection[str] = ()) -> tuple[list[Group], list[str]]:
    """Return the groups to draw, and the names that were left out.

    What was asked for, by name or pattern (`val_*`), is drawn in that order. Otherwise the loss comes first, then what savers
    watch, what has a validation, and everything else by name; the learning rate is last, and always there.

    >>> chosen(["accuracy", "val_accuracy", "learning_rate", "loss", "loss/ema"])[0]  # doctest: +NORMALIZE_WHITESPACE
    [Group(title='loss', names=('loss',)), Group(title='accuracy', names=('accuracy', 'val_accuracy')),
     Group(title='learning_rate', names=('learning_rate',))]
    """
    if asked:
        groups = _grouped(_found(known, asked))
        if len(groups) > MOST_ASKED:
            raise TooManyPanels(len(groups))
        return groups, []
    derived = {name for name in known if name.rpartition("/")[0] in known}  # loss/ema, of loss
    groups = _grouped(sorted(set(known) - derived))
    groups.sort(key=lambda group: _rank(group, watched))
    rates = [group for group in groups if is_learning_rate(group.names[0])]
    others = [group for group in groups if group not in rates]
    room = MOST_PANELS - min(1, len(rates))
    drawn = others[:room] + rates[:1]
    left = [name for group in others[room:] + rates[1:] for name in group.names]
    return drawn, left + sorted(derived)


def is_learning_rate(name: str) -> bool:
    return _RATE.match(name) is not None


def is_validation(name: str) -> bool:
    """Say whether a name is that of a validation: val_loss, validation/loss, val-error-top1."""
    found = _PASS.match(name)
    return found is not None and found[2] is not None


def _found(known: Collection[str], asked: Sequence[str]) -> list[str]:
    found: dict[str, None] = {}
    for name in asked:
        matching = [name] if name in known else sorted(one for one in known if fnmatchcase(one, name))
        if not matching:
            raise UnknownCurve(name, known)
        found.update(dict.fromkeys(matching))
    return list(found)


def _grouped(names: Iterable[str]) -> list[Group]:
    groups: dict[str, list[str]] = {}
    for name in names:
        groups.setdefault(_bare(name), []).append(name)
    return [Group(title if len(own) > 1 else own[0], tuple(sorted(own, key=is_validation))) for title, own in groups.items()]


def _bare(name: str) -> str:
    """Return a name without the pass it is of."""
    found = _PASS.match(name)
    return name[found.end() :] or name if found else name


def _rank(group: Group, watched: Collection[str]) -> tuple[int, str]:
    if "loss" in map(_bare, group.names):
        return 0, group.title
    if any(name in watched for name in group.names):
        return 1, group.title
    return (2 if any(map(is_validation, group.names)) else 3), group.title
