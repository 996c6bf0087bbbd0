"""The benchmark of limits runs and returns its figures. The measured values are not tested: machines differ."""

from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


def test_each_measurement_runs_and_has_its_figures(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    import limits

    assert limits.compile_seconds(4) >= 0
    assert limits.log_names(3, traced=False) >= 0
    figures = limits.figures_of({name: [2.0] for name in (limits.COMPILE, limits.TWICE, limits.LOG, limits.MEMORY)})
    assert [figure.cells()[1:] for figure in figures] == [
        ["2.00 s", "2.00 to 2.00", "1 s", "over"],
        ["2.00 x", "2.00 to 2.00", "3 x", "ok"],
        ["2.00 s", "2.00 to 2.00", "", ""],
        ["2.00 MB", "2.00 to 2.00", "50 MB", "ok"],
    ]
