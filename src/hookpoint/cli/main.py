"""The command `hookpoint`. Each subcommand is in its own module, which is imported only when the subcommand is used."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from contextlib import suppress
from importlib import import_module
from typing import Any, NoReturn

import click

from hookpoint._version import __version__
from hookpoint.cli._output import wants_colour

COMMANDS = {  # each command's short help; the command's module in hookpoint.cli has the same name
    "demo": "Train a small network on handwritten digits.",
    "runs": "List the runs in a folder.",
    "show": "Show the state, settings and files of a run.",
    "tail": "Follow the records and events of a run.",
    "ctl": "Change, pause, save or stop a run in progress.",
    "board": "Show runs in the browser: curves, events, controls.",
    "plot": "Plot metrics, as a picture or in the terminal.",
    "export": "Export metrics as CSV, JSON or JSON lines.",
    "verify": "Check checkpoints for damage.",
    "clean": "Delete old checkpoints, logs and earlier runs.",
    "explain": "Explain which callback runs when, and why.",
    "points": "List the points of a run.",
    "launch": "Run a script in multiple processes, with torchrun.",
    "prove": "Check that a killed run resumes exactly.",
}

EPILOG = """\
\b
Examples:
  hookpoint runs                    list the runs in runs/, or in the current folder
  hookpoint show mine               show the details of runs/mine
  hookpoint tail mine               follow its records and events
  hookpoint ctl mine pause          pause it
  hookpoint export mine -o mine.csv write its metrics to a file

\b
Exit codes:
  0   success
  1   a check failed (damaged checkpoints, an inexact resume, invalid callbacks), or a command was rejected or lost
  2   invalid usage
  65  the input is damaged or cannot be read
  69  a process is writing to the run, or the board cannot listen on its address or port
  70  a bug in hookpoint
  73  the output cannot be written
  75  a command was withdrawn because the run did not pick it up in time
  130 Ctrl-C

\b
Shell completion, including run names (for zsh or fish, replace bash):
  eval "$(_HOOKPOINT_COMPLETE=bash_source hookpoint)"
"""

DEBUG = "--debug"


class Commands(click.Group):
    """A command group that imports a command only when the command is used, and prints each error on one line."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        command: click.Command = getattr(import_module(f"hookpoint.cli.{cmd_name}"), cmd_name)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(list(COMMANDS.items()))

    def resolve_command(self, ctx: click.Context, args: list[str]) -> tuple[str | None, click.Command | None, list[str]]:
        from difflib import get_close_matches

        if args and not args[0].startswith("-") and args[0] not in COMMANDS:
            near = get_close_matches(args[0], COMMANDS, n=1)
            raise click.UsageError(f"there is no command {args[0]}" + (f"; did you mean {near[0]}?" if near else ""), ctx)
        return super().resolve_command(ctx, args)

    def invoke(self, ctx: click.Context) -> Any:
        ctx.color = wants_colour()
        try:
            result = super().invoke(ctx)
            sys.stdout.flush()
            return result
        except BrokenPipeError:
            return _discard_output()

    def main(self, args: Sequence[str] | None = None, *positional: Any, **options: Any) -> NoReturn:
        """Run a command and exit with its code."""
        arguments = list(sys.argv[1:] if args is None else args)
        debug = DEBUG in arguments
        options["standalone_mode"] = False
        for stream in (sys.stdout, sys.stderr):
            if hasattr(stream, "reconfigure"):
                stream.reconfigure(errors="replace")  # replace characters that the terminal cannot show, instead of raising
        sys.exit(self._exit_code([argument for argument in arguments if argument != DEBUG], debug, positional, options))

    def _exit_code(self, args: list[str], debug: bool, positional: tuple[Any, ...], options: dict[str, Any]) -> int:
        try:
            result = super().main(args, *positional, **options)
            return result if isinstance(result, int) else 0
        except SystemExit as exited:  # click raises SystemExit if a pipe is closed
            return exited.code if isinstance(exited.code, int) else 1
        except (click.Abort, KeyboardInterrupt):
            return _fail("", 130)
        except click.UsageError as error:
            return _wrong_usage(error)
        except click.ClickException as error:
            return _fail(error.format_message(), error.exit_code)
        except BrokenPipeError:
            return _discard_output()
        except Exception as error:
            if debug:
                raise
            from hookpoint.run_folder.command_error import command_error_of, one_line

            command_error = command_error_of(error)
            return _fail(one_line(str(command_error)), command_error.code)


@click.group("hookpoint", cls=Commands, epilog=EPILOG, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="hookpoint", message="%(prog)s %(version)s")
def main() -> None:
    """Inspect, follow, check and clean training runs, and explain callbacks.

    RUN is a run folder, or the name of a run under runs/.
    """


def _wrong_usage(error: click.UsageError) -> int:
    from hookpoint.run_folder.command_error import one_line

    command = error.ctx.command_path if error.ctx is not None else "hookpoint"
    if isinstance(error, getattr(click.exceptions, "NoArgsIsHelpError", ())):  # this class exists in click 8.2 and later
        click.echo(error.format_message(), err=True)
        return error.exit_code
    return _fail(one_line(f"{error.format_message().rstrip('.')} ({command} --help)"), error.exit_code)


def _fail(message: str, code: int) -> int:
    """Print why a command failed, and return its exit code."""
    try:
        if message:
            click.echo(f"hookpoint: {message}", err=True)
        sys.stdout.flush()
    except OSError:
        _discard_output()
    return code


def _discard_output() -> int:
    """Discard the rest of the output, because the reader, such as head, has closed the pipe."""
    with suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return 0
