"""Callbacks see the same under every other trainer as in our Runner."""

from __future__ import annotations

from importlib.metadata import version

import pytest
from tests.adapters.differences import difference, listed
from tests.adapters.installed import installed_hosts
from tests.adapters.scripts import SCRIPTS, recorded, reference

HOSTS = installed_hosts()


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.name.replace(" ", "_"))
@pytest.mark.parametrize("name", HOSTS)
def test_a_host_gives_the_same_record_as_the_runner(name, script, tmp_path):
    host = HOSTS[name]
    if script.name in host.CANNOT:
        pytest.skip(f"{host.NAME}: {host.CANNOT[script.name]}")
    theirs = recorded(host, script, tmp_path / "theirs", host.UNAVAILABLE)
    ours = reference(script, tmp_path / "ours", host.UNAVAILABLE, continues=host.CONTINUES)
    expected = listed(name, version(getattr(host, "DISTRIBUTION", host.PACKAGE))).get(script.name)
    found = difference(ours, theirs)
    assert found == (() if expected is None else expected.lines), "\n".join(found)
    assert len(theirs) > 4


@pytest.mark.parametrize("name", HOSTS)
def test_listed_differences_belong_to_scripts_that_run(name):
    host = HOSTS[name]
    runs = {script.name for script in SCRIPTS if script.name not in host.CANNOT}
    runs |= getattr(host, "MORE_SCRIPTS", set())
    assert set(listed(name, version(getattr(host, "DISTRIBUTION", host.PACKAGE)))) <= runs
    assert set(host.CANNOT) <= {script.name for script in SCRIPTS}
