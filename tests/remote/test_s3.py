"""Mirror with a real S3 server: uploads, kills during uploads, and reading the mirror."""

from __future__ import annotations

import json
import os
import random
from contextlib import suppress
from pathlib import Path

import pytest
import torch

pytest.importorskip("moto.moto_server.werkzeug_app", reason="make test-remote installs it")
pytest.importorskip("s3fs")

from click.testing import CliRunner
from tests.remote.s3_server import S3Server

from hookpoint.cli.main import main as command
from hookpoint.storage.checkpoint.checkpoint_folder import verified
from hookpoint.storage.remote.mirrored import offered, remote_manifest
from hookpoint.storage.remote.remote_folder import RemoteFolder

pytestmark = pytest.mark.timeout(1200)  # dozens of processes in sequence

SCRIPT = Path(__file__).with_name("train_to_s3.py")
SECRET = "wJalrXUtnFEMI-K7MDENG-bPxRfiCYEXAMPLEKEY"
KILLS, EPOCHS = 20, 12
MOMENTS = ("before", "middle", "after")


@pytest.fixture
def s3(monkeypatch):
    with S3Server() as server:
        settings = {"ENDPOINT_URL": server.url, "ACCESS_KEY_ID": "AKIAIOSFODNN7EXAMPLE", "SECRET_ACCESS_KEY": SECRET}
        for name, value in {**settings, "DEFAULT_REGION": "us-east-1"}.items():
            monkeypatch.setenv(f"AWS_{name}", value)
        import s3fs

        s3fs.S3FileSystem.clear_instance_cache()
        s3fs.S3FileSystem().makedirs("bucket", exist_ok=True)  # moto keeps the bucket until the process ends
        yield server
        s3fs.S3FileSystem.clear_instance_cache()


@pytest.fixture
def train(s3, warm_python, monkeypatch):
    """Run the script in a new process; return its last line of output."""

    def go(workdir, url=None, epochs=EPOCHS):
        monkeypatch.setenv("TRAIN_WORKDIR", str(workdir))
        monkeypatch.setenv("TRAIN_EPOCHS", str(epochs))
        if url is None:
            monkeypatch.delenv("TRAIN_URL", raising=False)
        else:
            monkeypatch.setenv("TRAIN_URL", url)
        with warm_python(SCRIPT) as stream:
            s3.client = int(stream.readline().split()[1])
            s3.manifests = saved = 0
            line = ""
            with suppress(ConnectionResetError, BrokenPipeError):  # if it is killed
                stream.write("go\n")
                stream.flush()
                for line in map(str.strip, stream):
                    if line == "saved":
                        saved += 1
                        s3.wait_for_manifests(saved)
                        stream.write("go\n")
                        stream.flush()
        return line

    return go


def rows(workdir):
    """Return the records in scalars.jsonl, without times."""
    lines = [json.loads(line) for line in (workdir / "scalars.jsonl").read_text().splitlines()]
    return [{name: value for name, value in line.items() if name != "time"} for line in lines]


def check_all(url, folder):
    """Download and verify every checkpoint in the mirror. Return their number."""
    remote, count = RemoteFolder(url), 0
    for _, name in offered(remote):
        found = remote_manifest(remote, name)
        if found is not None:
            manifest, data = found
            target = folder / name
            target.mkdir(parents=True)
            for file in manifest.files:
                remote.download(f"checkpoints/{name}/{file}", target / file)
            (target / "manifest.json").write_bytes(data)
            assert verified(target).step == manifest.step
            count += 1
    return count


def test_the_mirror_has_only_good_checkpoints_after_kills_during_uploads(train, s3, tmp_path, record_property):
    url, draw = "s3://bucket/runs/killed", random.Random(7)
    assert train(tmp_path / "whole") == "done"
    kills, verified_count, resumed_from = 0, 0, set()
    while kills < KILLS:
        s3.kill_at(draw.randint(3, 22), MOMENTS[kills % 3])
        workdir = tmp_path / f"machine-{kills}"  # each start is on a new machine
        last = train(workdir, url)
        assert s3.killed.is_set(), f"not killed, but {last!r}"
        kills += 1
        verified_count += check_all(url, tmp_path / f"checked-{kills}")
        resumed_from.update(path.name for path in (workdir / "checkpoints").glob("step-*"))
    s3.kill_at(0, "before")
    assert train(tmp_path / "last", url) == "done"
    whole, last = (torch.load(tmp_path / name / "final.pt") for name in ("whole", "last"))
    assert all(torch.equal(whole[name], last[name]) for name in whole)
    assert rows(tmp_path / "whole") == rows(tmp_path / "last")
    assert check_all(url, tmp_path / "checked") >= 3
    assert len(resumed_from) > 3  # the kills were spread over the run
    record_property("faults", ("kills during uploads to S3", {"kills": kills, "checkpoints verified": verified_count}))


def test_a_new_machine_resumes_from_the_mirror_and_extends_the_run(train, tmp_path):
    assert train(tmp_path / "whole") == "done"
    assert train(tmp_path / "first", "s3://bucket/runs/moved", epochs=3) == "done"
    assert train(tmp_path / "second", "s3://bucket/runs/moved") == "done"
    whole, second = (torch.load(tmp_path / name / "final.pt") for name in ("whole", "second"))
    assert all(torch.equal(whole[name], second[name]) for name in whole)
    assert rows(tmp_path / "whole") == rows(tmp_path / "second")


def test_runs_show_and_plot_read_the_mirror(train, tmp_path, monkeypatch):
    assert train(tmp_path / "first", "s3://bucket/listed/first", epochs=2) == "done"
    assert train(tmp_path / "second", "s3://bucket/listed/second", epochs=1) == "done"
    monkeypatch.chdir(tmp_path)

    def output(*arguments):
        result = CliRunner().invoke(command, arguments)
        assert result.exit_code == 0, result.output
        return result.output

    listed = {run["name"]: run for run in json.loads(output("runs", "s3://bucket/listed", "--json"))}
    assert {name: (run["status"], run["step"]) for name, run in listed.items()} == {
        "first": ("finished", 16),
        "second": ("finished", 8),
    }
    shown = output("show", "s3://bucket/listed/first")
    assert "s3://bucket/listed/first" in shown
    assert "step-00000016" in shown
    assert "loss" in output("plot", "s3://bucket/listed/first", "s3://bucket/listed/second", "--terminal")


def test_no_file_and_no_object_contains_credentials(train, s3, tmp_path):
    assert train(tmp_path / "mine", "s3://bucket/runs/mine", epochs=1) == "done"
    remote = RemoteFolder("s3://bucket/runs/mine")
    contents = [remote.read(path) for path in remote.sizes()]
    contents += [path.read_bytes() for path in (tmp_path / "mine").rglob("*") if path.is_file()]
    assert len(contents) > 10
    assert not any(secret.encode() in content for content in contents for secret in (SECRET, os.environ["AWS_ACCESS_KEY_ID"]))
