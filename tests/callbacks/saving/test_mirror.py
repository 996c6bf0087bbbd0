from __future__ import annotations

import json
import logging
import shutil
import sys
import threading
from types import SimpleNamespace

import pytest

from hookpoint import Every, Loop
from hookpoint.callbacks import JSONWriter, MinSaver, Mirror, ModelSaver
from hookpoint.core.errors import BadArgument, BadLoop, CannotResume
from hookpoint.storage.remote.remote_folder import RemoteFolder
from hookpoint.storage.verify import verify


class Model:
    """An object with a state."""

    def __init__(self):
        self.value = 0

    def state_dict(self):
        return {"value": self.value}

    def load_state_dict(self, state):
        self.value = state["value"]


class Cut(Exception):
    """Raised to interrupt the run."""


@pytest.fixture
def folder(tmp_path):
    return tmp_path / "remote" / "mine"


@pytest.fixture
def train(tmp_path, folder):
    """Train on one of several machines that share a mirror."""

    def go(machine, *, epochs=3, cut_at=None, url=None, mirror=None, keep=2, resume="auto"):
        model = Model()
        saver = ModelSaver(max_to_keep=keep, keep_checkpoint_every_n_hours=None, async_save=False).when(Every(steps=2))
        mirror = Mirror(url or f"file://{folder}", every_seconds=0.01) if mirror is None else mirror
        options = {"extra_callbacks": [], "monitors": [JSONWriter()], "log_every": 1, "control": False, "resume": resume}
        with Loop([saver, mirror], model=model, workdir=tmp_path / machine, **options) as run:
            for epoch in run.epochs(epochs):
                for batch in run.batches(range(4)):
                    if run.current_iteration == cut_at:
                        raise Cut
                    model.value = 3 * model.value + batch + epoch
                    run.log(loss=model.value % 7)
        return SimpleNamespace(value=model.value, run=run, rows=rows(tmp_path / machine))

    return go


def rows(workdir):
    lines = [json.loads(line) for line in (workdir / "scalars.jsonl").read_text().splitlines()]
    return [{name: value for name, value in line.items() if name != "time"} for line in lines]


def checkpoints(folder):
    return sorted(path.parent.name for path in folder.glob("checkpoints/step-*/manifest.json"))


def test_the_mirror_contains_the_same_files_as_the_run_folder(train, folder, tmp_path):
    train("a")
    assert checkpoints(folder) == checkpoints(tmp_path / "a") == ["step-00000012", "step-00000012-2"]
    assert verify(folder).ok
    for name in ("run.json", "scalars.jsonl", "events.jsonl"):
        assert (folder / name).read_bytes() == (tmp_path / "a" / name).read_bytes()
    assert json.loads((folder / "run.json").read_text())["status"] == "finished"
    assert json.loads((folder / "mirror.json").read_text())["ended"] is True


def test_an_empty_folder_resumes_from_the_mirror(train, tmp_path, capsys):
    whole = train("whole", url=f"file://{tmp_path}/remote/whole")
    with pytest.raises(Cut):
        train("a", cut_at=8)
    moved = train("b")
    assert (moved.value, moved.rows) == (whole.value, whole.rows)
    assert f"Downloaded step-00000006 from file://{tmp_path}/remote/mine." in capsys.readouterr().err
    facts = [json.loads((tmp_path / name / "run.json").read_text()) for name in ("a", "b")]
    assert facts[0]["id"] == facts[1]["id"]


def test_a_newer_mirrored_checkpoint_replaces_an_older_local_one(train, tmp_path):
    whole = train("whole", url=f"file://{tmp_path}/remote/whole")
    with pytest.raises(Cut):
        train("a", cut_at=4)
    with pytest.raises(Cut):
        train("b", cut_at=10)
    back = train("a")
    assert (back.value, back.rows) == (whole.value, whole.rows)


def test_a_checkpoint_without_a_manifest_is_ignored(train, folder, tmp_path):
    whole = train("whole", url=f"file://{tmp_path}/remote/whole")
    with pytest.raises(Cut):
        train("a", cut_at=8)
    (folder / "checkpoints" / "step-00000006" / "manifest.json").unlink()
    moved = train("b")
    assert (moved.value, moved.rows) == (whole.value, whole.rows)
    assert verify(folder).ok


@pytest.mark.parametrize("file", ["manifest.json", "state.json"])
def test_a_damaged_checkpoint_is_skipped(train, folder, tmp_path, file, caplog):
    whole = train("whole", url=f"file://{tmp_path}/remote/whole")
    with pytest.raises(Cut):
        train("a", cut_at=8)
    path = next((folder / "checkpoints" / "step-00000006").glob(file if file == "manifest.json" else "state*"))
    path.write_bytes(path.read_bytes()[:-1] + b"?")
    moved = train("b")
    assert (moved.value, moved.rows) == (whole.value, whole.rows)
    assert "step-00000006" in caplog.text
    assert verify(folder).ok


def test_an_error_is_raised_if_all_checkpoints_are_damaged(train, folder, tmp_path):
    with pytest.raises(Cut):
        train("a", cut_at=8)
    for path in (folder / "checkpoints").glob("*/state*"):
        path.write_bytes(b"?")
    with pytest.raises(CannotResume, match=r"all checkpoints in file://.* are damaged"):
        train("b")
    assert not list((tmp_path / "b").glob("checkpoints/*"))


def test_a_mirror_of_another_run_raises(train, tmp_path, folder):
    train("a")
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    with pytest.raises(BadLoop, match=r"Mirror: file://.*/remote/mine contains another run, started 2"):
        train("a", resume="never")
    train("other", url=f"file://{tmp_path}/remote/other")
    with pytest.raises(BadLoop, match="contains another run"):
        train("other")
    assert {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()} == before


def test_resuming_from_an_earlier_checkpoint_retires_the_later_ones(train, tmp_path, folder, caplog):
    train("a", epochs=2, keep=9)
    earlier = tmp_path / "a" / "checkpoints" / "step-00000004"
    with pytest.raises(Cut):
        train("a", resume=earlier, cut_at=5)
    assert "step-00000004" in checkpoints(folder)
    assert max(checkpoints(folder)) < "step-00000008"
    assert (folder / "checkpoints" / "step-00000008" / "retired-manifest.json").exists()
    assert "so it was retired" in caplog.text


def test_the_best_checkpoint_is_mirrored(tmp_path, folder):
    def go(machine, epochs):
        options = {"extra_callbacks": [], "monitors": [], "control": False, "model": Model()}
        saver = ModelSaver(max_to_keep=1, keep_checkpoint_every_n_hours=None, async_save=False)
        callbacks = [saver, MinSaver("loss", async_save=False), Mirror(f"file://{folder}")]
        with Loop(callbacks, workdir=tmp_path / machine, **options) as run:
            for epoch in run.epochs(epochs):
                for _ in run.batches(range(2)):
                    run.log(loss=epoch)

    go("a", 3)
    go("b", 4)
    assert (tmp_path / "b" / "checkpoints" / "best-loss").is_dir()
    assert "step-00000002" in checkpoints(tmp_path / "b")


# Storage failures


class Broken(RemoteFolder):
    """Storage that can be switched off."""

    is_broken = False

    def __getattribute__(self, name):
        if name in ("upload", "write", "names", "read", "size") and type(self).is_broken:
            raise OSError("the network is down, secret=hunter22")
        return super().__getattribute__(name)


@pytest.fixture
def broken(monkeypatch):
    monkeypatch.setattr("hookpoint.callbacks.saving.mirror.RemoteFolder", Broken)
    monkeypatch.setattr(Broken, "is_broken", True)
    return Broken


def test_a_new_run_does_not_start_if_its_mirror_cannot_be_read(train, broken, tmp_path):
    with pytest.raises(CannotResume, match=r"Mirror cannot use file://.*: OSError: the network is down, secret=\*\*\*"):
        train("a")
    assert not (tmp_path / "a" / "run.json").exists()


def test_a_run_with_checkpoints_trains_without_its_mirror_and_catches_up(train, broken, folder, caplog, tmp_path):
    broken.is_broken = False
    with pytest.raises(Cut):
        train("a", cut_at=5)
    broken.is_broken = True

    class Repairs(Mirror):
        def on_epoch_end(self, run):
            if run.epoch == 2:
                broken.is_broken = False

    train("a", mirror=Repairs(f"file://{folder}", every_seconds=0.01))
    assert "Mirror" in caplog.text
    assert "cannot use file://" in caplog.text
    assert "hunter22" not in caplog.text
    assert checkpoints(folder) == checkpoints(tmp_path / "a")
    assert verify(folder).ok


def test_an_incomplete_mirror_is_reported_at_the_end(train, monkeypatch, folder, caplog):
    monkeypatch.setattr("hookpoint.callbacks.saving._mirror_thread.time.sleep", lambda seconds: None)
    monkeypatch.setattr(RemoteFolder, "upload", lambda self, file, path: (_ for _ in ()).throw(OSError("no room")))
    assert train("a").run.epoch == 3
    assert checkpoints(folder) == []
    assert [record.levelno for record in caplog.records if "will retry every" in record.message] == [logging.WARNING]
    assert f"file://{folder} is not complete, because OSError: no room. Start the script again" in caplog.text


def test_the_next_start_uploads_missing_checkpoints(train, monkeypatch, folder, tmp_path):
    monkeypatch.setattr("hookpoint.callbacks.saving._mirror_thread.time.sleep", lambda seconds: None)
    with monkeypatch.context() as patch:
        patch.setattr(RemoteFolder, "upload", lambda self, file, path: (_ for _ in ()).throw(OSError("no room")))
        train("a")
    train("a")
    assert checkpoints(folder) == checkpoints(tmp_path / "a")
    assert verify(folder).ok


def test_a_hanging_upload_does_not_block_the_end_of_the_run(train, monkeypatch, folder, caplog):
    forever = threading.Event()
    monkeypatch.setattr(RemoteFolder, "upload", lambda self, file, path: forever.wait())
    train("a", mirror=Mirror(f"file://{folder}", final_wait_seconds=0.05))
    assert "because the upload takes longer than 0.05 seconds" in caplog.text
    forever.set()


# Arguments


@pytest.mark.parametrize("url", ["runs/mine", "/runs/mine", "", None, "s3:bucket"])
def test_a_url_is_required(url):
    with pytest.raises(BadArgument, match="Mirror: "):
        Mirror(url)


def test_a_workdir_is_required():
    with pytest.raises(BadLoop, match="Mirror needs a workdir"), Loop([Mirror("memory://mine")]):
        pass


def test_a_missing_package_is_named_with_its_extra(train, monkeypatch):
    pytest.importorskip("fsspec")
    monkeypatch.setitem(sys.modules, "s3fs", None)
    with pytest.raises(BadArgument, match=r"s3://bucket/mine needs s3fs\.\n.*pip install 'hookpoint\[remote\]'"):
        train("a", url="s3://bucket/mine")


def test_storage_options_are_never_written_or_logged(train, tmp_path, folder, caplog, capsys):
    secret = "hunter22-hunter22"
    mirror = Mirror(f"file://{folder}", storage_options={"auto_mkdir": True, "password": secret, "nested": {"any": [secret]}})
    train("a", mirror=mirror)
    shutil.rmtree(tmp_path / "a")
    contents = [path.read_bytes() for path in folder.rglob("*") if path.is_file()]
    assert len(contents) > 5
    assert not any(secret.encode() in content for content in contents)
    assert secret not in caplog.text + "".join(capsys.readouterr())
    assert secret not in RemoteFolder(f"file://{folder}", {"password": secret}).without_secrets(f"denied for {secret}")
