"""Commands read little of the files of a long run, in bounded memory."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tracemalloc
from pathlib import Path

import pytest

MEGABYTE = 2**20

counts_bytes = pytest.mark.skipif(not Path("/proc/self/io").exists(), reason="the system does not count bytes")


def bytes_read():
    return int(Path("/proc/self/io").read_text().split("rchar: ")[1].split()[0])


def row(step, at="step", **values):
    clocks = {"step": step, "iteration": step, "epoch": 1 + step // 1000, "time": 1.7e9 + step, "at": at}
    return json.dumps({**clocks, **values}) + "\n"


def write(folder, lines):
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "scalars.jsonl").write_text("".join(lines))
    return folder


@pytest.fixture
def an_eighth(monkeypatch):
    """Divide the read sizes by eight, so that files of a few megabytes count as long."""
    monkeypatch.setattr("hookpoint.run_folder._plain_file.NEWEST_BYTES", MEGABYTE)
    monkeypatch.setattr("hookpoint.run_folder.best_value.NEWEST_BYTES", MEGABYTE)
    monkeypatch.setattr("hookpoint.run_folder._plain_file.PIECE_BYTES", MEGABYTE // 8)


@pytest.fixture
def long_run(tmp_path, an_eighth):
    """A run of 6 MB, without a run.json."""
    block = [row(step, loss=0.25) for step in range(10_000)]
    end = [row(90_000 + step, loss=2.0 - step / 100) for step in range(100)]
    return write(tmp_path / "runs" / "mine", [row(0, loss=0.125), *block * 6, *end])


@counts_bytes
@pytest.mark.parametrize("arguments", [("show", "mine"), ("show", "mine", "--json"), ("runs",)])
def test_show_and_runs_read_only_the_end_of_a_file(command, long_run, arguments):
    size = (long_run / "scalars.jsonl").stat().st_size
    command("runs", "--help")
    before = bytes_read()
    output = command(*arguments).stdout
    assert bytes_read() - before < 2.5 * MEGABYTE < size / 2
    assert "loss" in output


def test_a_best_value_of_the_newest_records_is_labeled(command, long_run):
    output = command("show", "mine").stdout
    assert re.search(r"loss +0.25 +step \d+ +the minimum of the newest records", output), output
    assert "loss 0.25 (newest)" in command("runs").stdout
    assert json.loads(command("show", "mine", "--json").stdout)["best"]["loss"]["source"] == "newest"


@counts_bytes
def test_lines_with_thousands_of_metrics_are_read_from_the_end(command, tmp_path, an_eighth):
    wide = row(1, **{f"layer{number}/norm": 1.0 for number in range(2_000)})
    folder = write(tmp_path / "runs" / "wide", [wide] * 125)
    before = bytes_read()
    assert "layer1999/norm" in command("show", "wide").stdout
    assert bytes_read() - before < 2.5 * MEGABYTE < (folder / "scalars.jsonl").stat().st_size / 2


@counts_bytes
def test_a_file_without_a_newline_is_not_read_completely(command, tmp_path):
    folder = write(tmp_path / "runs" / "torn", [row(1, loss=1.0)])
    with open(folder / "scalars.jsonl", "a") as file:
        file.write("x" * 60 * MEGABYTE)
    before = bytes_read()
    command("show", "torn")
    assert bytes_read() - before < 50 * MEGABYTE


RESUMES = """
import json, sys
from pathlib import Path
import hookpoint
from hookpoint import callbacks as cb

folder, row, torn = Path(sys.argv[1]), *map(str.encode, sys.argv[2:])
path = folder / "scalars.jsonl"

def train(epochs, *, has_long_file=False):
    options = {"extra_callbacks": [], "monitors": [cb.JSONWriter()], "workdir": folder, "log_every": 0}
    with hookpoint.Loop([cb.ModelSaver()], **options) as run:
        for _ in run.epochs(epochs):
            for batch in run.batches([1.0, 2.0]):
                run.log(loss=batch)
                if has_long_file and run.iteration == 1:
                    append(row * 100_000)

def append(lines):
    with path.open("ab") as file:
        file.write(lines)

def bytes_read():
    return int(Path("/proc/self/io").read_text().split("rchar: ")[1].split()[0])

train(1, has_long_file=True)
train(2)  # which imports what a resume needs
append(torn)
before = bytes_read()
train(3)
print(bytes_read() - before)
"""


@counts_bytes
def test_a_resume_cuts_a_torn_line_without_reading_the_file(tmp_path):
    path = tmp_path / "scalars.jsonl"
    torn = row(5_000, loss=1.0) + row(5_001, loss=1.0)[:30]
    # In a separate process and folder: the system counts the reads of all threads, and a run reads the code around it.
    command = [sys.executable, "-c", RESUMES, str(tmp_path), row(1, loss=1.0), torn]
    done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=tmp_path)
    assert int(done.stdout.split()[-1]) < 2 * MEGABYTE < path.stat().st_size / 4
    steps = [json.loads(line)["step"] for line in path.read_text().splitlines()]
    assert (steps[0], len(steps), steps[-2:]) == (1, 100_003, [4, 6])


def traced_peak(action):
    tracemalloc.start()
    try:
        action()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("options", [pytest.param((), marks=pytest.mark.slow), ("--smooth", "0.9", "--x", "epoch")])
def test_the_memory_of_a_plot_does_not_grow_with_the_file(command, tmp_path, monkeypatch, options):
    monkeypatch.setattr("hookpoint.run_folder._plain_file.PIECE_BYTES", 2**16)  # so that growth shows in short files
    lines = [row(step, loss=1.0 + step % 7) for step in range(40_000)]
    write(tmp_path / "runs" / "short", lines[:20_000])
    write(tmp_path / "runs" / "long", lines)
    command("plot", "short", "--terminal", *options)
    short, long = (traced_peak(lambda name=name: command("plot", name, "--terminal", *options)) for name in ("short", "long"))
    assert long - short < 0.25 * MEGABYTE, (short, long)  # the values alone would take 0.6 MB more


@pytest.mark.parametrize("smooth", [(), ("--smooth", "0.5")])
def test_a_plot_of_a_long_file_keeps_spikes(command, tmp_path, smooth):
    spike = {12_345: 77.0, 23_456: -55.0}
    write(tmp_path / "runs" / "mine", [row(step, loss=spike.get(step, 0.5)) for step in range(30_000)])
    output = command("plot", "mine", "--terminal", "--width", "80", *smooth).stdout
    assert "-55" in output
    assert "23,456" in output or "23456" in output, output


def test_bad_lines_are_counted_and_the_first_five_named(command, tmp_path):
    write(tmp_path / "runs" / "mine", [row(1, loss=1.0), *["no json\n"] * 3_000])
    for arguments in (["plot", "mine", "--terminal"], ["export", "mine", "-o", "-"]):
        assert "lines 2, 3, 4, 5, 6 and 2995 more are not JSON records" in command(*arguments, code=65).stderr
