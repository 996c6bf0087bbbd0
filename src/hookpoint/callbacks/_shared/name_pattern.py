"""NamePattern: select modules or parameters of a model by name."""

from __future__ import annotations

import re
from collections.abc import Iterable
from difflib import get_close_matches
from fnmatch import fnmatchcase
from typing import TypeVar

from hookpoint.core.errors import BadArgument, BadLoop
from hookpoint.core.text.terminal import few

Item = TypeVar("Item")
Pattern = str | re.Pattern[str]

MAX_LISTED = 8


class NamePattern:
    """Match names against a glob, a compiled regular expression, or a list of both.

    In a glob, `*` also matches dots: "layers.*" matches everything below `layers`, at any depth. A regular expression is
    matched with `search`. The empty name stands for the model itself and matches only the pattern "".

    >>> pattern = NamePattern("FeatureTap", ["conv?", re.compile("^head")])
    >>> [name for name in ("", "conv1", "conv1.norm", "head.0") if pattern.matches(name)]
    ['conv1', 'head.0']
    """

    def __init__(self, owner: str, pattern: Pattern | Iterable[Pattern]) -> None:
        is_list = isinstance(pattern, Iterable) and not isinstance(pattern, str)
        self._patterns: tuple[Pattern, ...] = tuple(pattern) if is_list else (pattern,)  # type: ignore[arg-type, assignment]
        if not self._patterns or not all(isinstance(getattr(one, "pattern", one), str) for one in self._patterns):
            give = 'a glob such as "layers.*.linear1", a list of globs, or re.compile(...)'
            raise BadArgument(f"{owner}: {pattern!r} is not a pattern.", give=give)

    def matches(self, name: str) -> bool:
        return any(_matches(pattern, name) for pattern in self._patterns)

    def require(self, owner: str, kind: str, named: Iterable[tuple[str, Item]]) -> dict[str, Item]:
        """Return a dict from names to matching items. Raise if a pattern matches no item.

        If an item has several names, its first matching name is the key.
        """
        items = list(named)
        names = [name for name, _ in items]
        if not names:
            raise BadLoop(f"{owner} found no {kind}.", give="model=..., a torch.nn.Module")
        for pattern in self._patterns:
            if not any(_matches(pattern, name) for name in names):
                raise BadLoop(f"{owner}: {_text(pattern)!r} matches no {kind}.", **_suggestions(_text(pattern), names))
        return self.select(items)

    def select(self, named: Iterable[tuple[str, Item]]) -> dict[str, Item]:
        """Return the matching items. There may be none: with pipeline parallelism, the matches may be on another rank."""
        matches: dict[int, tuple[str, Item]] = {}
        for name, item in named:
            if self.matches(name):
                matches.setdefault(id(item), (name, item))
        return dict(matches.values())

    def __str__(self) -> str:
        return ", ".join(_text(pattern) or "''" for pattern in self._patterns)


def _matches(pattern: Pattern, name: str) -> bool:
    if not name or not pattern:
        return name == pattern
    return fnmatchcase(name, pattern) if isinstance(pattern, str) else pattern.search(name) is not None


def _text(pattern: Pattern) -> str:
    return pattern if isinstance(pattern, str) else pattern.pattern


def _suggestions(pattern: str, names: list[str]) -> dict[str, str]:
    names = [name for name in names if name]
    if similar := get_close_matches(pattern, names, n=MAX_LISTED, cutoff=0.5):
        return {"similar": ", ".join(similar)}
    return {"known": few(names, MAX_LISTED) or "only '', the model itself"}
