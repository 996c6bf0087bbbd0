"""CommandError: the reason why a command fails, in one line, with an exit code."""

from __future__ import annotations

import errno

from hookpoint.core.errors import CannotSave, HookpointError, WorkdirInUse
from hookpoint.core.text.terminal import printable

FINE, NO, USAGE, REFUSED, OURS, IN_USE, NOT_WRITTEN, INTERRUPTED = 0, 1, 2, 65, 70, 69, 73, 130

_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS)  # errors that occur only when a file is written


class CommandError(Exception):
    """Raised to end a command with one line on stderr and an exit code."""

    def __init__(self, message: str, code: int = REFUSED) -> None:
        super().__init__(message)
        self.code = code


def command_error_of(error: BaseException) -> CommandError:
    """Convert any error to a CommandError."""
    if isinstance(error, CommandError):
        return error
    if isinstance(error, HookpointError):
        code = IN_USE if isinstance(error, WorkdirInUse) else NOT_WRITTEN if isinstance(error, CannotSave) else REFUSED
        return CommandError(one_line(str(error)), code)
    if isinstance(error, OSError):
        where = f"{error.filename}: " if error.filename else ""
        return CommandError(f"{where}{error.strerror or error}", NOT_WRITTEN if error.errno in _FULL else REFUSED)
    if isinstance(error, MemoryError):
        return CommandError("not enough memory")
    what = one_line(f"{type(error).__name__}: {error}")
    return CommandError(f"{what} (a bug in hookpoint; --debug shows the traceback)", OURS)


def one_line(message: str) -> str:
    """Return an error's headline and fixes in one line of plain text.

    >>> one_line("mine is in use.\\n  wait      until it ends\\n  choose    another")
    'mine is in use. Wait until it ends; choose another'
    """
    headline, *cures = [" ".join(line.split()) for line in message.splitlines() if line.strip()] or [""]
    rest = "; ".join(cures)
    return printable(f"{headline} {rest[0].upper()}{rest[1:]}" if rest else headline)
