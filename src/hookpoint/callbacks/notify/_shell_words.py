"""The words of a command line, as a shell would see them, without a shell."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Literal

from hookpoint.callbacks.notify._template import Field
from hookpoint.core.errors import BadArgument

Piece = str | Field

OPERATORS = "|&;<>()"
EXPANSIONS = "$`"
ESCAPABLE = '$`"\\'  # inside of double quotes; before anything else a backslash is one
SILENCED = re.compile(r"(?:\s+(?:2>&1|[12&]?>\s*/dev/null))+\s*\Z")


@dataclass(frozen=True, slots=True)
class Sign:
    """A character of a command line or a field in it: what it means, how it is written, and the quote it stands in.

    `is_plain` says that it means itself and nothing else to a shell, `leads` that a word begins with it.
    """

    kind: Literal["text", "space", "quote"]
    what: Piece
    written: str
    quote: str = ""
    is_plain: bool = False
    leads: bool = False


def without_silence(line: str) -> str:
    """Return a command line without the `> /dev/null 2>&1` at its end: what commands print is kept from the terminal anyway."""
    found = SILENCED.search(line)
    return line[: found.start()] if found is not None and "/dev/null" in found[0] else line


def split(pieces: Iterable[Piece]) -> list[list[Piece]]:
    """Return the words of a command line, each as its pieces; refuse what only a shell could do."""
    words: list[list[Piece]] = []
    is_in_word = False
    for sign in signs(pieces):
        if sign.kind == "text":
            _refuse_what_a_shell_does(sign)
        if sign.kind != "space" and not is_in_word:
            words.append([])
        is_in_word = sign.kind != "space"
        if sign.kind == "text":
            words[-1].append(sign.what)
    return words


def as_script(pieces: Iterable[Piece], fields: list[Field]) -> str:
    """Return a command line as a script, in which each field is one of the script's arguments, numbered as in `fields`.

    So a value is never a part of what a shell reads as commands, and it stays one word, whatever it holds: a field that is in
    no quotes is put into some.
    """
    script = []
    for sign in signs(pieces):
        if isinstance(sign.what, Field):
            argument = f"${{{fields.index(sign.what) + 1}}}"
            script.append({"": f'"{argument}"', '"': argument, "'": f"'\"{argument}\"'"}[sign.quote])
        else:
            script.append(sign.written)
    return "".join(script)


def signs(pieces: Iterable[Piece]) -> Iterator[Sign]:
    """Yield what is in a command line, by the rules of POSIX for quotes, backslashes and lines that go on."""
    quote, is_escaped, leads = "", False, True
    for what in _one_by_one(pieces):
        if isinstance(what, Field):
            if is_escaped:
                raise BadArgument(f"a backslash before {{{what.name}}} means nothing.", leave="it out")
            yield Sign("text", what, "", quote, is_plain=True, leads=leads)
            leads = False
        elif is_escaped:
            is_escaped = False
            if what != "\n":
                means = what if not quote or what in ESCAPABLE else f"\\{what}"
                yield Sign("text", means, f"\\{what}", quote, is_plain=True, leads=leads)
                leads = False
        elif what == "\\" and quote != "'":
            is_escaped = True
        elif what == quote or (what in "'\"" and not quote):
            quote = "" if quote else what
            yield Sign("quote", what, what, quote)
        elif what.isspace() and not quote:
            yield Sign("space", what, what)
            leads = True
        else:
            yield Sign("text", what, what, quote, is_plain=quote == "'", leads=leads)
            leads = False
    if quote or is_escaped:
        raise BadArgument(f"the command ends inside of {quote or 'a backslash'}.", close="every quote")


def _one_by_one(pieces: Iterable[Piece]) -> Iterator[Piece]:
    for piece in pieces:
        if isinstance(piece, Field):
            yield piece
        else:
            yield from piece


def _refuse_what_a_shell_does(sign: Sign) -> None:
    what = sign.what
    if isinstance(what, Field) or sign.is_plain:
        return
    if what in EXPANSIONS or (not sign.quote and (what in OPERATORS or (what == "~" and sign.leads))):
        raise BadArgument(
            f"'{what}' is for a shell, and the command runs without one.",
            give="shell=True if it is meant",
            quote=f"'{what}' if it is not",
        )
