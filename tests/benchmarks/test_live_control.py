"""The benchmark of live control runs. Its opcode counts are the same on every machine; its times are not tested."""

from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


def test_control_adds_no_opcodes_per_iteration(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    import live_control

    on, off = (live_control.opcodes(tmp_path / str(control), control=control) for control in (True, False))
    assert on == off
    assert on > 10
    figures = live_control.figures_of(
        {name: [0.1] for name in (live_control.IDLE, live_control.BUSY, live_control.CPU, live_control.OPCODES)}
    )
    assert [figure.limit for figure in figures] == [0.5, 2.0, 1.0, 0.0]
