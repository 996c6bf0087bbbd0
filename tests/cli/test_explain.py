"""`hookpoint explain`, `points` and `prove`, and the names that they accept."""

from __future__ import annotations

import json
import sys

import pytest

from hookpoint import Hooks
from hookpoint import callbacks as cb
from hookpoint.cli.explain import fitted

MODULE = """
from hookpoint import Hooks
from hookpoint import callbacks as cb

mine = [cb.ModelSaver(), cb.MinSaver("val_loss")]
hooks = Hooks(mine)
single = cb.ModelSaver()

def make():
    return mine

class Slip:
    def on_epoch_ends(self):
        pass

slip = [Slip()]
number = 3

def fail():
    raise ValueError("no \x1b[2J luck")
"""


@pytest.fixture
def module(tmp_path, monkeypatch):
    (tmp_path / "their_callbacks.py").write_text(MODULE)
    monkeypatch.setattr(sys, "path", list(sys.path))
    yield "their_callbacks"
    for name in ("their_callbacks", "broken", "ends"):
        sys.modules.pop(name, None)


@pytest.mark.parametrize("name", ["mine", "hooks", "make"])
def test_explain_prints_the_table_of_hooks(command, module, name):
    expected = Hooks([cb.ModelSaver(), cb.MinSaver("val_loss")]).explain()
    assert command("explain", f"{module}:{name}").stdout == f"{expected}\n"


def test_explain_accepts_a_single_callback(command, module):
    assert "ModelSaver" in command("explain", f"{module}:single").stdout


def test_invalid_callbacks_are_reported_in_one_line(command, module):
    said = command("explain", f"{module}:slip", code=1).stderr
    assert said.startswith(
        "hookpoint: Slip.on_epoch_ends is not a point. Did you mean on_epoch_end? Rename on_epoch_ends -> on_epoch_end"
    )
    assert len(said.splitlines()) == 1
    assert "3 is not a callback" in command("explain", f"{module}:number", code=1).stderr


@pytest.mark.parametrize(
    ("what", "code", "output"),
    [
        ("their_callbacks", 2, "of the form module:name; for their_callbacks.py, type their_callbacks:callbacks"),
        ("their_callbacks:mne", 2, "their_callbacks has no mne; did you mean mine?"),
        ("their_callback:mine", 2, "there is no module their_callback here; change to the folder of their_callback.py"),
        ("a b:c", 2, "a b:c is not of the form module:name"),
        (":x", 2, ":x is not of the form module:name"),
        ("their_callbacks:fail", 65, "their_callbacks:fail raised ValueError: no ?[2J luck (--debug shows where)"),
        ("broken:x", 65, "broken raised ZeroDivisionError"),
        ("ends:x", 65, "ends exits on import"),
        ("lacks:x", 65, "lacks needs no_such_package, which is not installed"),
    ],
)
def test_names_that_cannot_be_loaded_are_reported_in_one_line(command, module, tmp_path, what, code, output):
    (tmp_path / "broken.py").write_text("1 / 0")
    (tmp_path / "ends.py").write_text("raise SystemExit(3)")
    (tmp_path / "lacks.py").write_text("import no_such_package")
    result = command("explain", what, code=code)
    assert output in result.stderr
    assert len(result.stderr.splitlines()) == 1


def test_explain_accepts_a_file_name(command, module):
    assert "ModelSaver" in command("explain", f"{module}.py:mine").stdout


def test_a_wide_table_is_fitted_to_the_terminal():
    lines = Hooks([cb.ModelSaver(), cb.MinSaver("val_loss"), cb.EarlyStopping("val_loss", patience=3)]).explain().splitlines()
    assert max(map(len, lines)) > 60
    narrow = fitted(lines, 60)
    assert max(map(len, narrow)) <= 60
    assert narrow[0].split()[:2] == ["point", "callback"]
    assert fitted(lines, None) == fitted(lines, 500) == lines


class TestPoints:
    def test_all_points_are_listed(self, command):
        lines = command("points").stdout.splitlines()
        assert lines[0].split() == ["point", "mode", "fires"]
        assert lines[1].startswith("on_setup ")
        assert [point["name"] for point in json.loads(command("points", "--json").stdout)][:2] == ["on_setup", "on_run_begin"]

    def test_a_point_is_found_by_hookpoint_and_foreign_names(self, command):
        shown = command("points", "on_epoch_end").stdout
        assert shown.startswith("on_epoch_end\n  fires ")
        assert "tensorpack  _trigger_epoch" in shown
        assert command("points", "on_train_batch_end").stdout.startswith("on_train_iter_end\n")

    def test_an_unknown_point_is_reported(self, command):
        assert "did you mean on_epoch_end?" in command("points", "on_epoch_ends", code=2).stderr
        assert "hookpoint points lists them" in command("points", "soup", code=2).stderr


PROVABLE = """
from importlib.machinery import PathFinder as Finder

find = Finder.find_spec  # but for torch, which takes seconds to import and is not needed here
Finder.find_spec = lambda name, *where: None if name == "torch" else find(name, *where)

from hookpoint import Loop
from hookpoint import callbacks as cb

def make(workdir):
    with Loop([cb.ModelSaver()], workdir=workdir, extra_callbacks=[], monitors=[cb.JSONWriter()]) as run:
        for epoch in run.epochs(2):
            for batch in run.batches([1.0, 3.0]):
                run.log(loss=batch / epoch)

def random(workdir):
    import os
    with Loop([cb.ModelSaver()], workdir=workdir, extra_callbacks=[], monitors=[cb.JSONWriter()]) as run:
        for epoch in run.epochs(2):
            for batch in run.batches([1.0, 3.0]):
                run.log(loss=int.from_bytes(os.urandom(4), "big"))
"""


class TestProve:
    def test_an_exact_run_is_proved(self, process, tmp_path):
        (tmp_path / "provable.py").write_text(PROVABLE)
        done = process("prove", "provable:make", "--kill-at", "3", "--workdir", "proof", text=True)
        assert done.returncode == 0, done.stderr
        assert done.stdout.startswith("exact: 4 steps, killed after step 3 and resumed; ")
        assert (tmp_path / "proof" / "resumed" / "checkpoints").is_dir()
        again = process("prove", "provable:make", "--workdir", "proof", text=True)
        assert again.returncode == 65
        assert "already exists" in again.stderr

    def test_a_run_that_is_not_exact_has_exit_code_1(self, process, tmp_path):
        (tmp_path / "provable.py").write_text(PROVABLE)
        done = process("prove", "provable:random", "--kill-at", "3", text=True)
        assert (done.returncode, done.stdout[:9]) == (1, "NOT exact"), done.stderr

    def test_prove_requires_a_function(self, command, tmp_path, monkeypatch):
        monkeypatch.setattr(sys, "path", list(sys.path))
        (tmp_path / "provable_too.py").write_text("number = 3\n")
        assert "must be a function that takes a folder" in command("prove", "provable_too:number", code=2).stderr
        sys.modules.pop("provable_too", None)
