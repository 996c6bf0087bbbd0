from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from hookpoint import Callback
from hookpoint.core.loop.loop import EVERYWHERE

PROGRAM = [sys.executable, "-m", "hookpoint"]


@pytest.fixture(autouse=True)
def workdir_for_demo(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")  # tests run in parallel
    monkeypatch.delenv("COLUMNS", raising=False)


def demo(*arguments):
    return subprocess.run([*PROGRAM, "demo", *arguments], capture_output=True, text=True, check=False, timeout=250)


@pytest.fixture
def here(command):
    """Run the demo in this process."""
    threads = torch.get_num_threads()
    yield lambda *arguments, **expected: command("demo", *arguments, **expected)
    torch.set_num_threads(threads)


def test_the_demo_finishes_extends_and_restarts_a_run(here):
    first = here("--epochs", "1")
    out = first.stdout.splitlines()
    assert out[0].startswith("test accuracy of the best checkpoint after 1 epochs: ")
    assert out[2].startswith("digits finished: 1 epochs, 38 steps, ")
    assert "  curves       runs/digits/curves.png" in out
    assert "hookpoint board" in first.stderr
    assert any("hookpoint board" in line and "all runs in the browser" in line for line in out)
    assert Path("runs/digits/curves.png").read_bytes().startswith(b"\x89PNG")
    assert "digits was already finished: 1 epochs" in here("--epochs", "1").stdout
    longer = here("--epochs", "2")
    assert "digits finished: 2 epochs, 76 steps" in longer.stdout
    assert "epoch 1/2" not in longer.stderr
    anew = here("--epochs", "1", "--anew")
    assert "digits finished: 1 epochs, 38 steps" in anew.stdout
    assert "The earlier run in runs/digits was moved to runs/digits/previous/001.\n" in anew.stderr
    assert json.loads(Path("runs/digits/previous/001/run.json").read_text())["epochs_done"] == 2


@pytest.mark.slow
def test_the_board_stays_open_until_an_interrupt():
    command = [*PROGRAM, "demo", "--epochs", "1", "--board"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        lines = iter(process.stdout.readline, "")
        address = next(line for line in lines if line.startswith("http://127.0.0.1:"))
        host = address.split("/")[2]
        assert "digits finished: 1 epochs" in next(line for line in lines if "finished" in line)
        for line in iter(process.stderr.readline, ""):
            if "the board is still running" in line:
                break
        with socket.create_connection(("127.0.0.1", int(host.split(":")[1])), timeout=30):
            pass
        process.send_signal(signal.SIGINT)
        process.stderr.read()
        assert process.wait(60) == 0
    with pytest.raises(OSError, match="refused"):
        socket.create_connection(("127.0.0.1", int(host.split(":")[1])), timeout=30)


class Interrupts(Callback):
    def on_train_iter_end(self, run):
        if run.step == 5:
            os.kill(os.getpid(), signal.SIGINT)


def test_an_interrupt_prints_the_command_that_resumes(here):
    EVERYWHERE.append(Interrupts())
    try:
        output = here("--epochs", "5", "--workdir", "here", code=130).stderr
    finally:
        EVERYWHERE.pop()
    assert output.splitlines()[-1].endswith("demo --workdir here --epochs 5 resumes it")


@pytest.mark.slow
def test_the_demo_process_finishes_extends_and_restarts_a_run():
    done = demo("--epochs", "2")
    assert done.returncode == 0, done.stderr
    out = done.stdout.splitlines()
    assert out[0].startswith("test accuracy of the best checkpoint after 2 epochs: ")
    assert out[2].startswith("digits finished: 2 epochs, 76 steps, ")
    assert "  curves       runs/digits/curves.png" in out
    assert any(line.startswith("  best         val-error-top1 0.") for line in out)
    assert "\x1b" not in done.stdout + done.stderr
    for name in ("run.json", "scalars.jsonl", "events.jsonl", "tensorboard", "checkpoints/last", "curves.png"):
        assert Path("runs/digits", name).exists()
    assert Path("runs/digits/curves.png").read_bytes().startswith(b"\x89PNG")

    again = demo("--epochs", "2")
    assert again.returncode == 0
    assert "digits was already finished: 2 epochs, 76 steps" in again.stdout
    assert "demo --epochs 4" in again.stdout
    assert "demo --anew" in again.stdout
    assert again.stdout.splitlines()[0] == out[0]

    longer = demo("--epochs", "3")
    assert "digits finished: 3 epochs, 114 steps" in longer.stdout
    assert "epoch 2/3" not in longer.stderr

    fresh = demo("--epochs", "1", "--anew")
    assert "digits finished: 1 epochs, 38 steps" in fresh.stdout
    assert json.loads(Path("runs/digits/previous/001/run.json").read_text())["epochs_done"] == 3


@pytest.mark.slow
def test_an_interrupted_demo_process_prints_the_command_that_resumes():
    with subprocess.Popen(
        [*PROGRAM, "demo", "--epochs", "5", "--workdir", "here"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        scalars, until = Path("here/scalars.jsonl"), time.monotonic() + 90
        while not scalars.exists() or not scalars.read_bytes():
            assert process.poll() is None, process.stderr.read()
            assert time.monotonic() < until
            time.sleep(0.02)
        os.kill(process.pid, signal.SIGINT)
        _, output = process.communicate(timeout=250)
    assert process.returncode == 130
    assert "Traceback" not in output
    assert output.splitlines()[-1].endswith("demo --workdir here --epochs 5 resumes it")


def test_a_missing_package_is_named():
    hide = "import sys; sys.modules['sklearn'] = None; from hookpoint.cli.main import main; main()"
    done = subprocess.run([sys.executable, "-c", hide, "demo"], capture_output=True, text=True, check=False)
    assert done.returncode == 73
    assert done.stderr == "hookpoint: the demo needs scikit-learn: pip install 'hookpoint[demo]'\n"
    assert not list(Path.cwd().iterdir())
