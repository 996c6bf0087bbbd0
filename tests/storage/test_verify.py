from __future__ import annotations

import pytest
import torch

from hookpoint.core.errors import CannotResume
from hookpoint.storage.verify import verify


@pytest.fixture
def workdir(opened, write, tmp_path):
    store = opened()
    for step in (1, 20):
        write(store, step, best_x=None, state={"parts": {"model": {"w": torch.ones(3)}}})
    write(store, 300)
    store.close()
    return tmp_path / "run"


def test_every_checkpoint_and_best_folder_is_a_row(workdir):
    found = verify(workdir)
    assert found.ok
    assert [tuple(row) for row in found.rows] == [
        ("step-00000001", 1, True, ""),
        ("step-00000020", 20, True, ""),
        ("step-00000300", 300, True, ""),
        ("best-x", 20, True, ""),
    ]
    assert str(found).splitlines() == [
        "step-00000001  step 1    good",
        "step-00000020  step 20   good",
        "step-00000300  step 300  good",
        "best-x         step 20   good",
    ]


def test_damage_is_reported_and_nothing_is_changed(workdir, flip):
    folder = workdir / "checkpoints"
    flip(folder / "step-00000020" / "model.safetensors", -1)
    flip(folder / "step-00000300" / "manifest.json", 3)
    found = verify(workdir)
    assert not found.ok
    assert str(found).splitlines() == [
        "step-00000001  step 1    good",
        "step-00000020  step 20   damaged: model.safetensors changed after it was written",
        f"step-00000300  step 300  the manifest.json of {folder}/step-00000300 was changed",
        "best-x         step 20   damaged: model.safetensors changed after it was written",
    ]
    assert [row.ok for row in found.rows] == [True, False, False, False]
    assert (folder / "step-00000020").exists()


def test_verify_accepts_a_single_checkpoint(workdir):
    for name in ("step-00000020", "best-x"):
        assert [row.name for row in verify(workdir / "checkpoints" / name).rows] == [name]
    assert [row.name for row in verify(workdir / "checkpoints" / "last").rows] == ["step-00000300"]
    assert len(verify(workdir / "checkpoints").rows) == 4


def test_a_stray_file_is_reported_but_is_not_damage(workdir):
    (workdir / "checkpoints" / "step-00000020" / "notes.txt").write_text("mine")
    found = verify(workdir)
    assert found.ok
    said = "some files are ignored, because its manifest.json does not list them: 'notes.txt'"
    assert found.rows[1] == ("step-00000020", 20, True, said)
    assert str(found).splitlines()[1] == f"step-00000020  step 20   good; {said}"


def test_a_checkpoint_that_is_a_link_is_not_ok(workdir, tmp_path):
    link = workdir / "checkpoints" / "step-00000300"
    link.rename(tmp_path / "elsewhere")
    link.symlink_to(tmp_path / "elsewhere")
    for found in (verify(workdir).rows[2], *verify(link).rows):
        assert found[:3] == ("step-00000300", 300, False)
        assert found.problem.startswith("a symbolic link, not a checkpoint folder")


def test_a_checkpoint_without_a_manifest_is_damaged(workdir):
    (workdir / "checkpoints" / "step-00000001" / "manifest.json").unlink()
    assert verify(workdir / "checkpoints" / "step-00000001").rows[0].problem == "damaged: it has no manifest.json"


def test_a_workdir_without_checkpoints_is_ok(tmp_path):
    assert verify(tmp_path).ok
    assert str(verify(tmp_path)) == "no checkpoints"
    with pytest.raises(CannotResume, match="there is no folder"):
        verify(tmp_path / "nowhere")


def test_a_file_that_cannot_be_read_is_reported(workdir, failing):
    with failing(1, 13, select=lambda one: one.name == "open"):
        assert verify(workdir).rows[0].problem == "cannot be read: Permission denied"


def test_verify_does_not_import_torch(workdir, python):
    program = f"""
import sys
from hookpoint.storage.verify import verify
assert verify({str(workdir)!r}).ok
print([name for name in ("numpy", "safetensors", "torch") if name in sys.modules])"""
    assert python(program, silent=True) == ["[]"]
