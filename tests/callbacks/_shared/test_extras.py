from __future__ import annotations

import sys

from hookpoint.callbacks._shared.extras import optional, warn_once


def test_an_installed_package_is_returned(caplog):
    assert optional("Mine", "json", extra="system").dumps(1) == "1"
    assert caplog.messages == []


def test_a_missing_package_is_reported_once(monkeypatch, caplog):
    monkeypatch.setitem(sys.modules, "pynvml", None)
    for _ in range(3):
        assert optional("Mine", "pynvml", extra="system", name="nvidia-ml-py") is None
    assert caplog.messages == ["Mine does nothing without nvidia-ml-py: pip install 'hookpoint[system]'"]


def test_each_warning_is_logged_once(caplog):
    for line in ("one", "two", "one"):
        warn_once(line)
    assert caplog.messages == ["one", "two"]
