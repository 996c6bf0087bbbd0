from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

import hookpoint
from hookpoint.storage.workdir.identity import FINE, FORMAT, REFUSED, WARNED, Row, collect, compare, table

NOW = {
    "format": FORMAT,
    "hookpoint": "0.2",
    "python": "3.12.1",
    "platform": "Linux",
    "world_size": 1,
    "model_size": 1,
    "seed": 7,
    "git": "aaaa",
    "git_dirty": False,
    "numpy": "2.1",
    "torch": "2.13",
    "cuda": "12.8",
    "device": "NVIDIA H200",
    "layout": "whole",
    "copies": "alike",
    "model": "9f3c",
    "optimizer": "torch.optim.sgd.SGD",
    "optimizer_parameters": "4 in 1 group (71aa02bc)",
    "precision": "float32",
    "accumulate": 1,
}


def verdicts(saved, now=None):
    return {row.name: row.verdict for row in compare(saved, now or NOW)}


def test_equal_identities_give_no_rows():
    assert compare(NOW, dict(NOW)) == []
    assert compare({"shape": [2, 3]}, {"shape": (2, 3)}) == []  # as it comes back from a file


def test_every_known_name_has_a_verdict():
    assert set(NOW) == {*REFUSED, *WARNED, *FINE}


@pytest.mark.parametrize("name", ["world_size", "model", "optimizer", "optimizer_parameters"])
def test_a_difference_that_prevents_a_resume_is_refused(name):
    assert verdicts({**NOW, name: "other"}) == {name: "refused"}


@pytest.mark.parametrize("name", ["torch", "cuda", "device", "precision", "accumulate", "seed", "numpy"])
def test_a_difference_that_may_change_the_results_gets_a_warning(name):
    assert verdicts({**NOW, name: "other"}) == {name: "warned"}
    assert verdicts({**NOW, name: None}) == {name: "warned"}


@pytest.mark.parametrize("name", ["hookpoint", "python", "platform", "git", "git_dirty"])
def test_a_difference_that_changes_nothing_is_fine(name):
    assert verdicts({**NOW, name: "other"}) == {name: "fine"}


@pytest.mark.parametrize(("saved", "verdict"), [(FORMAT + 1, "refused"), (FORMAT - 1, "fine"), ("x", "refused")])
def test_a_newer_format_is_refused_and_an_older_format_is_fine(saved, verdict):
    assert verdicts({**NOW, "format": saved}) == {"format": verdict}


def test_a_name_that_only_one_side_knows_is_fine():
    assert compare({**NOW, "mesh": 2}, NOW) == [Row("mesh", 2, None, "fine")]
    assert compare({}, {"model": "9f3c"}) == [Row("model", None, "9f3c", "fine")]


def test_a_difference_with_an_unknown_name_gets_a_warning():
    assert verdicts({"tokenizer": "a"}, {"tokenizer": "b"}) == {"tokenizer": "warned"}


def test_the_table_is_aligned_and_lists_the_worst_first():
    rows = compare({**NOW, "git": "bbbb", "world_size": 8, "seed": None, "torch": "2.10"}, NOW)
    assert table(rows) == textwrap.dedent(
        """\
        what        saved  now   verdict
        world size  8      1     refused: each rank has a shard of the data and the state
        seed        -      7     warned: the saved generators are restored; the new seed has no effect
        torch       2.10   2.13  warned: results may differ in the last bits
        git         bbbb   aaaa  fine"""
    )


def test_an_unknown_difference_is_explained_as_such():
    assert table([Row("tokenizer", "a", "b", "warned")]).splitlines()[1] == (
        "tokenizer  a      b    warned: the effect of this difference is unknown"
    )


def test_a_collected_identity_is_plain_and_comparable():
    found = collect(world_size=2, seed=None, torch="2.13")
    assert found["format"] == FORMAT
    assert found["hookpoint"] == hookpoint.__version__
    assert (found["world_size"], found["seed"], found["torch"]) == (2, None, "2.13")
    assert json.loads(json.dumps(found)) == found
    assert set(found) <= {*REFUSED, *WARNED, *FINE}


# The revision of the main script

SCRIPT = """
import json
from hookpoint.storage.workdir.identity import collect
print(json.dumps({name: value for name, value in collect(world_size=1, seed=0).items() if name.startswith("git")}))
"""


def revision(script, **environment):
    known = {"PYTHONPATH": str(Path(hookpoint.__file__).parents[1]), "PATH": os.environ["PATH"], **environment}
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, env=known, timeout=250, check=True)
    assert done.stderr == ""
    return json.loads(done.stdout)


def test_the_identity_has_the_git_revision_of_the_main_script(tmp_path, monkeypatch):
    monkeypatch.delenv("GIT_DIR")

    def git(*command):
        named = ["-c", "user.name=a", "-c", "user.email=a@b.c", "-c", "commit.gpgsign=false"]
        return subprocess.run(
            ["git", *named, *command], cwd=tmp_path, check=True, capture_output=True, text=True
        ).stdout.strip()

    script = tmp_path / "train.py"
    script.write_text(SCRIPT)
    git("init", "-q")
    assert revision(script) == {}  # nothing is committed
    git("add", ".")
    git("commit", "-q", "-m", "first")
    (tmp_path / "run.log").write_text("not tracked")
    head = git("rev-parse", "HEAD")
    assert revision(script) == {"git": head, "git_dirty": False}
    script.write_text(SCRIPT + "# changed\n")
    assert revision(script) == {"git": head, "git_dirty": True}


def test_the_identity_has_no_revision_without_git(tmp_path):
    script = tmp_path / "train.py"
    script.write_text(SCRIPT)
    assert revision(script, GIT_CEILING_DIRECTORIES=str(tmp_path.parent)) == {}
    assert revision(script, PATH=str(tmp_path)) == {}  # no git at all
