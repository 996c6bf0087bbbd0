"""Command: a program and its arguments, filled with values that cannot become anything but arguments."""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Mapping, Sequence
from itertools import pairwise

from hookpoint.callbacks.notify._shell_words import Piece, as_script, signs, split, without_silence
from hookpoint.callbacks.notify._template import Field, Template, Value, fill
from hookpoint.core.errors import BadArgument

SHELL = "/bin/sh"
SHELLS = ("ash", "bash", "csh", "dash", "fish", "ksh", "sh", "tcsh", "zsh")
TAKES_SCRIPT = re.compile(r"-[a-zA-Z]*c")
VARIABLE = re.compile(r"[A-Za-z_]\w*=")
MAY_MEAN_MORE = ("-", "@")  # an option, or, to curl and its like, the name of a file


class Command:
    """A list of arguments, or a line that is split into some, with fields such as `{loss}`: see Template.

    No shell sees it: fields are filled after the splitting, so that each value stays inside of one argument. What only a shell
    could do is refused, but for a `> /dev/null 2>&1` at the end, which says what happens anyway. With `shell` the line is a
    script, and the values are its arguments, quoted. `numbers` and `words` are the names of the fields there may be.

    >>> command = Command('curl -d body="error: {error}" https://example.org > /dev/null 2>&1', numbers=["error"])
    >>> command.arguments({"error": 0.25})
    ['curl', '-d', 'body=error: 0.25', 'https://example.org']
    """

    def __init__(
        self, command: str | Sequence[str], *, numbers: Collection[str] = (), words: Collection[str] = (), shell: bool = False
    ) -> None:
        lines = [command] if isinstance(command, str) else list(command)
        if isinstance(command, bytes) or not all(isinstance(one, str) for one in lines):
            raise BadArgument(f"a command is a string or a list of strings, not {command!r}.")
        if shell and not isinstance(command, str):
            raise BadArgument("shell=True takes the command as one string.", leave="shell=True out for a list")
        if isinstance(command, str) and not shell:
            lines = [without_silence(command)]
        pieces = [Template(one, known=[*numbers, *words], numbers=numbers).pieces for one in lines]
        self._words = frozenset(words)
        self._of_script: list[Field] = []
        if shell:
            self._of_script = list(dict.fromkeys(one for one in pieces[0] if isinstance(one, Field)))
            self._arguments: list[list[Piece]] = [[SHELL], ["-c"], [as_script(pieces[0], self._of_script)], ["hookpoint"]]
            self._leading = [one.what for one in signs(pieces[0]) if one.leads]
        else:
            self._arguments = split(pieces[0]) if isinstance(command, str) else pieces
            self._leading = [argument[0] for argument in self._arguments if argument]
        _refuse_program(self._arguments, lines)
        self.program = "the command" if shell else os.path.basename(fill(self._arguments[0], {}))

    def arguments(self, values: Mapping[str, Value]) -> list[str]:
        """Return the program and its arguments, filled; refuse a text that would be taken for an option."""
        for leading in self._leading:
            if isinstance(leading, Field) and leading.name in self._words:
                value = str(values[leading.name])
                if value.startswith(MAY_MEAN_MORE):
                    raise ValueError(f"{{{leading.name}}} begins with '{value[0]}', and could be taken for more than a text")
        return [fill(pieces, values) for pieces in self._arguments] + [one.fill(values[one.name]) for one in self._of_script]


def _refuse_program(arguments: list[list[Piece]], lines: list[str]) -> None:
    """Refuse a command that is empty, or in which a value would be the program or a part of one."""
    if not arguments or not arguments[0] or not lines[0].strip():
        raise BadArgument("the command is empty.", give='a program and its arguments: ["notify-send", "{loss}"]')
    if any(isinstance(piece, Field) for piece in arguments[0]):
        raise BadArgument("the program itself cannot be a field.", write="its name")
    program = fill(arguments[0], {})
    if VARIABLE.match(program):
        raise BadArgument(f"'{program}' sets a variable, which is for a shell.", give="shell=True, or env as the program")
    is_shell = os.path.basename(program) in SHELLS
    for flag, script in pairwise(arguments):
        if is_shell and TAKES_SCRIPT.fullmatch("".join(map(str, flag))) and any(isinstance(one, Field) for one in script):
            raise BadArgument(
                f"{os.path.basename(program)} would read a value as a part of its script.",
                give="shell=True and the script as the command, which quotes values",
            )
