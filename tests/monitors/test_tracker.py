"""Monitors of tracking services share a file that identifies the remote run, and the handling of the environment."""

from __future__ import annotations

import json
import os

import pytest

from hookpoint import Loop
from hookpoint.core.log.records import Record
from hookpoint.monitors._tracker import RemoteRun, Tracker, event_lines


class Remote(RemoteRun):
    """A remote run that records its calls."""

    def open(self, run_id):
        self.monitor.opened.append((run_id, self.sent_step))
        return run_id or "new"

    def send(self, records):
        self.sent_step = records[-1].step

    def finish(self):
        self.monitor.finished.append(self.status)


class Service(Tracker):
    """A tracker of a package that is always installed."""

    service = "JSON"
    remote_class = Remote
    variables = {"HOOKPOINT_MINE": "other", "HOOKPOINT_NEW": "new"}  # noqa: RUF012

    def __init__(self, **options):
        super().__init__(**options)
        self.opened, self.finished = [], []

    def prepare(self, workdir):
        self.environment = os.environ["HOOKPOINT_MINE"], os.environ["HOOKPOINT_NEW"]
        return "https://me:pw@host"


@pytest.fixture(autouse=True)
def variables(monkeypatch):
    monkeypatch.setenv("HOOKPOINT_MINE", "mine")
    monkeypatch.delenv("HOOKPOINT_NEW", raising=False)


def go(folder):
    service = Service()
    with Loop([service], workdir=folder, extra_callbacks=[], monitors=[]) as run:
        for _ in run.epochs(1):
            for _ in run.batches([1, 2]):
                run.log(loss=1.0)
    return service


FILE = {"run_id": "abc", "where": "https://***@host", "is_over": False, "step": 7, "is_saved": False}


def test_the_file_identifies_the_run_without_secrets(tmp_path):
    service = go(tmp_path / "new")
    assert (service.opened, service.finished) == ([(None, -1)], ["finished"])
    assert json.loads((tmp_path / "new" / "json.json").read_text()) == {**FILE, "run_id": "new", "is_over": True, "step": 2}
    assert [path.name for path in (tmp_path / "new").glob("*json.json*")] == ["json.json"]


@pytest.mark.parametrize(
    ("changes", "opened"),
    [
        ({}, ("abc", 7)),
        ({"is_over": True}, (None, -1)),
        ({"is_saved": True}, (None, -1)),
        ({"where": "https://other"}, (None, -1)),
        ({"step": "x"}, (None, -1)),
    ],
)
def test_a_fresh_run_continues_a_run_killed_before_its_first_checkpoint(tmp_path, changes, opened):
    (tmp_path / "json.json").write_text(json.dumps({**FILE, **changes}))
    assert go(tmp_path).opened == [opened]


@pytest.mark.parametrize("content", ["", "{", "[]", "7", "null", '{"run_id": "abc"}'])
def test_a_damaged_file_is_ignored(tmp_path, content):
    (tmp_path / "json.json").write_text(content)
    assert go(tmp_path).opened == [(None, -1)]


def test_variables_are_set_for_the_run_unless_the_user_has_set_them(tmp_path):
    assert go(tmp_path).environment == ("mine", "new")
    assert os.environ["HOOKPOINT_MINE"] == "mine"
    assert "HOOKPOINT_NEW" not in os.environ


def test_an_event_is_one_line_without_secrets():
    fields = {"reason": "loss is low", "by": None, "url": "https://me:pw@host"}
    assert event_lines(Record("event", {"stop": fields}, step=8, epoch=1)) == {
        "stop": "step 8, reason=loss is low, url=https://***@host"
    }
    assert event_lines(Record("event", {"epoch_end": {"complete": True}}, step=8, epoch=1)) == {}
