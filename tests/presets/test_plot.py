"""hookpoint.plot draws runs from Python."""

from __future__ import annotations

from pathlib import Path

import pytest
from PIL import Image

import hookpoint


@pytest.fixture
def folder(tmp_path):
    with hookpoint.Loop(workdir=tmp_path / "mine", log_every=1, extra_callbacks=[]) as run:
        for epoch in run.epochs(3):
            for batch in run.batches([3.0, 1.0]):
                run.log(loss=batch / epoch, accuracy=1 - batch / 10)
    return tmp_path / "mine"


def test_one_run_is_drawn_in_its_own_folder(folder):
    assert hookpoint.plot(folder) == folder / "curves.png"
    with Image.open(folder / "curves.png") as picture:
        assert picture.size[0] == 2000  # two panels


def test_multiple_runs_are_drawn_in_a_given_file(folder, tmp_path):
    target = tmp_path / "both.svg"
    assert hookpoint.plot(folder, str(folder), path=target, metrics="loss", smooth=0.5, log=True, x="time") == target
    assert target.read_text().lstrip().startswith("<?xml")


def test_multiple_runs_are_drawn_in_the_current_folder_by_default(folder, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert hookpoint.plot(folder, folder, x="epoch") == Path("curves.png")
    assert (tmp_path / "curves.png").exists()


def test_a_run_is_drawn_the_same_each_time(folder, tmp_path):
    one, two = (hookpoint.plot(folder, path=tmp_path / name) for name in ("1.png", "2.png"))
    assert one.read_bytes() == two.read_bytes()


def test_invalid_arguments_raise(folder):
    with pytest.raises(ValueError, match="needs at least one run"):
        hookpoint.plot()
    with pytest.raises(hookpoint.HookpointError, match="there is no metric 'los'; did you mean loss"):
        hookpoint.plot(folder, metrics=["los"])
    with pytest.raises(ValueError, match="smooth must be >= 0 and < 1, got 2"):
        hookpoint.plot(folder, smooth=2)
    with pytest.raises(ValueError, match=r"use \.png"):
        hookpoint.plot(folder, path="a.jpg")
