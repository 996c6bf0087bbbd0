from __future__ import annotations

import pickle
import re
import subprocess
import sys
from time import monotonic, sleep

import pytest

from hookpoint import Callback, Every, control
from hookpoint.callbacks import ModelSaver, ProgressBar
from hookpoint.callbacks.progress.progress_bar import Meter
from hookpoint.core.loop.loop import Loop

# Shared by the programs below: `drawn()` waits until the bar shows the progress of the run.
PROGRAM = """
import sys, time
from hookpoint.core.loop.loop import Loop
from hookpoint.callbacks import ProgressBar, ScalarPrinter

bar = ProgressBar(["accuracy"], refresh_seconds=0.01)

class Unsized:
    def __iter__(self):
        return iter(range(3))

def drawn(run):
    while run.progress != (bar._drawing._shown.mode, bar._drawing._shown.done, bar._drawing._shown.total):
        time.sleep(0.001)
"""


def wait_for(capsys, *words):
    """Wait for a line on stderr that contains all words, and return it."""
    written, deadline = "", monotonic() + 60
    while monotonic() < deadline:
        written += capsys.readouterr().err
        for line in written.splitlines():
            if all(word in line for word in words):
                return line
        sleep(0.001)
    raise AssertionError(f"no such line came: {written}")


def test_a_paused_run_is_shown_as_paused(steered, capsys):
    bar = ProgressBar(plain_every_seconds=0.01)
    with steered(callbacks=[bar]) as live:
        control(live.workdir).pause()
        assert re.fullmatch(r"epoch 1/2  \d+ batches  paused", wait_for(capsys, "paused"))
        capsys.readouterr()
        control(live.workdir).resume()
        assert "paused" not in wait_for(capsys, "it/s")


def test_a_run_is_shown_on_a_single_line_that_never_wraps(in_terminal):
    shown = in_terminal(
        PROGRAM
        + """
with Loop([bar, ScalarPrinter()], log_every=2) as run:
    for epoch in run.epochs(2):
        for batch in run.batches(range(8)):
            run.log(loss=1 / (1 + run.iteration), accuracy=batch / 8)
            drawn(run)
        for batch in run.batches(range(4), mode="val"):
            run.log(loss=0.5)
            drawn(run)
    for batch in run.batches(Unsized(), mode="pred"):
        drawn(run)
"""
    )
    assert shown.returncode == 0, shown.written
    assert shown.wrapped == []
    assert max(map(len, shown.frames)) <= 79
    assert shown.lines[0].startswith("epoch 1/2  accuracy: 0.4375  loss: ")
    assert shown.lines[1].startswith("epoch 2/2  accuracy: 0.4375  loss: ")
    assert shown.lines[2].startswith("epoch 2/2  ━━━━━━━━")
    assert " 8/8  " in shown.lines[2]
    assert "it/s" in shown.lines[2]
    assert "loss 0." in shown.lines[2]
    assert shown.lines[3:] == [""]
    assert shown.cursor_is_shown
    for done in range(8):
        assert any(f" {done}/8 " in f"{frame} " for frame in shown.frames)  # the count comes last while no rate is known
    assert any("epoch 1/2 val" in frame and " 3/4 " in frame for frame in shown.frames)
    assert any("epoch 2/2 pred  2 batches" in frame for frame in shown.frames)
    assert not any(" pred " in frame and "loss" in frame for frame in shown.frames)  # the loss is that of training


@pytest.mark.parametrize("columns", [20, 40, 60, 80, 200])
def test_a_terminal_of_any_width_gets_a_single_line(in_terminal, columns):
    shown = in_terminal(
        PROGRAM
        + """
with Loop([bar], log_every=1) as run:
    for epoch in run.epochs(1):
        for batch in run.batches(range(100)):
            run.log(loss=1234.5678, accuracy=0.00012345)
            if batch % 10 == 0:
                drawn(run)
""",
        columns=columns,
    )
    assert len([line for line in shown.lines if line]) == 1
    assert shown.wrapped == []
    assert max(map(len, shown.frames)) < columns


def test_a_separate_validation_is_shown_and_stays_on_the_screen(in_terminal):
    shown = in_terminal(
        PROGRAM
        + """
for attempt in range(2):
    with Loop([bar], run_points=False) as run:
        for batch in run.batches(range(5), mode="val"):
            run.log(loss=0.5)
print("streams are back:", sys.stdout is sys.__stdout__)
"""
    )
    assert [line.split()[0] for line in shown.lines[:2]] == ["val", "val"]
    assert all(" 5/5 " in line for line in shown.lines[:2])
    assert shown.lines[2] == "streams are back: True"


def test_a_failed_separate_validation_restores_the_terminal(in_terminal):
    shown = in_terminal(
        PROGRAM
        + """
try:
    with Loop([bar], run_points=False) as run:
        for batch in run.batches(range(5), mode="val"):
            raise RuntimeError("boom")
except RuntimeError:
    print("streams are back:", sys.stdout is sys.__stdout__)
"""
    )
    assert "streams are back: True" in shown.lines
    assert shown.cursor_is_shown


def test_an_exception_restores_the_terminal_and_the_bar_stays(in_terminal):
    shown = in_terminal(
        PROGRAM
        + """
with Loop([bar]) as run:
    for epoch in run.epochs(3):
        for batch in run.batches(range(8)):
            if epoch == 2 and batch == 5:
                drawn(run)
                raise RuntimeError("boom")
"""
    )
    assert shown.returncode == 1
    assert shown.cursor_is_shown
    assert shown.lines[0].startswith("epoch 2/3  ━━━")
    assert " 5/8 " in shown.lines[0]
    assert shown.lines[1] == "Traceback (most recent call last):"
    assert shown.lines[-2] == "RuntimeError: boom"


def split_at(lines, start):
    """Split the lines before the first line that starts with the text."""
    place = next(number for number, line in enumerate(lines) if line.startswith(start))
    return lines[:place], lines[place:]


@pytest.mark.parametrize("signals", [1, 2])
def test_ctrl_c_restores_the_terminal(in_terminal, signals):
    shown = in_terminal(
        PROGRAM
        + """
with Loop([bar]) as run:
    for epoch in run.epochs(3):
        for batch in run.batches(range(1_000_000)):
            if batch == 5:
                print("ready")
            time.sleep(0.01)
""",
        signals=signals,
    )
    assert shown.returncode == -2
    assert shown.cursor_is_shown
    before, (notice, *after) = split_at(shown.lines, "Ctrl-C: ")
    assert notice == "Ctrl-C: stopping after this step. Press Ctrl-C again to exit now."
    assert before[0] == "ready"
    assert [line[:11] for line in before[1:]] in ([], ["epoch 1/3  "])
    # The second signal may arrive while an iterator is deleted; Python then reports it above the bar.
    bar = next(number for number, line in enumerate(after) if line.startswith("epoch 1/3  "))
    assert bar == 0 or (signals == 2 and after[0].startswith("Exception ignored in"))
    assert after[bar + 1] == "Traceback (most recent call last):"
    assert "KeyboardInterrupt" in shown.lines[-4:]  # a note follows if the second signal met a callback


def test_a_short_run_writes_nothing_to_a_file(capsys):
    with Loop([ProgressBar()]) as run:
        for _ in run.epochs(3):
            for _ in run.batches(range(10)):
                run.log(loss=1.0)
    assert capsys.readouterr() == ("", "")


def test_a_long_run_writes_a_line_from_time_to_time_to_a_file(capsys):
    with Loop([ProgressBar(plain_every_seconds=0.001)], log_every=1) as run:
        for _ in run.epochs(1):
            for batch in run.batches(range(4)):
                run.log(loss=0.25)
                if batch == 2:
                    line = wait_for(capsys, "2/4", "loss")
    assert line.startswith("epoch 1/1  2/4  (50%)  ")
    assert line.endswith("loss 0.25")


def test_the_end_of_a_long_epoch_writes_a_line_to_a_file(capsys):
    class Slow(Callback):
        def on_train_epoch_end(self):
            sleep(0.002)

    with Loop([Slow(), ProgressBar(plain_every_seconds=0.001)]) as run:
        for _ in run.epochs(2):
            for _ in run.batches(range(4)):
                pass
    lines = capsys.readouterr().err.splitlines()
    assert [line.split("  ")[:2] for line in lines if "4/4" in line] == [["epoch 1/2", "4/4"], ["epoch 2/2", "4/4"]]


def test_a_run_resumed_within_an_epoch_is_shown_from_there(disk, capsys):
    class Slow:
        """Slow data."""

        def __len__(self):
            return 10

        def __iter__(self):
            for number in range(10):
                sleep(0.002)
                yield number

    with pytest.raises(ZeroDivisionError), Loop([ModelSaver().when(Every(steps=6))], store=disk) as run:
        for _ in run.epochs(2):
            for batch in run.batches(range(10)):
                1 / (7 - batch)
    bar, first = ProgressBar(plain_every_seconds=0.0001), None
    with Loop([bar], store=disk) as run:
        for _ in run.epochs(1):
            for batch in run.batches(Slow()):
                while batch == 8 and (bar._drawing._shown is None or bar._drawing._shown.done < 8):
                    sleep(0.001)
                first = bar._drawing._meter._samples[0][1] if batch == 8 else first
    assert first >= 6  # a rate that began at 0 would count batches that were skipped
    shown = re.findall(r"epoch 1/1  (\d+)/10", capsys.readouterr().err)
    assert "8" in shown
    assert not {"0", "1", "2", "3", "4", "5"}.intersection(shown)


def test_the_bar_listens_at_no_point_of_a_step():
    hooks = Loop([ProgressBar()]).hooks
    assert hooks.dispatch("on_iter_begin", "on_train_iter_begin", mode="train") is None
    assert hooks.dispatch("on_train_iter_end", "on_iter_end", mode="train") is None


def test_values_come_from_records():
    bar = ProgressBar(["accuracy"])
    with Loop([bar], log_every=2) as run:
        for batch in run.batches([1, 2, 3]):
            run.log(loss=batch, accuracy=batch / 10, other=1)
            if batch == 3:
                run.monitors.drain()
                assert bar._values == {"loss": 1.5, "accuracy": pytest.approx(0.15)}
    assert bar._values == {"loss": 2.0, "accuracy": pytest.approx(0.2)}


def test_a_second_run_starts_without_values(capsys):
    bar = ProgressBar(plain_every_seconds=0.001)
    with Loop([bar]) as run:
        run.log(loss=1.0)
    assert bar._values == {"loss": 1.0}
    with Loop([bar]) as run:
        assert bar._values == {}


def test_only_the_chief_rank_has_a_bar(monkeypatch):
    monkeypatch.setenv("RANK", "1")
    assert Loop([ProgressBar()]).hooks.entries == []


def test_a_display_that_fails_does_not_end_the_run(monkeypatch, caplog):
    monkeypatch.setattr("hookpoint.callbacks.progress.progress_bar.choose_display", lambda *seconds: 1 / 0)
    with Loop([ProgressBar()]) as run:
        for _ in run.epochs(2):
            for _ in run.batches(range(3)):
                pass
    assert run.iteration == 6
    assert "ProgressBar failed at on_train_epoch_begin: ZeroDivisionError" in caplog.text


def test_a_bar_can_be_pickled_after_a_run():
    bar = ProgressBar(["accuracy"])
    with Loop([bar]) as run:
        for _ in run.batches(range(3)):
            pass
    assert pickle.loads(pickle.dumps(bar)).names == ("loss", "accuracy")


@pytest.mark.parametrize("seconds", [0, -1])
def test_an_interval_that_is_not_positive_raises(seconds):
    with pytest.raises(ValueError, match=f"refresh_seconds must be a number > 0, got {seconds}"):
        ProgressBar(refresh_seconds=seconds)
    with pytest.raises(ValueError, match=f"plain_every_seconds must be a number > 0, got {seconds}"):
        ProgressBar(plain_every_seconds=seconds)


def test_output_to_a_file_does_not_need_rich(tmp_path):
    program = """
import sys
from hookpoint.core.loop.loop import Loop
from hookpoint.callbacks import ProgressBar, ScalarPrinter
with Loop([ProgressBar(), ScalarPrinter()]) as run:
    for _ in run.batches(range(3)):
        run.log(loss=1.0)
sys.exit("rich" in sys.modules)
"""
    done = subprocess.run([sys.executable, "-W", "error", "-c", program], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "epoch 1  loss: 1\n")


def test_a_meter_has_no_rate_before_the_first_progress():
    meter = Meter()
    assert meter.add("a", 0, now=10.0) is None
    assert meter.add("a", 0, now=11.0) is None
    assert meter.add("a", 20, now=12.0) == 10.0


def test_the_rate_stays_while_nothing_progresses():
    meter = Meter()
    meter.add("a", 0, now=0.0)
    meter.add("a", 20, now=2.0)
    assert meter.add("a", 20, now=100.0) == 10.0


def test_the_rate_covers_only_the_last_samples():
    meter = Meter()
    for second in range(100):
        meter.add("a", second, now=float(second))
    for second in range(100, 200):
        rate = meter.add("a", 99 + (second - 99) * 5, now=float(second))
    assert rate == 5.0


def test_the_rate_of_another_pass_starts_from_scratch():
    meter = Meter()
    meter.add("a", 0, now=0.0)
    meter.add("a", 20, now=1.0)
    assert meter.add("b", 25, now=2.0) is None


def test_the_rate_of_a_restarted_pass_starts_from_scratch():
    meter = Meter()
    meter.add("a", 0, now=0.0)
    meter.add("a", 20, now=1.0)
    assert meter.add("a", 0, now=2.0) is None
    assert meter.add("a", 3, now=3.0) == 3.0
