"""Benchmarks write figures, versions and the kind of machine, without identifying the machine."""

import json
import platform
from datetime import date
from pathlib import Path
from typing import Any

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture
def report(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    import report

    monkeypatch.setattr(report, "RESULTS", tmp_path / "results")
    return report


def test_the_verdict_compares_the_median_or_the_lower_end_with_the_limit(report: Any) -> None:
    spread = report.Spread(2.0, 1.0, 3.0)
    assert report.Figure("a", "x", spread, 2).verdict == "ok"
    assert report.Figure("a", "x", spread, 1.9).verdict == "over"
    assert report.Figure("a", "x", spread, 1.5, counts="low").verdict == "ok"
    assert report.Figure("a", "x", spread, 0.9, counts="low").verdict == "over"
    assert report.Figure("a", "x", spread).cells() == ["a", "2.00 x", "1.00 to 3.00", "", ""]


def test_the_file_name_has_date_and_python_version_and_the_file_all_facts(report: Any) -> None:
    group = report.Group("a group")
    group.timings = {"one": report.Timing([1.0, 2.0, 3.0])}
    about = {"versions": report.versions("hookpoint", "no-such-package"), "machine": report.machine()}
    path = report.write("bench", "-peers", about, [group], [report.Figure("a", "x", report.Spread(2.0, 1.0, 3.0), 1)])
    today = date.today().isoformat()
    assert path.name == f"bench-{today}-py{platform.python_version()}-peers.json"
    said = json.loads(path.read_text())
    assert said["date"] == today
    assert said["versions"]["python"] == platform.python_version()
    assert said["versions"]["no-such-package"] is None
    assert said["timings_ns"] == {"a group": {"one": {"minimum": 1.0, "median": 2.0, "low": 1.0, "high": 3.0, "rounds": 3}}}
    assert said["figures"] == [
        {"name": "a", "unit": "x", "median": 2.0, "low": 1.0, "high": 3.0, "limit": 1, "verdict": "over"}
    ]


def test_the_machine_is_described_without_its_host_name(report: Any) -> None:
    described = report.machine()
    assert set(described) == {"cpu", "cores", "system"}
    assert described["cpu"]
    assert not platform.node() or platform.node() not in json.dumps(described)
