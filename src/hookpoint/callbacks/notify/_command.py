"""Command: a program and its arguments, with fields that are replaced by values."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import pairwise

from hookpoint.core.errors import BadArgument, listed

Value = str | int | float

SHELL = "/bin/sh"
SHELLS = ("ash", "bash", "csh", "dash", "fish", "ksh", "sh", "tcsh", "zsh")
OPTION_PREFIXES = ("-", "@")  # for curl and similar programs, @name means the content of the file `name`

BRACES = re.compile(r"\{\{|\}\}|\{([^{}]*)\}|[{}]")
FORMAT = re.compile(r"[-+ ]?0?\d{0,3}(\.\d{1,3})?[eEfFgG%]")
MARK = re.compile(r"\0(\d+)\0")  # a field's index between NULs, which no argument can contain
ESCAPE = re.compile(r"\\.", re.DOTALL)
QUOTED = re.compile(r"""'[^']*'|"(?:\\.|[^"\\])*"|\\.|\0\d+\0""", re.DOTALL)
SHELL_SYNTAX = re.compile(r"[|&;<>()$`]|(?<!\S)~")
REDIRECTION = re.compile(r"(?:\s+(?:2>&1|[12&]?>\s*/dev/null))+\s*\Z")


class Command:
    """Split a command into arguments, and fill fields such as `{loss}` or `{loss:.3f}`.

    Write `{{` and `}}` for literal braces. A field is the name of a value, never an expression. `numbers` lists the names of
    fields with numeric values, and `texts` lists the names of fields with text values. A string is split by shlex before fields
    are filled, so a value always stays within its argument. Raises for shell syntax, except `> /dev/null 2>&1` at the end,
    which has no effect. With `shell`, the string is a script, and the values are passed as quoted positional parameters.

    >>> command = Command('curl -d body="error: {error}" https://example.org > /dev/null 2>&1', numbers=["error"])
    >>> command.arguments({"error": 0.25})
    ['curl', '-d', 'body=error: 0.25', 'https://example.org']
    """

    def __init__(
        self, command: str | Sequence[str], *, numbers: Collection[str] = (), texts: Collection[str] = (), shell: bool = False
    ) -> None:
        is_line = isinstance(command, str)
        lines = [command] if isinstance(command, str) or not isinstance(command, Iterable) else list(command)
        if isinstance(command, bytes) or not all(isinstance(line, str) for line in lines):
            raise BadArgument(f"the command must be a string or a list of strings, got {command!r}.")
        if shell and not is_line:
            raise BadArgument("with shell=True, the command must be one string.", leave="out shell=True for a list of strings")
        self._fields: list[tuple[str, str]] = []
        if is_line and not shell:
            lines = [_without_redirection(lines[0])]
        marked = [self._mark(line, numbers, texts) for line in lines]
        words = _split(marked[0], shell=shell) if is_line else marked
        if not words or not words[0].strip():
            raise BadArgument("the command is empty.", give='a program and its arguments: ["notify-send", "{loss}"]')
        starts = [MARK.match(word) for word in words]
        self._leading = [name for mark in starts if mark and (name := self._fields[int(mark[1])][0]) in texts]
        if shell:
            parameters = [f"\0{index}\0" for index in range(len(self._fields))]
            words = [SHELL, "-c", QUOTED.sub(_as_parameter, marked[0]), "hookpoint", *parameters]
        else:
            _check_program(words)
        self._words = words
        self.program = "the command" if shell else os.path.basename(words[0])

    def arguments(self, values: Mapping[str, Value]) -> list[str]:
        """Return the program and its arguments with all fields filled. Raise if a text argument starts with `-` or `@`."""
        for name in self._leading:
            value = str(values[name])
            if value.startswith(OPTION_PREFIXES):
                raise ValueError(f"{{{name}}} starts with '{value[0]}' and could be read as an option")

        def fill(mark: re.Match[str]) -> str:
            name, spec = self._fields[int(mark[1])]
            return format(float(values[name]), spec) if spec else str(values[name])

        return [MARK.sub(fill, word) for word in self._words]

    def _mark(self, line: str, numbers: Collection[str], texts: Collection[str]) -> str:
        """Replace each field with a placeholder, so that nothing in the field's name is parsed as shell syntax."""

        def mark(match: re.Match[str]) -> str:
            if match[0] in ("{{", "}}"):
                return match[0][0]
            if match[1] is None:
                raise BadArgument(f"unmatched '{match[0]}' in the command.", write=f"{match[0] * 2} for a brace")
            name, colon, spec = match[1].rpartition(":")
            if match[1] in numbers or match[1] in texts:
                self._fields.append((match[1], ""))
            elif colon and name in numbers and FORMAT.fullmatch(spec):
                self._fields.append((name, spec))
            else:
                raise BadArgument(
                    f"{{{match[1]}}} is not a field.",
                    known=listed([*numbers, *texts]),
                    add="metrics to names=",
                    write="{{ and }} for braces",
                )
            return f"\0{len(self._fields) - 1}\0"

        if "\0" in BRACES.sub("", line):
            raise BadArgument("a command cannot contain NUL.")
        return BRACES.sub(mark, line)


def _without_redirection(line: str) -> str:
    """Remove `> /dev/null 2>&1` from the end, because the output of a command is never shown."""
    match = REDIRECTION.search(line)
    return line[: match.start()] if match is not None and "/dev/null" in match[0] else line


def _split(line: str, *, shell: bool) -> list[str]:
    """Split a line with shlex. Raise for unclosed quotes. Without `shell`, also raise for shell syntax."""
    bare = QUOTED.sub(lambda quoted: "_" + "".join(_expansions(quoted[0])), line)
    escapes = [pair for quoted in QUOTED.findall(line) if quoted[0] != "'" for pair in ESCAPE.findall(quoted)]
    if "\\\0" in escapes:
        raise BadArgument("a backslash before a field has no effect.", leave="it out")
    if any(sign in bare for sign in "'\"\\"):
        raise BadArgument("the command ends inside a quote or after a backslash.", close="every quote")
    if not shell and (syntax := SHELL_SYNTAX.search(bare)):
        raise BadArgument(
            f"'{syntax[0]}' is shell syntax, and the command runs without a shell.",
            give="shell=True to run it in a shell",
            quote=f"'{syntax[0]}' to pass it as text",
        )
    # shlex keeps a backslash before a line break, and before $ and ` in double quotes; a shell removes it.
    return shlex.split(QUOTED.sub(_unescaped, line))


def _expansions(quoted: str) -> list[str]:
    """Return each character that would start a shell expansion inside a quoted string."""
    return re.findall(r"[$`]", ESCAPE.sub("", quoted)) if quoted[0] == '"' else []


def _unescaped(quoted: re.Match[str]) -> str:
    return quoted[0] if quoted[0][0] == "'" else re.sub(r"(\\[^\n$`])|\\\n|\\([$`])", r"\1\2", quoted[0])


def _as_parameter(quoted: re.Match[str]) -> str:
    """Replace fields with positional parameters of the script, always in double quotes."""
    before, after = {"'": ("'\"", "\"'"), '"': ("", "")}.get(quoted[0][0], ('"', '"'))
    return MARK.sub(lambda mark: f"{before}${{{int(mark[1]) + 1}}}{after}", quoted[0])


def _check_program(words: list[str]) -> None:
    """Raise if the program's name contains a field, or if a shell would run a field's value as part of its script."""
    program = words[0]
    if MARK.search(program):
        raise BadArgument("the program itself cannot be a field.", write="its name")
    if re.match(r"[A-Za-z_]\w*=", program):
        raise BadArgument(f"'{program}' sets a variable, which needs a shell.", give="shell=True, or env as the program")
    name = os.path.basename(program)
    for flag, script in pairwise(words):
        if name in SHELLS and re.fullmatch(r"-[a-zA-Z]*c", flag) and MARK.search(script):
            raise BadArgument(
                f"{name} would run a value as part of its script.", give="the script with shell=True, which quotes values"
            )
