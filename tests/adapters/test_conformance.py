"""One script, every host, one record: what our callbacks see under another trainer is what they see in our Runner."""

from __future__ import annotations

import importlib
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path

import pytest
from tests.adapters.differences import difference, listed
from tests.adapters.scripts import SCRIPTS, recorded, reference

HOSTS = [path.stem for path in sorted(Path(__file__).with_name("hosts").glob("*.py"))]


def loaded(name):
    """Return the module of a host; skip the test if its package is not installed."""
    host = importlib.import_module(f"tests.adapters.hosts.{name}")
    if find_spec(host.PACKAGE) is None:
        pytest.skip(f"{host.NAME} is not installed: make test-adapters")
    return host


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.name.replace(" ", "_"))
@pytest.mark.parametrize("name", HOSTS)
def test_the_record_of_a_host(name, script, tmp_path):
    host = loaded(name)
    if script.name in host.CANNOT:
        pytest.skip(f"{host.NAME}: {host.CANNOT[script.name]}")
    theirs = recorded(host, script, tmp_path / "theirs", host.UNAVAILABLE)
    ours = reference(script, tmp_path / "ours", host.UNAVAILABLE, continues=host.CONTINUES)
    expected = listed(name, version(host.PACKAGE)).get(script.name)
    found = difference(ours, theirs)
    assert found == (() if expected is None else expected.lines), "\n".join(found)
    assert len(theirs) > 4
