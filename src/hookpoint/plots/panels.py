"""Choose the metrics to plot, and group them into panels."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from fnmatch import fnmatchcase

from hookpoint.core.errors import HookpointError
from hookpoint.core.text.terminal import few, printable

MAX_PANELS, MAX_REQUESTED = 6, 36

_PASS = re.compile(r"(?:(train|training)|(val|valid|validation))[-_/]", re.IGNORECASE)
_RATE = re.compile(r"(?:learning_rate|lr)(?:$|[-_/])")


class UnknownCurve(HookpointError, KeyError):
    """No run has a metric called `name`."""

    def __init__(self, name: str, known: Iterable[str]) -> None:
        names = sorted(known)
        near = get_close_matches(name, names, n=1)
        meant = f"; did you mean {printable(near[0])}?" if near else "."
        super().__init__(f"there is no metric '{printable(name)}'{meant} Known: {few(names, 12) or 'none'}")
        self.name = name


class TooManyPanels(HookpointError, ValueError):
    """The requested metrics need more than 36 panels."""


@dataclass(frozen=True, slots=True)
class Group:
    """Metrics that share a panel: first the training metrics, then the validation metrics."""

    title: str
    names: tuple[str, ...]


def choose_panels(
    known: Collection[str], requested: Sequence[str] = (), watched: Collection[str] = ()
) -> tuple[list[Group], list[str]]:
    """Return the groups to plot and the names that are left out.

    Requested names and patterns (`val_*`) keep their order. If nothing is requested, the loss is first, followed by the
    metrics that savers monitor, the metrics that also have validation values, and all others in alphabetical order. If the
    learning rate was logged, it is then always the last group.

    >>> choose_panels(["accuracy", "val_accuracy", "learning_rate", "loss", "loss/ema"])[0]  # doctest: +NORMALIZE_WHITESPACE
    [Group(title='loss', names=('loss',)), Group(title='accuracy', names=('accuracy', 'val_accuracy')),
     Group(title='learning_rate', names=('learning_rate',))]
    """
    if requested:
        groups = _grouped(_find(known, requested))
        if len(groups) > MAX_REQUESTED:
            raise TooManyPanels(f"these metrics need {len(groups)} panels; the limit is {MAX_REQUESTED}: request fewer metrics")
        return groups, []
    derived = {name for name in known if name.rpartition("/")[0] in known}  # loss/ema is derived from loss
    groups = _grouped(sorted(set(known) - derived))
    groups.sort(key=lambda group: _rank(group, watched))
    rates = [group for group in groups if is_learning_rate(group.names[0])]
    rest = [group for group in groups if group not in rates]
    room = MAX_PANELS - min(1, len(rates))
    left_out = [name for group in rest[room:] + rates[1:] for name in group.names]
    return rest[:room] + rates[:1], left_out + sorted(derived)


def is_learning_rate(name: str) -> bool:
    return _RATE.match(name) is not None


def is_validation(name: str) -> bool:
    """Return whether a metric is a validation metric, such as val_loss, validation/loss or val-error-top1."""
    match = _PASS.match(name)
    return match is not None and match[2] is not None


def _find(known: Collection[str], requested: Sequence[str]) -> list[str]:
    names: dict[str, None] = {}
    for pattern in requested:
        matching = [pattern] if pattern in known else sorted(name for name in known if fnmatchcase(name, pattern))
        if not matching:
            raise UnknownCurve(pattern, known)
        names.update(dict.fromkeys(matching))
    return list(names)


def _grouped(names: Iterable[str]) -> list[Group]:
    groups: dict[str, list[str]] = {}
    for name in names:
        groups.setdefault(_bare(name), []).append(name)
    return [
        Group(title if len(names) > 1 else names[0], tuple(sorted(names, key=is_validation))) for title, names in groups.items()
    ]


def _bare(name: str) -> str:
    """Return a metric's name without its prefix for training or validation, such as loss for val_loss."""
    match = _PASS.match(name)
    return name[match.end() :] or name if match else name


def _rank(group: Group, watched: Collection[str]) -> tuple[int, str]:
    if "loss" in map(_bare, group.names):
        return 0, group.title
    if any(name in watched for name in group.names):
        return 1, group.title
    return (2 if any(map(is_validation, group.names)) else 3), group.title
