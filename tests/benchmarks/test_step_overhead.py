"""The step benchmark runs and prints its figures. The measured values are not tested: machines differ."""

import json
import logging
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
ROWS = (
    "bare loop",
    "bare loop again",
    "bare loop that sets .grad = None, as Runner does",
    "Runner, quiet",
    "Runner, ten no-op callbacks",
    "Runner, default callbacks",
    "Runner, default callbacks, long passes",
    "Runner, default callbacks, bar in a terminal",
    "Runner, tensorpack's list, long passes",
    "Runner, default callbacks, notifiers that hang",
    "own loop in a core Loop",
    "own loop in a Loop with defaults",
    "own loop in a Loop with run.log(loss=loss)",
)
EVALUATIONS = (
    "bare validation",
    "bare validation again",
    "Runner.validate, quiet",
    "Runner.validate, default callbacks",
    "own validation with run.log(loss=loss)",
    "bare prediction",
    "bare prediction again",
    "Runner.predict, quiet",
    "Runner.predict, default callbacks",
)
PROMISED = {
    "Runner, quiet": "1.005",
    "Runner, ten no-op callbacks": "1.025",
    "Runner, default callbacks": "1.03",
    "own loop in a Loop with run.log(loss=loss)": "1.04",
    "Runner, default callbacks, long passes": "1.05",
    "Runner, default callbacks, bar in a terminal": "1.05",
    "Runner, tensorpack's list, long passes": "1.1",
    "Runner, default callbacks, notifiers that hang": "1.05",
}


def test_every_row_trains_and_is_printed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: Any) -> None:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    import step_overhead

    job, workdir = step_overhead.job_of(3), str(tmp_path)
    candidates = step_overhead.own(job, workdir) | {
        step_overhead.LONG: lambda: job.under_runner(workdir=workdir),
        step_overhead.TERMINAL: lambda: step_overhead.in_a_terminal(job, workdir),
        step_overhead.LIST: lambda: step_overhead.with_list(job, workdir),
        step_overhead.HANGING: lambda: step_overhead.with_hanging_notifiers(job, workdir),
    }
    with step_overhead.unseen():
        cpu, wall = step_overhead.measure("steps", candidates, rounds=1)
    step_overhead.print_group("steps", cpu, wall)
    said = capsys.readouterr().out
    assert all(re.search(rf"^  {re.escape(row)} +\d", said, re.MULTILINE) for row in ROWS), said
    figures = {figure.name: figure.limit for figure in step_overhead.figures_of(cpu, wall, step_overhead.LIMITS)}
    for name, limit in PROMISED.items():
        assert figures[f"CPU: {name}"] == figures[f"wall: {name}"] == float(limit)


def test_judged_rows_are_written_to_a_file_with_validation_and_prediction(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: Any
) -> None:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    import step_overhead

    monkeypatch.setattr(step_overhead.torch, "set_num_threads", lambda number: None)
    command = ["--judged", "--rounds", "1", "--steps", "3", "--results", str(tmp_path / "results")]
    monkeypatch.setattr(sys, "argv", ["step_overhead.py", *command])
    with restored_level("hookpoint", "lightning", "transformers", "torchtnt", "ignite"):
        step_overhead.main()
    said = capsys.readouterr().out
    judged = [row for row in ROWS if row in ("bare loop", "bare loop again") or (row in PROMISED and "long" not in row)]
    judged = [row for row in judged if row not in (step_overhead.TERMINAL, step_overhead.HANGING)]
    assert all(re.search(rf"^  {re.escape(row)} +\d", said, re.MULTILINE) for row in (*judged, *EVALUATIONS)), said
    (file,) = (tmp_path / "results").glob("step-overhead-*-judged.json")
    written = json.loads(file.read_text())
    assert written["date"] in file.name
    assert written["versions"]["torch"]
    limits = {figure["name"]: figure["limit"] for figure in written["figures"]}
    assert all(limits[f"wall: {row}"] == float(PROMISED[row]) for row in judged if row in PROMISED)
    assert limits["wall: Runner.validate, quiet"] is None


@contextmanager
def restored_level(*names: str) -> Iterator[None]:
    """Restore the levels of loggers, which the benchmark silences."""
    before = {name: logging.getLogger(name).level for name in names}
    try:
        yield
    finally:
        for name, level in before.items():
            logging.getLogger(name).setLevel(level)


@pytest.mark.slow
def test_every_row_and_limit_is_printed_and_nothing_is_written() -> None:
    before = sorted((BENCHMARKS / "results").glob("*"))
    command = [sys.executable, str(BENCHMARKS / "step_overhead.py"), "--quick", "--no-write", "--no-peers"]
    said = subprocess.run(command, capture_output=True, text=True, check=True, timeout=250).stdout
    for row in ROWS:
        columns = r" +\d+\.\d \(\d+\.\d\) +\d\.\d{3} +\d\.\d{3}-\d+\.\d{3} +[+-]\d+\.\d"
        assert re.search(rf"^  {re.escape(row)}({columns}){{2}}$", said, re.MULTILINE), said
    for name, limit in PROMISED.items():
        for clock in ("CPU", "wall"):
            line = rf"^  {clock}: {re.escape(name)} +\d+\.\d+ x +\d+\.\d+ to \d+\.\d+ +{limit} x +(ok|over)$"
            assert re.search(line, said, re.MULTILINE), said
    assert sorted((BENCHMARKS / "results").glob("*")) == before


@pytest.fixture
def steps(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    import steps

    return steps


def test_clocked_measures_from_the_first_to_the_last_batch_request(steps: Any) -> None:
    clocks: list[int] = []
    seen: list[str] = []
    batches = steps.Clocked(["a", "b", "c"], wait=lambda: clocks.append(len(seen)))
    iterator = iter(batches)
    while (batch := next(iterator, None)) is not None:
        seen.append(batch)
    assert seen == ["a", "b", "c"]
    assert clocks == [0, 2]
    assert len(batches) == 3
    assert all(nanoseconds > 0 for nanoseconds in batches.took)


def test_a_peer_that_is_missing_or_fails_is_reported_in_one_line(steps: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    import peers

    def missing(job: Any) -> Any:
        import no_such_trainer

        return no_such_trainer

    def fails(job: Any) -> Any:
        def train() -> Any:
            raise RuntimeError("no\n  such luck")

        return train

    works = {"good": lambda: (1, 1)}
    monkeypatch.setattr(peers, "PEERS", {"a": missing, "b": fails, "good": lambda job: works["good"]})
    said = peers.tried(None)
    assert said == (works, {"a": "not installed: no_such_trainer", "b": "RuntimeError: no such luck"})
