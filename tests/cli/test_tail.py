"""`hookpoint tail` prints the last records, then new ones, until the run ends."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from contextlib import contextmanager


def row(step, time=None, **values):
    return json.dumps({"step": step, "epoch": 1, "time": float(step if time is None else time), "at": "step", **values}) + "\n"


def test_the_last_records_are_printed(command, train_run):
    train_run(epochs=2)
    result = command("tail", "mine", "-n", "3")
    lines = result.stdout.splitlines()
    assert len(lines) == 3
    assert lines[0].endswith("epoch 2  step 8  mean   val_loss 1.5")
    assert "epoch 2  step 8  event  best val_loss so far: 1.5 (before: 3)" in lines[1]
    assert "epoch 2  step 8  event  saved step-00000008 (model, best-val_loss)" in lines[2]
    assert result.stderr.startswith("-- finished at epoch 2, step 8 after ")


def test_no_follow_prints_only_existing_records(command, train_run):
    train_run()
    result = command("tail", "mine", "--no-follow", "-n", "1")
    assert (len(result.stdout.splitlines()), result.stderr) == (1, "")
    assert command("tail", "mine", "--no-follow", "-n", "0").stdout == ""


def test_lines_keep_their_order_if_the_clock_is_set_back(command, train_run, tmp_path):
    train_run()
    scalars = tmp_path / "runs" / "mine" / "scalars.jsonl"
    scalars.write_text("".join(row(step, time=100.0 - step, loss=step) for step in range(1, 5)))
    shown = command("tail", "mine", "--no-follow", "-n", "100").stdout
    assert [line.split("step ")[1][0] for line in shown.splitlines() if "loss" in line and "event" not in line] == list("1234")


def test_json_output(command, train_run):
    train_run()
    rows = [json.loads(line) for line in command("tail", "mine", "--json", "-n", "100").stdout.splitlines()]
    assert rows[0] | {"time": 0} == {"step": 2, "iteration": 2, "epoch": 1, "time": 0, "at": "step", "loss": 1.5}
    assert rows[-1]["event"] == "save"
    assert "at" not in rows[-1]


def test_markup_and_control_characters_in_names_are_plain_text(command, train_run):
    train_run(callbacks=[], values={"\x1b[2J[red]": 1.0})
    shown = command("tail", "mine").stdout
    assert "\x1b" not in shown
    assert "?[2J[red] 1" in shown


@contextmanager
def following(tmp_path, *options):
    command = [sys.executable, "-m", "hookpoint", "tail", "live", "--every", "0.05", *options]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, cwd=tmp_path, stdout=pipe, stderr=pipe, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


def test_new_records_are_printed_until_the_run_ends(tmp_path, training):
    with training() as live:
        live.epoch()
        with following(tmp_path, "-n", "1000") as tail:
            assert "epoch 1  step 1         loss 1" in tail.stdout.readline()
            live.epoch()
            while "epoch 3  step 6         loss 1\n" not in tail.stdout.readline():
                pass
            live.end()
            rest, output = tail.communicate(timeout=250)
            assert "saved step-00000006" in rest
            assert output.startswith("-- stopped at epoch 3, step 6 after ")
            assert tail.returncode == 0


def test_tail_ends_when_the_run_is_killed(tmp_path, training):
    with training() as live:
        live.epoch()
        with following(tmp_path) as tail:
            assert tail.stdout.readline()
            live.process.kill()
            _, output = tail.communicate(timeout=250)
            assert output.startswith("-- killed at epoch ")
            assert tail.returncode == 0


def test_ctrl_c_ends_tail_cleanly(tmp_path, training):
    with training() as live:
        live.epoch()
        with following(tmp_path) as tail:
            assert tail.stdout.readline()
            tail.send_signal(signal.SIGINT)
            _, output = tail.communicate(timeout=250)
            assert tail.returncode == 130
            assert output.strip() == ""
