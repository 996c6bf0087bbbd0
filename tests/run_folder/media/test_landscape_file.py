from __future__ import annotations

import json
import math
import os

import pytest
from PIL import Image

import hookpoint
from hookpoint.cli.main import main
from hookpoint.core import errors
from hookpoint.run_folder.command_error import CommandError
from hookpoint.run_folder.media.landscape_file import read_landscape
from hookpoint.run_folder.run_folder import RunFolder

GOOD = {
    "format": 1,
    "directions": "pca",
    "explained": [0.8, 0.1],
    "x": [-1.0, 0.0, 2.0],
    "y": [0.0, 1.0],
    "loss": [[1.0, 0.5, None], [2.0, 1.0, 3.0]],
    "final_loss": 0.5,
    "path": [{"step": 0, "epoch": 0, "x": -1.0, "y": 1.0}, {"step": 8, "epoch": 1, "x": 0.0, "y": 0.0}],
}


@pytest.fixture
def stored(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with hookpoint.Loop(workdir="runs/mine", name="mine", extra_callbacks=[]):
        pass
    (tmp_path / "runs" / "mine" / "landscape").mkdir()

    def store(facts):
        text = facts if isinstance(facts, str) else json.dumps(facts)
        (tmp_path / "runs" / "mine" / "landscape" / "landscape.json").write_text(text)
        return RunFolder(tmp_path / "runs" / "mine")

    return store


def test_a_landscape_is_read(stored):
    landscape = read_landscape(stored(GOOD))
    assert (landscape.title, landscape.x, landscape.path[1]) == ("mine", [-1, 0, 2], (8, 0, 0))
    assert math.isnan(landscape.loss[0][2])


@pytest.mark.parametrize(
    "change",
    [
        {"x": [0.0, 0.0, 1.0]},
        {"x": [0.0, 1.0]},
        {"x": [0.0, math.nan, 1.0]},
        {"x": 3},
        {"y": ["a", "b"]},
        {"loss": [[None] * 3] * 2},
        {"loss": [["x"] * 3] * 2},
        {"path": [{"step": 0}]},
        {"path": [{"step": 0, "x": math.inf, "y": 0}]},
        {"explained": [1]},
        {"final_loss": "\x1b[31m"},
    ],
)
def test_an_invalid_landscape_file_is_named(stored, change):
    with pytest.raises(CommandError, match=r"landscape.json is not a loss landscape: \w+Error: "):
        read_landscape(stored({**GOOD, **change}))


@pytest.mark.parametrize("text", ["", "{", "[]", "3", "[" * 100_000, "\0" * 100])
def test_a_landscape_file_that_is_not_json_is_named(stored, text):
    with pytest.raises(CommandError, match=r"landscape.json is not a loss landscape"):
        read_landscape(stored(text))


def test_a_pipe_in_place_of_the_file_raises(stored, tmp_path):
    run = RunFolder(tmp_path / "runs" / "mine")
    os.mkfifo(run.path / "landscape" / "landscape.json")
    with pytest.raises(OSError, match="is not a regular file"):
        read_landscape(run)


def test_plot_draws_a_landscape_from_the_cli_and_from_python(stored, command):
    stored(GOOD)
    assert command("plot", "mine", "--landscape").stdout.strip().endswith("runs/mine/landscape.png")
    command("plot", "mine", "--landscape", "-o", "other.png", "--width", "300", "--height", "250")
    assert size("other.png") == (600, 500)
    assert hookpoint.plot("mine", landscape=True, path="third.svg").name == "third.svg"
    assert str(hookpoint.plot("mine", landscape=True)).endswith("runs/mine/landscape.png")


def size(path):
    with Image.open(path) as image:
        return image.size


@pytest.fixture
def command():
    from click.testing import CliRunner

    def run(*arguments, code=0):
        result = CliRunner().invoke(main, arguments)
        assert result.exit_code == code, result.output
        return result

    return run


@pytest.mark.parametrize("options", [["--terminal"], ["-m", "loss"], ["--smooth", "0.5"], ["--log"], ["--x", "epoch"]])
def test_curve_options_are_rejected_with_a_landscape(stored, command, options):
    stored(GOOD)
    output = command("plot", "mine", "--landscape", *options, code=2).output
    assert f"--landscape and {options[0]} cannot be combined" in output
    assert "draws a single run" in command("plot", "mine", "mine", "--landscape", code=2).output
    with pytest.raises(errors.BadArgument, match="takes a single run"):
        hookpoint.plot("mine", "mine", landscape=True)
    with pytest.raises(errors.BadArgument, match="no options for curves"):
        hookpoint.plot("mine", landscape=True, log=True)


def test_a_run_without_a_landscape_raises(stored, tmp_path):
    with pytest.raises(CommandError, match=r"has no loss landscape; the callback LossLandscape computes it"):
        read_landscape(RunFolder(tmp_path / "runs" / "mine"))


def test_a_mirrored_landscape_is_drawn(stored, command):
    fsspec = pytest.importorskip("fsspec")
    run, memory = stored(GOOD), fsspec.filesystem("memory")
    memory.put(str(run.path), "/landscapes/mine", recursive=True)
    try:
        command("plot", "memory://landscapes/mine", "--landscape")
        assert size("landscape.png") == (1520, 1200)
    finally:
        memory.rm("/landscapes", recursive=True)
