"""Template: words with fields in them, which are filled with values and with nothing else."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass

from hookpoint.core.errors import BadArgument, listed

Value = str | int | float

PIECE = re.compile(r"\{\{|\}\}|\{([^{}]*)\}|[{}]")
FORMAT = re.compile(r"[-+ ]?0?\d{0,3}(\.\d{1,3})?[eEfFgG%]")


@dataclass(frozen=True, slots=True)
class Field:
    """A place in a template: the name of a value, and how a number is written there."""

    name: str
    format: str = ""

    def fill(self, value: Value) -> str:
        return format(float(value), self.format) if self.format else str(value)


class Template:
    """Words with fields such as `{loss}` or `{loss:.3f}`; `{{` and `}}` are braces.

    A field is a name from a list, and never an expression: there is no way from it to an attribute, an item or anything else of
    a value. What a value holds is not looked at, so that braces in it stay braces.

    >>> template = Template("{run}: {{loss}} is {loss:.2f}", known=["loss", "run"], numbers=["loss"])
    >>> template.fill({"loss": 0.125, "run": "{loss.__class__}"})
    '{loss.__class__}: {loss} is 0.12'
    """

    def __init__(self, words: str, *, known: Collection[str], numbers: Collection[str] = ()) -> None:
        self.pieces: list[str | Field] = []
        end = 0
        for found in PIECE.finditer(words):
            self._add(words[end : found.start()])
            self._add(_meaning(found, known, numbers))
            end = found.end()
        self._add(words[end:])

    @property
    def fields(self) -> list[Field]:
        return [piece for piece in self.pieces if isinstance(piece, Field)]

    def fill(self, values: Mapping[str, Value]) -> str:
        """Return the words with a value in the place of each field."""
        return fill(self.pieces, values)

    def _add(self, piece: str | Field) -> None:
        if isinstance(piece, str) and self.pieces and isinstance(self.pieces[-1], str):
            self.pieces[-1] += piece
        elif piece:
            self.pieces.append(piece)


def fill(pieces: list[str | Field], values: Mapping[str, Value]) -> str:
    """Return pieces as one string, with values in the place of fields."""
    return "".join(piece.fill(values[piece.name]) if isinstance(piece, Field) else piece for piece in pieces)


def _meaning(found: re.Match[str], known: Collection[str], numbers: Collection[str]) -> str | Field:
    if found[0] in ("{{", "}}"):
        return found[0][0]
    if found[1] is None:
        raise BadArgument(f"a single '{found[0]}' means nothing here.", write=f"{found[0] * 2} for a brace")
    if found[1] in known:
        return Field(found[1])
    name, colon, how = found[1].rpartition(":")
    if colon and name in numbers and FORMAT.fullmatch(how):
        return Field(name, how)
    raise BadArgument(
        f"{{{found[1]}}} is no field.", known=listed(known), add="metrics to names=", write="{{ and }} for braces"
    )
