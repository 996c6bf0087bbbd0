"""The start benchmark runs and returns its figures. The measured values are not tested: machines differ."""

from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


def test_a_program_is_measured_and_each_limit_has_a_figure(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    import start

    wall, cpu, modules = start.measure(1, {start.IMPORT_LOOP: start.PROGRAMS[start.IMPORT_LOOP]})
    assert wall[start.IMPORT_LOOP].minimum > 0
    assert modules[start.IMPORT_LOOP] > 1
    for group, milliseconds in ((wall, 70), (cpu, 50)):
        for name in start.PROGRAMS:
            group.timings[name] = start.Timing([milliseconds * 1e6])
    assert [(figure.name.split(",")[0], figure.value.median, figure.verdict) for figure in start.figures_of(wall, cpu)] == [
        ("wall: from hookpoint import Loop", 70, "over"),
        ("wall: from hookpoint import Runner", 70, "ok"),
        ("wall: the first fit of one batch", 0, "ok"),
        ("CPU: from hookpoint import Loop", 50, "ok"),
        ("CPU: from hookpoint import Runner", 50, "ok"),
        ("CPU: the first fit of one batch", 0, "ok"),
    ]


def test_a_failing_program_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    import start

    with pytest.raises(RuntimeError, match=r"raise OSError\(28\) failed:"):
        start.started("", "raise OSError(28)")


@pytest.mark.slow
def test_every_program_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    import start

    wall, cpu, _ = start.measure(1, start.PROGRAMS)
    assert len(start.figures_of(wall, cpu)) == 6
