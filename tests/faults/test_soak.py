"""A long run: memory, files and threads stay what they are after the first steps."""

from __future__ import annotations

from pathlib import Path

import pytest
from scale import times

STEPS, LOOKS, SECONDS = times(full=2_000_000, sample=4_000), 20, 1200
MOST_BYTES = max(4, STEPS // 100_000) << 20  # 1 MiB for 100,000 steps; a short run is not judged by a few pages


@pytest.mark.timeout(SECONDS + 60)
@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="needs /proc")
def test_a_long_run_grows_by_nothing(children, place, tally):
    child = children.start("soak.train", workdir=str(place / "run"), steps=STEPS, looks=LOOKS)
    assert child.wait(SECONDS) == 0, child.log
    seen = child.returned
    assert len(seen) == LOOKS
    sizes, files, threads = zip(*seen[LOOKS // 4 :], strict=True)
    assert len(set(files)) == len(set(threads)) == 1
    grown = max(sizes) - sizes[0]
    assert grown <= MOST_BYTES
    tally("long run", runs=1, steps=STEPS, kibibytes_grown=grown >> 10)
