"""The benchmark of your own loop runs and reports the cost of each part. The measured values are not tested."""

from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


def test_each_part_is_measured(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    import own_loop

    cpu, _ = own_loop.measure("own loop", own_loop.candidates(own_loop.job_of(3), str(tmp_path)), rounds=1)
    figures = own_loop.parts_of(cpu)
    assert [(figure.name, figure.unit) for figure in figures] == [(part, "us") for part in own_loop.PARTS]
    assert set(cpu.timings) == {row for rows in own_loop.PARTS.values() for row in rows}
