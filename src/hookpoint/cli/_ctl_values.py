"""Parse NAME=VALUE according to the knob's type."""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any

from hookpoint.run_folder.command_error import USAGE, CommandError
from hookpoint.run_folder.formatting import shown

KEY = re.compile(r"\([^()]*\)(?=[^()]*\.)")
ALIASES = {"lr": "learning_rate"}
BOOLEANS = {"true": True, "on": True, "yes": True, "1": True, "false": False, "off": False, "no": False, "0": False}


def parse_settings(pairs: Sequence[str], types: Mapping[str, str]) -> dict[str, Any]:
    """Parse NAME=VALUE pairs. `types` maps names to the types of their values.

    For a name that is not in `types`, the text of the value determines the type: number, boolean, list or string.

    >>> parse_settings(["learning_rate=1e-3", "mode=1"], {"learning_rate": "float", "mode": "str"})
    {'learning_rate': 0.001, 'mode': '1'}
    """
    values: dict[str, Any] = {}
    for pair in pairs:
        name, separator, text = pair.partition("=")
        name = name.strip()
        if not separator or not name or not text.strip():
            raise CommandError(f"expected NAME=VALUE, got {shown(pair)}", USAGE)
        if name in values:
            raise CommandError(f"{shown(name)} is given twice", USAGE)
        values[name] = _parsed(name, text.strip(), types.get(name, ""))
    return values


def short_names(names: Iterable[str]) -> dict[str, str]:
    """Return the shortest unambiguous name of each knob.

    A short name leaves out the part in parentheses, which would need quotes in a shell.

    >>> short_names(["Stopper(loss).patience", "Saver(a).keep", "Saver(b).keep"])
    {'Stopper(loss).patience': 'Stopper.patience', 'Saver(a).keep': 'Saver(a).keep', 'Saver(b).keep': 'Saver(b).keep'}
    """
    short = {name: KEY.sub("", name) for name in names}
    counts = Counter(short.values())
    return {name: one if counts[one] == 1 else name for name, one in short.items()}


def types_of(types: Mapping[str, str]) -> dict[str, str]:
    """Return the types of the knobs, keyed by every name that a command may use for a knob."""
    others = [*short_names(types).items(), *((name, alias) for name, alias in ALIASES.items() if name in types)]
    return {**types, **{alias: types[name] for name, alias in others}}


def _parsed(name: str, text: str, kind: str) -> Any:
    if kind == "str":
        return text
    if kind == "bool" and text.lower() in BOOLEANS:
        return BOOLEANS[text.lower()]
    if kind in ("float", "int"):
        value = _number(text)
        if kind == "int" and isinstance(value, float) and value.is_integer():
            value = int(value)  # 1e3
        if value is not None and (kind == "float" or isinstance(value, int)):
            return value
    elif kind != "bool":
        value = _guessed(text)
        if kind != "list" or isinstance(value, list):
            return value
    expected = {"float": "a number", "int": "an integer", "bool": "true or false", "list": "a JSON list such as [1, 2]"}[kind]
    raise CommandError(f"{shown(name)} must be {expected}, got {shown(text)}", USAGE)


def _number(text: str) -> float | int | None:
    for kind in (int, float):
        with suppress(ValueError, OverflowError):
            value = kind(text)
            if math.isfinite(value):
                return value
    return None


def _guessed(text: str) -> Any:
    """Parse a value of unknown type. Return a number, a boolean or a list if the text is one, and otherwise a string."""
    number = _number(text)
    if number is not None:
        return number
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return BOOLEANS.get(text.lower(), text)
    return value if isinstance(value, bool | list | str) else text
