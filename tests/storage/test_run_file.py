from __future__ import annotations

import contextlib
import errno
import json

import pytest

from hookpoint.storage.disk._fs_calls import intercepted
from hookpoint.storage.run_file import RunFile, read_run_file


def test_updates_are_merged(tmp_path):
    file = RunFile(tmp_path)
    file.update({"status": "running", "started": "one"})
    file.update({"epochs": 3})
    file.update({"status": "finished"})
    found = json.loads((tmp_path / "run.json").read_text())
    assert found == {"format": 1, "status": "finished", "started": "one", "resumed": [], "epochs": 3}
    assert read_run_file(tmp_path) == found


def test_a_resumed_run_keeps_only_its_earlier_start_times(tmp_path):
    for start in ("one", "two", "three"):
        RunFile(tmp_path).update({"status": "running", "started": start, f"only of {start}": True})
    assert read_run_file(tmp_path) == {
        "format": 1,
        "status": "running",
        "started": "one",
        "resumed": ["two", "three"],
        "only of three": True,
    }


def test_only_the_owner_can_access_the_run_file(tmp_path):
    RunFile(tmp_path).update({"status": "running"})
    assert (tmp_path / "run.json").stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("content", [b"", b"{", b"[1]", b"\xff\xfe", b'{"status": 3}', b'{"name": "other program"}', b"null"])
def test_an_invalid_run_file_is_ignored_and_replaced(tmp_path, content):
    (tmp_path / "run.json").write_bytes(content)
    assert read_run_file(tmp_path) == {}
    RunFile(tmp_path).update({"status": "running", "started": "now"})
    assert read_run_file(tmp_path)["started"] == "now"


def test_reading_a_missing_folder_returns_an_empty_dict(tmp_path):
    assert read_run_file(tmp_path / "nothing") == {}


@pytest.mark.parametrize("name", ["stat", "open", "read"])
def test_a_warning_is_logged_if_earlier_starts_cannot_be_read(tmp_path, name, caplog):
    RunFile(tmp_path).update({"status": "running", "started": "one"})

    def broken(operation, proceed):
        if operation.name == name and operation.path.endswith("/run.json"):
            raise OSError(errno.EIO, "Input/output error", operation.path)
        return proceed()

    with intercepted(broken):
        RunFile(tmp_path).update({"status": "running", "started": "two"})
    assert "run.json could not be read; the record of earlier starts is lost: [Errno 5]" in caplog.text
    assert read_run_file(tmp_path)["started"] == "two"


@pytest.mark.parametrize("fails_at", range(6))
def test_a_failed_update_leaves_the_old_or_the_new_file(tmp_path, fails_at):
    RunFile(tmp_path).update({"status": "running", "started": "one"})
    before = (tmp_path / "run.json").read_bytes()
    changes = []

    def full(operation, proceed):
        if operation.changes:
            changes.append(operation.name)
            if len(changes) > fails_at:
                raise OSError(errno.ENOSPC, "No space left on device", operation.path)
        return proceed()

    file = RunFile(tmp_path)
    with intercepted(full), contextlib.suppress(OSError):
        file.update({"status": "finished", "started": "two"})
    after = (tmp_path / "run.json").read_bytes()
    assert after == before or read_run_file(tmp_path)["status"] == "finished"
