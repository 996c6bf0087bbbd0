"""`hookpoint ctl`: change, pause, save, validate, trace and stop a run in progress."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import click
from click.shell_completion import CompletionItem

from hookpoint.cli._ctl_list import everything, print_list
from hookpoint.cli._ctl_values import parse_settings, short_names, types_of
from hookpoint.cli._output import note, print_json, print_lines
from hookpoint.cli._run_argument import run_argument
from hookpoint.core.errors import HookpointError, NotApplied, NotTraining
from hookpoint.run_folder.command_error import FINE, INTERRUPTED, NO, USAGE, CommandError, one_line
from hookpoint.run_folder.describe_event import describe_order
from hookpoint.run_folder.find_run import find_run
from hookpoint.run_folder.formatting import shown
from hookpoint.run_folder.run_folder import RunFolder
from hookpoint.steering.answer_text import answer_text
from hookpoint.steering.control_answer import APPLIED, LOST, REFUSED, WITHDRAWN, ControlAnswer
from hookpoint.steering.control_order import ControlOrder
from hookpoint.steering.controller import TIMEOUT, Controller

AGAIN = 75  # the exit code for a withdrawn command, which the user can send again
AFTER_PAUSE = ("validate", "trace")  # commands that a paused run applies when it is resumed
CODES = {APPLIED: FINE, REFUSED: NO, LOST: NO, WITHDRAWN: AGAIN}
COMMANDS = {  # each command's arguments, for usage errors
    "set": "NAME=VALUE...",
    "pause": "",
    "resume": "",
    "save": "[TAG]",
    "validate": "",
    "log-every": "STEPS",
    "trace": "STEPS",
    "stop": "[WHY...]",
    "call": "ACTION",
    "forget": "NUMBER",
}


def _complete(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Return the shell completions: commands, actions, or settings.

    A setting is completed to NAME=VALUE with its current value.
    """
    words = tuple(ctx.params.get("words") or ())
    if not words:
        return [CompletionItem(name, help=takes) for name, takes in COMMANDS.items() if name.startswith(incomplete)]
    found: list[CompletionItem] = []
    try:
        run = ctx.params["run"]
        controller = Controller((run if isinstance(run, RunFolder) else find_run(str(run))).path)
        if words[0] == "set":
            knobs = controller.knobs()
            typed = short_names(knobs)
            for name, knob in knobs.items():
                found += [CompletionItem(f"{typed[name]}={value}", help=knob.about) for value in knob.choices or (knob.value,)]
        elif words[0] == "call":
            found = [CompletionItem(name, help=about) for name, about in controller.actions().items()]
    except (HookpointError, CommandError, OSError, KeyError):
        return []
    return [item for item in found if item.value.startswith(incomplete) and item.value.isprintable()]


@click.command()
@run_argument
@click.argument("words", nargs=-1, metavar="[COMMAND [ARGUMENT]...]", shell_complete=_complete)
@click.option(
    "--expect", multiple=True, metavar="NAME=VALUE", help="Use with set: change nothing unless NAME has this value; repeatable."
)
@click.option("--wait/--no-wait", default=True, help="Wait for the answer, or return as soon as the command is sent.")
@click.option(
    "--timeout",
    "seconds",
    type=click.FloatRange(0.1, 1e9),
    default=TIMEOUT,
    show_default=True,
    help="Seconds until the command is withdrawn if the run has not picked it up.",
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON, for programs.")
def ctl(run: RunFolder, words: tuple[str, ...], expect: tuple[str, ...], wait: bool, seconds: float, as_json: bool) -> int:
    """Control a run in progress. Without a command, list the settings and the pending commands.

    \b
    Commands:
      set NAME=VALUE...  change all of these settings at the same step, or none of them
      pause              pause all ranks at the next step; memory stays allocated
      resume             end the pause
      save [TAG]         save a checkpoint, and print its path
      validate           validate now, and print the metrics
      log-every STEPS    change the interval between log steps
      trace STEPS        profile the next steps, and print the path of the trace
      stop [WHY...]      stop the run
      call ACTION        call a callback's action
      forget NUMBER      do not replay this command when the run resumes (fails while a process is training)

    All ranks apply a command at the same step, or none does. Ctrl-C withdraws a command that the run has not picked up yet.

    The exit code is 0 if the command was applied, or sent with --no-wait. It is 1 if the command was rejected or lost, or if no
    process is training, and 75 if the command was withdrawn.

    \b
    Examples:
      hookpoint ctl mine
      hookpoint ctl mine set learning_rate=0.01 --expect learning_rate=0.1
      hookpoint ctl mine save before-lunch
      hookpoint ctl mine stop the loss diverges
    """
    controller = Controller(run.path)
    if expect and words[:1] != ("set",):
        raise CommandError("--expect needs the command set", USAGE)
    if not words:
        if not wait:
            raise CommandError("--no-wait needs a command", USAGE)
        return _list(run, controller, as_json)
    try:
        if words[0] == "forget":
            return _forget(controller, _integer(words), as_json)
        order = _prepared(controller, words, expect, seconds)
        is_late = words[0] in AFTER_PAUSE and controller.live().paused
    except (NotTraining, NotApplied) as error:
        if as_json:
            print_json({"status": REFUSED, "reason": one_line(str(error))})
        raise CommandError(one_line(str(error)), NO) from error
    if not wait:
        order.send()
        _print({"id": order.id, "status": "sent"}, f"sent {order.id}", as_json)
        return FINE
    if is_late:
        note(f"the run is paused; the command will be applied after: hookpoint ctl {_typed(run.path)} resume")
    answer = _answer(order)
    if answer is None:
        note(f"the run has picked up the command and will answer it later: see hookpoint tail {_typed(run.path)}")
        return INTERRUPTED
    text = shown(answer_text(answer))
    if as_json:
        print_json(answer.encoded())
    elif answer.status == APPLIED:
        print_lines([text])
    if answer.status != APPLIED:
        raise CommandError(text, CODES[answer.status])
    return FINE


def _typed(path: Path) -> str:
    return shlex.quote(shown(path))


def _list(run: RunFolder, controller: Controller, as_json: bool) -> int:
    if not as_json:
        return print_list(run, controller)
    content = everything(run, controller)
    print_json(content)
    return FINE if content["training"] else NO


def _prepared(controller: Controller, words: tuple[str, ...], expect: tuple[str, ...], seconds: float) -> ControlOrder:
    _arguments(words, {})  # report usage errors before looking for a run
    types = types_of({name: knob.type for name, knob in controller.knobs().items()})
    do, args = words[0], _arguments(words, types)
    return controller.prepare(do, args, expect=parse_settings(expect, types), timeout=seconds)


def _answer(order: ControlOrder) -> ControlAnswer | None:
    """Send a command and wait for its answer. On Ctrl-C, withdraw it, or return None if the run has already picked it up."""
    try:
        order.send()
        return order.wait()
    except KeyboardInterrupt:
        order.withdraw()
        answer = order.answer()
        return answer if answer is not None and answer.is_final else None


def _forget(controller: Controller, number: int, as_json: bool) -> int:
    entry = controller.forget(number)
    what = shown(describe_order(entry.do, entry.args))
    _print({"status": "forgotten", **entry.encoded()}, f"forgot {number}: {what}, at step {entry.step}", as_json)
    return FINE


def _print(content: Mapping[str, Any], line: str, as_json: bool) -> None:
    if as_json:
        print_json(content)
    else:
        print_lines([line])


def _arguments(words: tuple[str, ...], types: Mapping[str, str]) -> dict[str, Any]:
    """Return a command's arguments in the form that the run reads."""
    do, rest = words[0], words[1:]
    if do not in COMMANDS:
        near = get_close_matches(do, COMMANDS, n=1)
        meant = f"set {shown(do)}" if "=" in do else near[0] if near else ""
        raise CommandError(f"there is no command {shown(do)}" + (f"; did you mean {meant}?" if meant else ""), USAGE)
    if do == "set" and rest:
        return {"values": parse_settings(rest, types)}
    if do == "stop":
        return {"reason": " ".join(rest)} if rest else {}
    if do in ("log-every", "trace"):
        return {"steps": _integer(words)}
    if do == "save" and len(rest) <= 1:
        return {"tag": rest[0]} if rest else {}
    if do == "call" and len(rest) == 1:
        return {"action": rest[0]}
    if rest or do in ("set", "call"):
        raise _usage(do)
    return {}


def _integer(words: tuple[str, ...]) -> int:
    if len(words) != 2 or not words[1].isdecimal() or len(words[1]) > 15 or not int(words[1]):
        raise _usage(words[0])
    return int(words[1])


def _usage(do: str) -> CommandError:
    takes = COMMANDS[do]
    return CommandError(f"expected: hookpoint ctl RUN {do}{' ' if takes else ''}{takes}", USAGE)
