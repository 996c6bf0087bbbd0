"""In a long run, memory, open files and threads stay constant after the first steps."""

from __future__ import annotations

from pathlib import Path

import pytest
from scale import times

STEPS, LOOKS, SECONDS = times(full=2_000_000, sample=4_000), 20, 1200
MOST_BYTES = max(4, STEPS // 100_000) << 20  # 1 MiB per 100,000 steps, and at least 4 MiB, for short runs


@pytest.mark.timeout(SECONDS + 60)
@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="needs /proc")
def test_memory_files_and_threads_do_not_grow_in_a_long_run(children, place, tally):
    child = children.start("soak.train", workdir=str(place / "run"), steps=STEPS, looks=LOOKS)
    assert child.wait(SECONDS) == 0, child.log
    seen = child.returned
    assert len(seen) == LOOKS
    sizes, files, threads = zip(*seen[LOOKS // 4 :], strict=True)
    assert len(set(files)) == len(set(threads)) == 1
    grown = max(sizes) - sizes[0]
    assert grown <= MOST_BYTES
    tally("long run", runs=1, steps=STEPS, kibibytes_grown=grown >> 10)
