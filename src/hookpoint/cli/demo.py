"""`hookpoint demo`: a real training with the whole list of callbacks, and what to type next."""

from __future__ import annotations

import os
import runpy
import shutil
import sys
from importlib.util import find_spec
from pathlib import Path

import click

import hookpoint
from hookpoint.cli.output import heading, note, put
from hookpoint.core.text.terminal import printable
from hookpoint.run_folder.command_error import INTERRUPTED, NOT_WRITTEN, CommandError
from hookpoint.run_folder.formatting import duration, shown
from hookpoint.run_folder.run_folder import RunFolder

NEEDED = {"torch": "torch", "sklearn": "scikit-learn"}
SOURCE = "digits.py"
EPOCHS = 40
DRAWN = ("loss", "val-error-top1", "learning_rate")


@click.command()
@click.option("--workdir", default="runs/digits", show_default=True, help="Where the run is kept.")
@click.option("--epochs", type=click.IntRange(1), default=EPOCHS, show_default=True, help="Train until so many are done.")
@click.option("--anew", is_flag=True, help="Start anew; an earlier run is moved aside.")
def demo(workdir: str, epochs: int, anew: bool) -> int:
    """Train a small network on handwritten digits, with progress, validation, checkpoints, a schedule, logs and curves.

    It takes about a minute on two cores, and needs no GPU and no download. Interrupt it and type the same again: it goes on
    where it was, and ends with the same weights.

    \b
    Examples:
      hookpoint demo
      hookpoint demo --epochs 80        go on with it, or train longer
      hookpoint demo --anew
    """
    source = _source()
    missing = [name for package, name in NEEDED.items() if find_spec(package) is None]
    if missing:
        raise CommandError(f"the demo needs {' and '.join(missing)}: pip install 'hookpoint[demo]'", NOT_WRITTEN)
    was_finished = _is_finished(RunFolder(workdir), epochs) and not anew
    try:
        runpy.run_path(os.fspath(source))["train"](workdir, epochs, "never" if anew else "auto")
    except KeyboardInterrupt:
        note(f"interrupted; {_typed('demo', workdir, f'--epochs {epochs}' if epochs != EPOCHS else '')} goes on where it was")
        return INTERRUPTED
    picture = _picture(workdir)
    run = RunFolder(workdir)
    put(_summary(run, source, picture, was_finished=was_finished))
    return 0


def _source() -> Path:
    """Return where the example is: beside the package where that was installed, or in the project it is developed in."""
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
        note(f"no picture of the curves: {printable(str(error))}")
        return None


def _summary(run: RunFolder, source: Path, picture: Path | None, *, was_finished: bool) -> list[str]:
    done = run.facts.get("epochs_done", run.epoch)
    best = [
        f"{shown(name)} {best.value:.4g} at step {best.step}" for name, best in run.all_best.items() if best.value is not None
    ]
    where = {
        "best": ", ".join(best),
        "checkpoints": f"{run.path}/checkpoints/",
        "logs": f"{run.path}/scalars.jsonl, events.jsonl, tensorboard/",
        "curves": "" if picture is None else str(picture),
        "source": _short(source),
    }
    workdir = str(run.path)
    next_ = {
        _typed("plot", workdir, "--terminal"): "draw the curves here",
        _typed("show", workdir): "all about this run",
        f"{_beside('tensorboard')} --logdir {run.path}": "histograms and more, in a browser",
        _typed("demo", workdir, f"--epochs {2 * int(done or 1)}"): "go on with it",
        _typed("demo", workdir, "--anew"): "start anew; this run is moved aside",
    }
    state = "was finished already, and nothing was trained" if was_finished else run.status
    wide = max(map(len, next_))
    return [
        "",
        heading(f"{shown(run.name)} {state}: {done} epochs, {run.step} steps, {duration(run.seconds)}"),
        *(f"  {name:<11}  {value}" for name, value in where.items() if value),
        "",
        heading("next"),
        *(f"  {command:<{wide}}  {what}" for command, what in next_.items()),
    ]


def _typed(command: str, workdir: str, options: str = "") -> str:
    """Return a command as one would type it here."""
    is_default = workdir == "runs/digits"
    of_run = ("" if is_default else f" --workdir {workdir}") if command == "demo" else f" {'digits' if is_default else workdir}"
    return f"{_beside('hookpoint')} {command}{of_run}{' ' if options else ''}{options}"


def _beside(program: str) -> str:
    """Return how to call a program that is installed with hookpoint: by its name where that is found, else by its path."""
    here = Path(sys.executable).with_name(program)
    found = shutil.which(program)
    return _short(here) if found is None and here.exists() else program


def _short(path: Path) -> str:
    """Return a path as seen from here, where it is below."""
    seen = os.path.relpath(path)
    return str(path) if seen.startswith(os.pardir) else seen
