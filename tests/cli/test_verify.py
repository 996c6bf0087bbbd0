"""`hookpoint verify` reports damage, also through its exit code."""

from __future__ import annotations

import json


def state_of(folder):
    """Return the state file of the first checkpoint; its name depends on whether torch is loaded."""
    (path,) = (folder / "checkpoints" / "step-00000004").glob("state.*")
    return path


def test_good_checkpoints_are_reported(command, train_run):
    train_run(epochs=2)
    result = command("verify", "mine")
    assert result.stdout == "step-00000004  step 4  good\nstep-00000008  step 8  good\nbest-val_loss  step 8  good\n"
    assert result.stderr == "3 checkpoints, none damaged\n"


def test_a_damaged_checkpoint_is_reported_with_exit_code_1(command, train_run):
    folder = train_run(epochs=2)
    with open(state_of(folder), "ab") as file:
        file.write(b"x")
    result = command("verify", "mine", code=1)
    assert result.stdout.startswith("step-00000004  step 4  damaged: state.")
    assert result.stderr == "3 checkpoints, 1 damaged\n"
    output = json.loads(command("verify", "mine", "--json", code=1).stdout)
    assert output["ok"] is False
    assert [one["ok"] for one in output["checkpoints"]] == [False, True, True]


def test_a_single_checkpoint_can_be_verified(command, train_run):
    train_run(epochs=2)
    assert command("verify", "runs/mine/checkpoints/step-00000004").stdout == "step-00000004  step 4  good\n"
    assert len(command("verify", "runs/mine/checkpoints").stdout.splitlines()) == 3
    assert command("verify", "runs/mine/checkpoints/last").stdout == "step-00000008  step 8  good\n"


def test_a_run_without_checkpoints_is_reported(command, train_run):
    train_run(callbacks=[])
    assert command("verify", "mine").stderr == "no checkpoints in runs/mine\n"


def test_a_folder_without_a_run_is_rejected(command, tmp_path):
    (tmp_path / "empty").mkdir()
    assert "there is no run in empty" in command("verify", "empty", code=65).stderr
    assert "there is no run nothing" in command("verify", "nothing", code=2).stderr


def test_a_checkpoint_deleted_during_verify_is_not_damaged(command, train_run, monkeypatch):
    import shutil

    from hookpoint.cli import verify as module

    folder = train_run(epochs=2)
    verified = module.verified

    def gone_meanwhile(path):
        state_of(folder).unlink()
        found = verified(path)
        shutil.rmtree(folder / "checkpoints" / "step-00000004")
        return found

    monkeypatch.setattr(module, "verified", gone_meanwhile)
    assert command("verify", "mine").stderr == "2 checkpoints, none damaged\n"
