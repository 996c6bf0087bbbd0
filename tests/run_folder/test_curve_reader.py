"""Curves equal those that numpy computes from the whole file, whatever happens to the file between two reads."""

from __future__ import annotations

import json
import math
import os

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hookpoint.run_folder import curve_reader, curve_view
from hookpoint.run_folder.curve_index import load_index, save_index
from hookpoint.run_folder.curve_reader import CurveReader
from hookpoint.run_folder.curve_view import preview_of, thinned, view_of, views_of

TEXTS = {"nan": math.nan, "inf": math.inf, "-inf": -math.inf}


def line(step, at="step", time=0.0, **values):
    return json.dumps({"step": step, "iteration": step, "epoch": 1, "time": time, "at": at, **values}).encode() + b"\n"


def truth(path):
    """Return (steps, values) of each curve: every line of the file, parsed one by one."""
    found = {}
    for text in path.read_bytes().split(b"\n")[:-1]:
        try:
            row = json.loads(text)
            step, at = row["step"], row["at"]
        except (ValueError, KeyError, TypeError, RecursionError):
            continue
        for name, value in row.items():
            if name not in ("step", "iteration", "epoch", "time", "at"):
                steps, values = found.setdefault((name, at), ([], []))
                steps.append(step)
                values.append(TEXTS[value] if isinstance(value, str) else float(value))
    return {key: (np.array(steps), np.array(values)) for key, (steps, values) in found.items()}


def assert_exact(buckets, values):
    finite = values[np.isfinite(values)]
    assert sum(bucket.size for bucket in buckets) == len(values)
    assert sum(bucket.finite for bucket in buckets) == len(finite)
    if len(finite):
        assert np.nanmin([bucket.low for bucket in buckets]) == finite.min()
        assert np.nanmax([bucket.high for bucket in buckets]) == finite.max()
        mean = sum(bucket.mean * (bucket.finite / len(finite)) for bucket in buckets if bucket.finite)
        assert mean == pytest.approx((finite / len(finite)).sum(), rel=1e-9, abs=1e-9 * np.abs(finite).max())


def assert_same(reader, path):
    curves = truth(path)
    assert set(reader.curves) == set(curves)
    for key, (steps, values) in curves.items():
        series = reader.curves[key]
        assert series.count == len(values)
        assert_exact(list(series.buckets()), values)
        assert_exact(view_of(reader, key, pixels=7).buckets, values)
        low, high = sorted((int(steps[len(steps) // 3]), int(steps[-1])))
        view = view_of(reader, key, low=low, high=high, pixels=50)
        assert view.exact
        assert_exact(view.buckets, values[(steps >= low) & (steps <= high)])


numbers = st.one_of(
    st.floats(-10, 10).map(lambda value: round(value, 3)),
    st.sampled_from(["nan", "inf", "-inf", 1e308, -1e308, 1e301, 5e-324, 0, 3, True]),
)
rows = st.tuples(st.integers(1, 4), st.sampled_from(["step", "epoch"]), st.dictionaries(st.sampled_from("abc"), numbers))
actions = st.one_of(
    st.tuples(st.just("write"), st.lists(rows, min_size=1, max_size=30)),
    st.tuples(st.just("many"), st.integers(50, 200)),
    st.tuples(st.just("torn"), st.integers(1, 30)),
    st.tuples(
        st.just("garbage"),
        st.sampled_from([b"no json\n", b"\n", b"[1]\n", b'{"a": 1}\n', b"\xff\n", b"\x00\n", b"[" * 3000 + b"\n"]),
    ),
    st.tuples(st.just("cut"), st.floats(0, 1)),
    st.tuples(st.just("cut and write"), st.floats(0, 1)),
    st.tuples(st.just("other steps"), st.integers(0, 50)),
    st.tuples(st.just("replace"), st.booleans()),
    st.tuples(st.just("index"), st.none()),
)


class Writer:
    """Writers in turn: each continues the file after the last complete line, as JSONWriter does."""

    def __init__(self, path):
        self.path, self.step, self.time = path, 0, 0.0
        path.write_bytes(b"")

    def lines(self, rows):
        for skipped, at, values in rows:
            self.step, self.time = self.step + skipped, self.time + 0.25
            yield line(self.step, at, self.time, **values)

    def append(self, data):
        whole = self.path.read_bytes()
        self.path.write_bytes(whole[: whole.rfind(b"\n") + 1] + data)

    def cut(self, fraction):
        ends = [0, *(place + 1 for place, byte in enumerate(self.path.read_bytes()) if byte == 10)]
        os.truncate(self.path, ends[int(fraction * (len(ends) - 1))])

    def do(self, what, value):
        if what == "write":
            self.append(b"".join(self.lines(value)))
        elif what == "many":
            self.append(b"".join(self.lines((1, "step", {"a": math.sin(step), "b": step}) for step in range(value))))
        elif what == "torn":
            with self.path.open("ab") as file:
                file.write(line(self.step + 1, a=1.0)[:value])
        elif what == "garbage":
            self.append(value)
        elif what.startswith("cut"):
            self.cut(value)
            if what != "cut":
                self.append(b"".join(self.lines([(1, "step", {"a": 0.5})] * 20)))
        elif what == "other steps":
            self.step = value
        elif what == "replace":
            data = self.path.read_bytes() if value else line(1, a=7.0, time=self.time + 9)
            new = self.path.with_suffix(".new")
            new.write_bytes(data)
            os.replace(new, self.path)


@settings(deadline=None)
@given(actions=st.lists(actions, max_size=8))
def test_curves_equal_those_of_numpy_after_any_change_of_the_file(tmp_path_factory, actions):
    folder = tmp_path_factory.mktemp("curves")
    path = folder / "scalars.jsonl"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(curve_reader, "ANCHOR_BYTES", 500)
        patch.setattr("hookpoint.run_folder._plain_file.PIECE_BYTES", 700)
        writer, reader = Writer(path), CurveReader(path, buckets=16)
        for what, value in actions:
            writer.do(what, value)
            if what == "index":
                save_index(reader, folder / "index")
                reader = CurveReader(path, buckets=16)
                assert load_index(reader, folder / "index")
            while reader.read(0):
                pass
            assert_same(reader, path)


def test_only_appended_lines_are_read(tmp_path, monkeypatch):
    path = tmp_path / "scalars.jsonl"
    path.write_bytes(b"".join(line(step, a=1.0) for step in range(5_000)))
    reader = CurveReader(path)
    assert not reader.read()
    with path.open("ab") as file:
        file.write(line(5_000, a=9.0))
    monkeypatch.setattr(curve_reader, "tables_of", lambda lines, real=curve_reader.tables_of: real(seen.extend(lines) or lines))
    seen = []
    reader.read()
    assert seen == [line(5_000, a=9.0)[:-1]]
    assert reader.curves["a", "step"].values[-1] == 9.0


def test_after_a_truncation_only_the_end_is_read_again(tmp_path, monkeypatch):
    monkeypatch.setattr(curve_reader, "ANCHOR_BYTES", 2_000)
    monkeypatch.setattr("hookpoint.run_folder._plain_file.PIECE_BYTES", 1_000)
    path = tmp_path / "scalars.jsonl"
    path.write_bytes(b"".join(line(step, a=float(step), time=float(step)) for step in range(5_000)))
    reader = CurveReader(path)
    reader.read()
    os.truncate(path, path.read_bytes().index(b'{"step": 4500'))
    monkeypatch.setattr(curve_reader, "tables_of", lambda lines, real=curve_reader.tables_of: real(seen.extend(lines) or lines))
    seen = []
    reader.read()
    assert reader.curves["a", "step"].count == 4_500
    assert 0 < len(seen) < 1_000
    assert_same(reader, path)


def test_memory_is_bounded(tmp_path):
    path = tmp_path / "scalars.jsonl"
    path.write_bytes(b"".join(line(step, a=math.sin(step), b=1.0) for step in range(9_000)))
    reader = CurveReader(path, buckets=64)
    reader.read()
    assert reader.points < 2 * 64 * (5 + 2)
    assert_same(reader, path)


def test_a_missing_file_raises_and_is_read_once_it_exists(tmp_path):
    path = tmp_path / "scalars.jsonl"
    reader = CurveReader(path)
    with pytest.raises(FileNotFoundError):
        reader.read()
    path.write_bytes(line(1, a=1.0))
    reader.read()
    path.unlink()
    with pytest.raises(FileNotFoundError):
        reader.read()
    path.write_bytes(line(3, a=5.0, time=3.0))
    reader.read()
    assert reader.curves["a", "step"].steps.tolist() == [3]


def test_a_wide_range_of_steps_is_exact_and_reads_only_its_ends(tmp_path, monkeypatch):
    path = tmp_path / "scalars.jsonl"
    path.write_bytes(b"".join(line(step, a=float(step % 977)) for step in range(6_000)))
    reader = CurveReader(path, buckets=64)
    reader.read()
    monkeypatch.setattr("hookpoint.run_folder.curve_view.MAX_BYTES", 200_000)
    view = view_of(reader, ("a", "step"), low=1_001, high=4_999)
    steps, values = truth(path)["a", "step"]
    assert view.exact
    assert_exact(view.buckets, values[(steps >= 1_001) & (steps <= 4_999)])
    monkeypatch.setattr("hookpoint.run_folder.curve_view.MAX_BYTES", 10)
    assert not view_of(reader, ("a", "step"), low=1_001, high=4_999).exact


def test_a_range_is_read_once_for_all_curves(tmp_path, monkeypatch):
    path = tmp_path / "scalars.jsonl"
    path.write_bytes(b"".join(line(step, a=float(step % 977), **({"b": step} if step % 3 else {})) for step in range(6_000)))
    reader = CurveReader(path, buckets=64)
    reader.read()
    alone = {key: view_of(reader, key, low=2_001, high=2_999, pixels=100) for key in reader.curves}
    seen = []
    monkeypatch.setattr(curve_view, "tables_of", lambda lines, real=curve_view.tables_of: real(seen.extend(lines) or lines))
    views = views_of(reader, reader.curves, low=2_001, high=2_999, pixels=100)
    assert views == alone
    assert 999 <= len(seen) == len(set(seen)) < 2_000
    for key, (steps, values) in truth(path).items():
        assert views[key].exact
        assert_exact(views[key].buckets, values[(steps >= 2_001) & (steps <= 2_999)])
    path.unlink()
    assert not any(view.exact for view in views_of(reader, reader.curves, low=2_001, high=2_999).values())


def test_thinning_keeps_spikes_and_gaps(tmp_path):
    path = tmp_path / "scalars.jsonl"
    steps = [*range(1_000), *range(9_000, 10_000)]
    path.write_bytes(b"".join(line(step, a=99.0 if step == 9_500 else 0.5) for step in steps))
    reader = CurveReader(path)
    reader.read()
    buckets = thinned(list(reader.curves["a", "step"].buckets()), 20)
    assert len(buckets) <= 20
    assert [bucket.high for bucket in buckets if bucket.first_step <= 9_500 <= bucket.last_step] == [99.0]
    assert not any(bucket.first_step < 1_000 and bucket.last_step > 9_000 for bucket in buckets)


def test_a_preview_reads_only_a_few_places(tmp_path):
    path = tmp_path / "scalars.jsonl"
    path.write_bytes(b"".join(line(step, a=float(step), **({"b": "nan"} if step == 0 else {})) for step in range(20_000)))
    found = preview_of(path, places=10, place_bytes=1_000).curves
    assert len(found["a", "step"]) == 10
    assert found["a", "step"][0].first_step == 0
    assert found["a", "step"][-1].last_step == 19_999
    assert sum(bucket.size for bucket in found["a", "step"]) < 200
    assert math.isnan(found["b", "step"][0].low)
    path.write_bytes(line(1, a=2.0))
    assert [bucket.high for bucket in preview_of(path).curves["a", "step"]] == [2.0]


@pytest.mark.parametrize("place", [0, 20, -1, -5, None])
def test_a_damaged_index_is_ignored(tmp_path, place):
    path, index = tmp_path / "scalars.jsonl", tmp_path / "index"
    path.write_bytes(line(1, a=1.0))
    reader = CurveReader(path)
    reader.read()
    save_index(reader, index)
    data = bytearray(index.read_bytes())
    if place is None:
        data = data[: len(data) // 2]
    else:
        data[place] ^= 1
    index.write_bytes(data)
    fresh = CurveReader(path)
    assert not load_index(fresh, index)
    fresh.read()
    assert_same(fresh, path)
    assert not load_index(fresh, tmp_path / "none")
