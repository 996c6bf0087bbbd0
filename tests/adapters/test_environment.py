"""Every adapter test runs in at least one environment of `make test-adapters`."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from tests.adapters.environment import ROOT, requirements

HOSTS = re.search(r"^HOSTS \?= (.+)$", (ROOT / "Makefile").read_text(), re.MULTILINE)[1].split()
NEEDED = {
    str(path.relative_to(ROOT)): set(re.findall(r'importorskip\("(\w+)[^)]*: make test-adapters', path.read_text()))
    for path in sorted(Path(__file__).parent.rglob("test_*.py"))
}


def packages(host, *, lowest):
    return {re.split(r"\W", one.removeprefix("pytorch-"))[0] for one in requirements(host, lowest=lowest)}


@pytest.mark.parametrize("lowest", [False, True])
@pytest.mark.parametrize("path", [path for path, needed in NEEDED.items() if needed])
def test_some_environment_has_all_trainers_that_a_file_needs(path, lowest):
    assert any(NEEDED[path] <= packages(host, lowest=lowest) for host in HOSTS)


def test_the_needed_trainers_of_files_are_found():
    assert max(map(len, NEEDED.values())) == 3
    assert len([needed for needed in NEEDED.values() if needed]) > 8
