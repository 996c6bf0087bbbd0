"""`hookpoint plot` draws run folders as images or in the terminal."""

from __future__ import annotations

import json
import sys

import pytest
from click.testing import CliRunner
from PIL import Image

from hookpoint import Loop
from hookpoint.callbacks import MinSaver
from hookpoint.cli.main import main


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def trained():
    def train(name, epochs=3, scale=1.0, **others):
        with Loop(workdir=f"runs/{name}", name=name, log_every=1, extra_callbacks=[], **others) as run:
            for epoch in run.epochs(epochs):
                for batch in run.batches([3.0, 2.0, 1.0]):
                    run.log(loss=scale * batch / epoch)
                run.log(val_loss=scale * 2 / epoch)

    return train


@pytest.fixture
def plot(command):
    """Run the command and check its exit code."""
    return lambda *arguments, code=0: command("plot", *arguments, code=code)


@pytest.fixture
def refused(plot):
    """Run the command, check its exit code, and return its one-line error message."""

    def run(code, *arguments):
        output = plot(*arguments, code=code).stderr
        assert output.count("\n") == 1
        return output.removeprefix("hookpoint: ").rstrip()

    return run


def test_one_run_is_drawn_into_its_folder(trained, here, plot):
    trained("mine", callbacks=[MinSaver("val_loss")])
    assert plot("mine").stdout == "wrote runs/mine/curves.png\n"
    with Image.open(here / "runs/mine/curves.png") as picture:
        assert picture.size[0] == 1520
    assert not [path for path in (here / "runs/mine").iterdir() if path.name.startswith(".curves")]


def test_multiple_runs_are_drawn_in_the_current_folder_or_a_given_file(trained, here, plot):
    trained("a")
    trained("b", scale=0.5)
    assert plot("a", "runs/b").stdout == "wrote curves.png\n"
    assert plot("a", "b", "-m", "loss", "-o", "both.svg", "--width", "400", "--height", "300").stdout == "wrote both.svg\n"
    assert (here / "curves.png").stat().st_size > 10_000
    assert 'viewBox="0 0 288 216"' in (here / "both.svg").read_text()


def test_a_run_is_drawn_in_the_terminal(trained, plot):
    trained("mine")
    done = plot("mine", "--terminal", "--width", "60", "--height", "6", "-m", "loss", "-m", "val_loss")
    lines = done.stdout.splitlines()
    assert lines[0].startswith("mine: finished, 20")
    assert lines[2] == "loss"
    assert lines[-1] == "  ── loss   ╌╌ val_loss   ● best 0.6667 at step 9"
    assert max(map(len, lines)) <= 60
    assert "\x1b" not in done.stdout


def test_the_terminal_plot_works_without_matplotlib(trained, monkeypatch, here, plot, refused):
    trained("mine")
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    assert refused(73, "mine") == (
        "plots need matplotlib: pip install 'hookpoint[plot]'; hookpoint plot --terminal works without it"
    )
    assert not (here / "runs/mine/curves.png").exists()
    plot("mine", "--terminal")


def test_a_latin_1_terminal_gets_ascii(trained):
    trained("mine")
    done = CliRunner(charset="latin-1").invoke(main, ["plot", "mine", "--terminal"])
    assert done.exit_code == 0
    assert "+-----" in done.stdout
    assert done.stdout.isascii()


def test_notes_are_printed_to_stderr(here, plot):
    folder = here / "runs/many"
    folder.mkdir(parents=True)
    row = {"step": 1, "epoch": 1, "time": 1.0, "at": "step", **{f"m{number}": -1.0 for number in range(8)}}
    (folder / "scalars.jsonl").write_text(json.dumps(row) + "\n")
    done = plot("many")
    assert done.stdout == "wrote runs/many/curves.png\n"
    assert done.stderr == "left out: m6, m7; use -m NAME\n"
    assert plot("many", "-m", "m7", "--log").stderr == "m7: no log scale: no value is above 0\n"


def test_non_finite_values_are_marked(here, plot):
    folder = here / "runs/broken"
    folder.mkdir(parents=True)
    rows = [{"step": step, "epoch": 1, "loss": loss} for step, loss in enumerate([1.0, "nan", 2.0, "inf"])]
    (folder / "scalars.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert "× NaN or infinite" in plot("broken", "--terminal").stdout


def test_records_without_a_time_are_drawn(here, plot):
    folder = here / "runs/timeless"
    folder.mkdir(parents=True)
    rows = [{"step": step, "epoch": 1, "at": "step", "loss": 1.0 / step} for step in (1, 2, 3)]
    (folder / "scalars.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert "loss" in plot("timeless", "--terminal").stdout


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["-m", "los"], 2, "there is no metric 'los'; did you mean loss? Known: loss, val_loss"),
        (["-o", "a.gif"], 2, "unknown image format: 'a.gif'; use .png, .svg or .pdf"),
        (["-o", "none/a.png"], 73, "cannot write none/a.png: No such file or directory"),
        (["-o", "a.png", "--terminal"], 2, "--terminal and -o FILE cannot be combined"),
        (["--terminal", "--width", "5"], 2, "--width must be from 24 to 1000 columns, got 5"),
        (["--height", "100000"], 2, "--height must be from 200 to 10000 pixels, got 100000"),
        (["--smooth", "1"], 2, "1.0 is not in the range 0<=x<1"),
        (["--x", "day"], 2, "'day' is not one of 'step', 'epoch', 'time'"),
    ],
)
def test_errors_are_reported_in_one_line(trained, arguments, code, message, refused):
    trained("mine")
    assert message in refused(code, "mine", *arguments)


def test_runs_without_data_are_reported(trained, here, refused):
    trained("mine")
    assert refused(2, "mien") == "there is no run mien; did you mean mine?"
    (here / "runs/mine/scalars.jsonl").unlink()
    output = "nothing to plot: runs/mine has no scalars.jsonl, which JSONWriter writes"
    assert refused(65, "mine") == output
    (here / "runs/mine/scalars.jsonl").write_text('{"step": 1, "loss": "soup"}\n')
    for arguments in ([], ["-m", "loss"], ["--terminal"]):
        assert refused(65, "mine", *arguments) == "nothing to plot: no numbers in runs/mine"


def test_too_many_panels_are_rejected(here, refused):
    folder = here / "runs/wide"
    folder.mkdir(parents=True)
    row = {"step": 1, **{f"m{number}": number for number in range(5000)}}
    (folder / "scalars.jsonl").write_text(json.dumps(row) + "\n")
    output = "these metrics need 1111 panels; the limit is 36: request fewer metrics"
    assert refused(2, "wide", "-m", "m1*") == output


def test_a_damaged_file_is_named(trained, here, refused):
    trained("mine")
    with open(here / "runs/mine/scalars.jsonl", "a") as file:
        file.write("garbage\n{}\n")
    assert "are not JSON records with a step" in refused(65, "mine")
