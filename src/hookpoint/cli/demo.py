"""`hookpoint demo`: train a small network with many callbacks."""

from __future__ import annotations

import os
import runpy
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, suppress
from importlib.util import find_spec
from pathlib import Path

import click

import hookpoint
from hookpoint.cli._output import Column, heading, note, print_lines, table
from hookpoint.core.text.terminal import printable
from hookpoint.run_folder.command_error import INTERRUPTED, NOT_WRITTEN, CommandError
from hookpoint.run_folder.formatting import duration, shown
from hookpoint.run_folder.run_folder import RunFolder

NEEDED = {"torch": "torch", "sklearn": "scikit-learn"}
NEEDED_BY_BOARD = {"starlette": "starlette", "uvicorn": "uvicorn"}
SOURCE = "digits.py"
EPOCHS = 40
DRAWN = ("loss", "val-error-top1", "learning_rate")


@click.command()
@click.option("--workdir", default="runs/digits", show_default=True, help="Folder of the run.")
@click.option("--epochs", type=click.IntRange(1), default=EPOCHS, show_default=True, help="Epochs to train in total.")
@click.option("--anew", "from_scratch", is_flag=True, help="Start from scratch; an earlier run moves to previous/.")
@click.option("--board", "has_board", is_flag=True, help="Open the board, to watch and control the run in a browser.")
def demo(workdir: str, epochs: int, from_scratch: bool, has_board: bool) -> int:
    """Train a small network on handwritten digits.

    The demo has a progress bar, validation, checkpoints, a learning-rate schedule, logs and curves.

    This takes about a minute on two cores and needs no GPU or download. Interrupt the demo and run it again: it resumes and
    ends with the same weights.

    \b
    Examples:
      hookpoint demo
      hookpoint demo --board            watch it in the browser
      hookpoint demo --epochs 80        train longer
      hookpoint demo --anew
    """
    source = _source()
    needed = {**NEEDED, **(NEEDED_BY_BOARD if has_board else {})}
    missing = [name for package, name in needed.items() if find_spec(package) is None]
    if missing:
        raise CommandError(f"the demo needs {' and '.join(missing)}: pip install 'hookpoint[demo]'", NOT_WRITTEN)
    was_finished = _is_finished(RunFolder(workdir), epochs) and not from_scratch
    if not has_board:
        note(f"watch and control this run in the browser: {_board_command(workdir)}")
    with _board(workdir) if has_board else nullcontext() as board:
        try:
            runpy.run_path(os.fspath(source))["train"](workdir, epochs, "never" if from_scratch else "auto")
        except KeyboardInterrupt:
            note(f"interrupted; {_command('demo', workdir, f'--epochs {epochs}' if epochs != EPOCHS else '')} resumes it")
            return INTERRUPTED
        print_lines(_summary(RunFolder(workdir), source, _picture(workdir), was_finished=was_finished))
        if board is not None and board.poll() is None:
            sys.stdout.flush()
            with suppress(KeyboardInterrupt):
                note("the board is still running; Ctrl-C ends it.")
                board.wait()
    return 0


@contextmanager
def _board(workdir: str) -> Iterator[subprocess.Popen[bytes]]:
    """Run `hookpoint board` on the run's folder. It prints its address, and opens a browser if possible."""
    folder = Path(workdir).parent
    folder.mkdir(parents=True, exist_ok=True)
    board = subprocess.Popen([sys.executable, "-m", "hookpoint", "board", os.fspath(folder)])
    try:
        yield board
    finally:
        board.terminate()
        board.wait()


def _board_command(workdir: str) -> str:
    folder = Path(workdir).parent
    return " ".join([_program("hookpoint"), "board", *([] if folder == Path("runs") else [shown(folder)])])


def _source() -> Path:
    """Return the path of the example program digits.py, in the installed package or in the repository."""
    package = Path(hookpoint.__file__).parent
    for folder in (package / "examples", package.parents[1] / "examples"):
        if (folder / SOURCE).is_file():
            return folder / SOURCE
    raise CommandError(f"{SOURCE} is missing from this installation: pip install --force-reinstall hookpoint", NOT_WRITTEN)


def _is_finished(run: RunFolder, epochs: int) -> bool:
    done = run.facts.get("epochs_done")
    return run.status == "finished" and isinstance(done, int) and done >= epochs


def _picture(workdir: str) -> Path | None:
    try:
        return hookpoint.plot(workdir, metrics=DRAWN)
    except (ImportError, OSError) as error:
        note(f"cannot plot the curves: {printable(str(error))}")
        return None


def _summary(run: RunFolder, source: Path, picture: Path | None, *, was_finished: bool) -> list[str]:
    done = run.facts.get("epochs_done", run.epoch)
    best = [f"{shown(name)} {best.value:.4g} at step {best.step}" for name, best in run.all_best.items()]
    facts = {
        "best": ", ".join(best),
        "checkpoints": f"{run.path}/checkpoints/",
        "logs": f"{run.path}/scalars.jsonl, events.jsonl, tensorboard/",
        "curves": "" if picture is None else str(picture),
        "source": _short(source),
    }
    workdir = str(run.path)
    next_ = {
        _command("plot", workdir, "--terminal"): "draw the curves here",
        _command("show", workdir): "show details",
        _board_command(workdir): "all runs in the browser: curves, events, callbacks and their costs",
        f"{_program('tensorboard')} --logdir {run.path}": "the curves in TensorBoard",
        _command("demo", workdir, f"--epochs {2 * int(done or 1)}"): "train longer",
        _command("demo", workdir, "--anew"): "start from scratch and move this run to previous/",
    }
    state = "was already finished" if was_finished else run.status
    return [
        "",
        heading(f"{shown(run.name)} {state}: {done} epochs, {run.step} steps, {duration(run.seconds)}"),
        *(f"  {line}" for line in table([Column(), Column()], [row for row in facts.items() if row[1]])),
        "",
        heading("next"),
        *(f"  {line}" for line in table([Column(), Column()], [*next_.items()])),
    ]


def _command(name: str, workdir: str, options: str = "") -> str:
    """Return a command line for this run."""
    is_default = workdir == "runs/digits"
    run = ("" if is_default else f"--workdir {workdir}") if name == "demo" else "digits" if is_default else workdir
    return " ".join(filter(None, (_program("hookpoint"), name, run, options)))


def _program(name: str) -> str:
    """Return a program's name or, if it is not on the PATH, its path next to the Python executable."""
    beside_python = Path(sys.executable).with_name(name)
    return _short(beside_python) if shutil.which(name) is None and beside_python.exists() else name


def _short(path: Path) -> str:
    """Return a path relative to the current folder, if the path is inside that folder."""
    relative = os.path.relpath(path)
    return str(path) if relative.startswith(os.pardir) else relative
