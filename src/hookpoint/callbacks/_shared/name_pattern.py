"""NamePattern: which of a model's modules or parameters are meant."""

from __future__ import annotations

import re
from collections.abc import Iterable
from difflib import get_close_matches
from fnmatch import fnmatchcase
from typing import TypeVar

from hookpoint.core.errors import BadArgument, BadLoop

Part = TypeVar("Part")
Pattern = str | re.Pattern[str]

MOST_NAMED = 8


class NamePattern:
    """Choose names by a glob, by a compiled regular expression, or by several of both.

    In a glob `*` stands for anything, dots too: "layers.*" is all that is in the layers, however deep. An expression is
    searched for in each name. The empty name, that of the model itself, is meant by the pattern "" alone.

    >>> pattern = NamePattern("FeatureTap", ["conv?", re.compile("^head")])
    >>> [name for name in ("", "conv1", "conv1.norm", "head.0") if pattern.fits(name)]
    ['conv1', 'head.0']
    """

    def __init__(self, owner: str, given: Pattern | Iterable[Pattern]) -> None:
        several = [given] if isinstance(given, str | re.Pattern) else list(given) if isinstance(given, Iterable) else []
        is_known = all(isinstance(one.pattern if isinstance(one, re.Pattern) else one, str) for one in several)
        if not several or not is_known:
            raise BadArgument(
                f"{owner}({given!r}) names nothing.",
                give='a glob such as "layers.*.linear1", a list of them, or re.compile(...)',
            )
        self._several = tuple(several)

    def fits(self, name: str) -> bool:
        return any(_fits(one, name) for one in self._several)

    def chosen(self, owner: str, what: str, named: Iterable[tuple[str, Part]]) -> dict[str, Part]:
        """Return what is meant, each thing once, by the first of its names that fits; refuse a pattern that fits nothing."""
        there = list(named)
        names = [name for name, _ in there]
        if not names:
            raise BadLoop(f"{owner} finds no {what}.", give="model=..., a torch.nn.Module")
        for one in self._several:
            if not any(_fits(one, name) for name in names):
                raise BadLoop(f"{owner}: {_spelled(one)!r} fits no {what}.", **_known(_spelled(one), names))
        return self.found(there)

    def found(self, named: Iterable[tuple[str, Part]]) -> dict[str, Part]:
        """Return what is meant, if anything: of a model whose layers are on several processes, not all have what is meant."""
        found: dict[int, tuple[str, Part]] = {}
        for name, part in named:
            if self.fits(name):
                found.setdefault(id(part), (name, part))
        return dict(found.values())

    def __str__(self) -> str:
        return ", ".join(_spelled(one) or "''" for one in self._several)


def _fits(pattern: Pattern, name: str) -> bool:
    if not name or not pattern:
        return name == pattern
    return fnmatchcase(name, pattern) if isinstance(pattern, str) else pattern.search(name) is not None


def _spelled(pattern: Pattern) -> str:
    return pattern if isinstance(pattern, str) else pattern.pattern


def _known(pattern: str, names: list[str]) -> dict[str, str]:
    named = [name for name in names if name]
    near = get_close_matches(pattern, named, n=MOST_NAMED, cutoff=0.5)
    if near:
        return {"near": ", ".join(near)}
    more = f" and {len(named) - MOST_NAMED} more" if len(named) > MOST_NAMED else ""
    return {"are": (", ".join(named[:MOST_NAMED]) or "none but '', the model itself") + more}
