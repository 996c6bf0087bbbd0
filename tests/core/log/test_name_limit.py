"""A run can log at most 10,000 metrics; further names are dropped with one warning, and the run continues."""

from __future__ import annotations

import json
import logging
import tracemalloc

import pytest

import hookpoint
from hookpoint import callbacks as cb
from hookpoint.core.errors import BadValue
from hookpoint.core.log._name_limit import MAX_NAMES, NameLimit


@pytest.fixture
def few(monkeypatch):
    """Limit a run to ten metrics."""
    monkeypatch.setattr(NameLimit.__init__, "__defaults__", (10,))


def loop(**options):
    return hookpoint.Loop(options.pop("callbacks", []), extra_callbacks=[], **{"monitors": [], "log_every": 1, **options})


def warnings_of(caplog):
    return [record.getMessage() for record in caplog.records if "is not recorded" in record.getMessage()]


def test_a_run_records_at_most_ten_thousand_names(caplog, tmp_path):
    with loop(monitors=[cb.JSONWriter()], workdir=tmp_path) as run:
        for _ in run.epochs(1):
            for _ in run.batches([1.0]):
                run.log({f"m{number}": 1.0 for number in range(MAX_NAMES + 500)})
        assert len(run.metrics) == MAX_NAMES
        assert f"m{MAX_NAMES - 1}" in run.metrics
        assert f"m{MAX_NAMES}" not in run.metrics
    rows = [json.loads(line) for line in (tmp_path / "scalars.jsonl").read_text().splitlines()]
    assert {len([name for name in row if name.startswith("m")]) for row in rows} == {MAX_NAMES}
    (warning,) = warnings_of(caplog)
    assert warning == (
        "run.log: 'm10000' is not recorded: the limit is 10000 metrics. No other new name is recorded either. Existing "
        "metrics are recorded as before. Use one name per quantity, not per step or sample; for many values under one name, "
        "use run.put_histogram"
    )


def test_known_names_are_still_recorded_at_the_limit(few, caplog):
    with loop() as run:
        run.log(between=1.0)
        for epoch in run.epochs(3):
            for batch in run.batches([1.0, 2.0]):
                run.log(loss=batch * epoch)
                run.log({f"step{run.iteration}/{number}": 1.0 for number in range(6)})
                run.put_scalar("put", epoch)
            for batch in run.batches([1.0], mode="val"):
                run.log(loss=batch)
                run.put_scalar(f"put{epoch}", 1.0)
        run.log(between=2.0, late=1.0)
        assert (run.metrics["loss"], run.metrics["between"], run.metrics["put"]) == (4.5, 2.0, 3.0)
        assert "late" not in run.metrics
        assert len(run.metrics) == 10
    assert len(warnings_of(caplog)) == 1


@pytest.mark.parametrize("way", ["log", "put_scalar"])
@pytest.mark.parametrize("where", ["train", "val", "between"])
def test_the_limit_applies_to_log_and_put_scalar_in_every_mode(few, caplog, way, where, tmp_path):
    with loop(monitors=[cb.JSONWriter()], workdir=tmp_path) as run:
        for _ in run.epochs(1):
            for _ in run.batches([1.0], mode=where) if where != "between" else [0]:
                for number in range(50):
                    getattr(run, way)(f"m{number}", 1.0)
        assert len(run.metrics) == 10
    rows = [json.loads(line) for line in (tmp_path / "scalars.jsonl").read_text().splitlines()]
    assert len({name for row in rows for name in row if name.lstrip("val_").startswith("m")}) == 10
    assert len(warnings_of(caplog)) == 1


def test_names_in_the_checkpoint_are_known_after_a_resume(few, caplog, tmp_path):
    def train(epochs, names):
        with loop(callbacks=[cb.ModelSaver()], workdir=tmp_path) as run:
            for _ in run.epochs(epochs):
                for _ in run.batches([1.0, 2.0]):
                    run.log(dict.fromkeys(names, 1.0))
            return sorted(run.metrics)

    first = [f"a{number}" for number in range(8)]
    assert train(1, first) == first
    assert train(2, [*first, "b", "c", "d"]) == [*first, "b", "c"]
    assert len(warnings_of(caplog)) == 1


def test_names_beyond_the_limit_do_not_accumulate_memory(few, caplog):
    def peak(count):
        with loop() as run:
            for _ in run.epochs(1):
                for number in run.batches(range(count)):
                    run.log(f"m{number}", 1.0)
                    if number == 200:
                        tracemalloc.start()
                try:
                    return tracemalloc.get_traced_memory()[0]
                finally:
                    tracemalloc.stop()

    with caplog.at_level(logging.ERROR):
        assert peak(3_000) - peak(400) < 20_000  # a name takes about 500 bytes


@pytest.mark.parametrize("mode", ["train", "val"])
def test_a_name_must_be_a_string(mode):
    with (
        pytest.raises(BadValue, match="the name of a logged value must be a string, got 5"),
        hookpoint.Loop(monitors=[]) as run,
    ):
        for _ in run.batches("a", mode=mode):
            run.log({5: 1.0})
