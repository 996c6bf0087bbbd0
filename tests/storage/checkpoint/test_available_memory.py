from __future__ import annotations

import pytest

from hookpoint.storage.checkpoint import available_memory
from hookpoint.storage.checkpoint.available_memory import available_bytes


@pytest.fixture
def system(tmp_path, monkeypatch):
    """Write the files that Linux provides: meminfo, and the files of a cgroup."""

    def write(**files):
        for name, text in files.items():
            path = tmp_path / "groups" / "mine" / name.replace("_", ".") if name.startswith("memory") else tmp_path / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)

    monkeypatch.setattr(available_memory, "MEMINFO", tmp_path / "meminfo")
    monkeypatch.setattr(available_memory, "CGROUP", tmp_path / "cgroup")
    monkeypatch.setattr(available_memory, "GROUPS", tmp_path / "groups")
    return write


def test_available_bytes_reads_meminfo(system):
    system(meminfo="MemTotal:  100 kB\nMemAvailable:  40 kB\n")
    assert available_bytes() == 40 * 1024


def test_a_container_limit_applies_and_its_page_cache_counts_as_free(system):
    system(meminfo="MemAvailable:  40 kB\n", cgroup="0::/mine\n")
    system(memory_max="20000\n", memory_current="15000\n", memory_stat="anon 9000\ninactive_file 3000\n")
    assert available_bytes() == 8000


def test_a_container_without_a_limit_has_the_memory_of_the_system(system):
    system(meminfo="MemAvailable:  40 kB\n", cgroup="0::/mine\n", memory_max="max\n", memory_current="15000\n")
    assert available_bytes() == 40 * 1024


def test_available_bytes_is_none_if_the_system_does_not_report_it(system):
    assert available_bytes() is None
