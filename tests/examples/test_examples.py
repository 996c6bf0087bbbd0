"""Every example runs and prints the expected lines; the slow tests run it as a program."""

from __future__ import annotations

import hashlib
import json
import os
import re
import runpy
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from hookpoint import Callback
from hookpoint.core.loop.loop import EVERYWHERE

ROOT = Path(__file__).parents[2]
EXAMPLES = sorted((ROOT / "examples").glob("*.py"))
DEFAULTS_SAY = re.compile(r"^epoch \d+/\d+  |takes \d+% of the step")  # the latter depends on the load of the machine

# The arguments that keep an example short, and a line of its output.
SHORT = {
    "curriculum.py": ([], r""),
    "custom_main.py": ([], r"mean distance from the ring: \d\.\d\d after epoch 1, 0\.\d\d after epoch 20"),
    "digits.py": (["--epochs", "2"], r"test accuracy of the best checkpoint after 2 epochs: 9\d\.\d%"),
    "fast.py": (["--steps", "40", "--backend", "eager"], r"compile +\d+ us per step +\d+\.\d\d of eager"),
    "folds.py": ([], r"mean accuracy: 9\d\.\d%"),
    "guard.py": ([], r"json\.dumps returned 11 characters"),
    "own_loop.py": ([], r""),
    "parallel.py": (
        ["--epochs", "2"],
        r"test accuracy of the best checkpoint after 2 epochs, world size 1: 9\d\.\d%",
    ),
    "runner.py": ([], r"test accuracy: 9\d\.\d%"),
    "sklearn_loop.py": (["--epochs", "3"], r"validation error after 3 epochs: \d\d\.\d%"),
    "text.py": (["--epochs", "1"], r"The for statement "),
}

# The same for the quick tests, for examples whose epoch takes seconds.
SHORTER = {"digits.py": (["--epochs", "1"], r"test accuracy of the best checkpoint after 1 epochs: [5-9]\d\.\d%")}


def command(name, *arguments):
    return [sys.executable, "-W", "error", str(ROOT / "examples" / name), *arguments]


@pytest.fixture(autouse=True)
def aside(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")  # tests run in parallel


@pytest.fixture
def here(monkeypatch):
    """Run an example in this process."""
    threads = torch.get_num_threads()
    monkeypatch.syspath_prepend(ROOT / "examples")

    def run(name, *arguments, as_main=True):
        path = str(ROOT / "examples" / name)
        monkeypatch.setattr(sys, "argv", [path, *arguments])
        return runpy.run_path(path, run_name="__main__" if as_main else "example")

    yield run
    torch.set_num_threads(threads)
    for path in EXAMPLES:
        sys.modules.pop(path.stem, None)


def check_output(name, out, err, line):
    said = [line for line in err.splitlines() if not DEFAULTS_SAY.search(line)]
    assert said == []
    assert max(map(len, out.splitlines())) <= 100 or name == "text.py"  # the output of text.py is generated text
    assert re.search(rf"^{line}", out, re.MULTILINE), out


@pytest.mark.parametrize("name", [path.name for path in EXAMPLES])
def test_every_example_runs(name, here, capsys, sample):
    arguments, line = sample(SHORTER.get(name, SHORT[name]), SHORT[name])
    here(name, *arguments)
    check_output(name, *capsys.readouterr(), line)


@pytest.mark.slow
@pytest.mark.parametrize("name", [path.name for path in EXAMPLES])
def test_every_example_runs_as_a_program(name):
    done = subprocess.run(command(name, *SHORT[name][0]), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    check_output(name, done.stdout, done.stderr, SHORT[name][1])


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.name)
def test_every_example_is_short(path):
    assert len(path.read_text().splitlines()) <= 130


def test_the_example_for_the_demo_is_shorter():
    assert len((ROOT / "examples" / "digits.py").read_text().splitlines()) < 120


def weights(workdir):
    """Return digests of the last and the best weights, and the records without times and throughput."""
    folder = Path(workdir) / "checkpoints"
    digests = [
        hashlib.sha256((folder / name / "model.safetensors").read_bytes()).hexdigest()
        for name in ("last", "best-val-error-top1")
    ]
    rows = map(json.loads, (Path(workdir) / "scalars.jsonl").read_text().splitlines())
    timed = ("time", "Throughput")
    return digests, [{name: value for name, value in row.items() if not name.startswith(timed)} for row in rows]


class Gone(BaseException):
    """Raised to simulate the death of the process."""


class Leaves(Callback):
    """Abort in the middle of an epoch, without saving."""

    def on_train_iter_end(self, run):
        if run.step == 50:
            raise Gone


@pytest.mark.slow
def test_digits_aborted_within_an_epoch_ends_with_the_same_weights(here):
    train = here("digits.py", as_main=False)["train"]
    train("whole", epochs=2)
    EVERYWHERE.append(Leaves())
    try:
        with pytest.raises(Gone):
            train("cut", epochs=2)
    finally:
        EVERYWHERE.pop()
    train("cut", epochs=2)
    assert weights("cut") == weights("whole")


@pytest.mark.slow
def test_digits_interrupted_and_killed_ends_with_the_same_weights():
    arguments = ("--epochs", "3")
    subprocess.run(command("digits.py", *arguments, "--workdir", "whole"), capture_output=True, check=True)
    for number, after_records in ((signal.SIGINT, 2), (signal.SIGKILL, 4)):
        with subprocess.Popen(
            command("digits.py", *arguments, "--workdir", "cut"), stdout=subprocess.PIPE, stderr=subprocess.PIPE
        ) as process:
            scalars, until = Path("cut/scalars.jsonl"), time.monotonic() + 90
            while not scalars.exists() or scalars.read_bytes().count(b"\n") < after_records:
                assert process.poll() is None, process.stderr.read()
                assert time.monotonic() < until
                time.sleep(0.02)
            os.kill(process.pid, number)
            process.communicate()
            assert process.returncode in (-number, 1, 130)
    subprocess.run(command("digits.py", *arguments, "--workdir", "cut"), capture_output=True, check=True)
    assert weights("cut") == weights("whole")


@pytest.mark.slow
def test_a_loop_without_torch_is_saved_and_resumed(tmp_path):
    hide = """
import importlib.abc, importlib.util, runpy, sys
find_spec = importlib.util.find_spec
def is_hidden(name):
    return name.partition(".")[0] in ("torch", "safetensors")
class Hide(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if is_hidden(name):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
sys.meta_path.insert(0, Hide())
importlib.util.find_spec = lambda name, package=None: None if is_hidden(name) else find_spec(name, package)
sys.argv = sys.argv[1:]
runpy.run_path(sys.argv[0], run_name="__main__")
"""
    (tmp_path / "hide.py").write_text(hide)
    said = []
    for epochs in ("2", "3"):
        example = [str(ROOT / "examples" / "sklearn_loop.py"), "--epochs", epochs]
        done = subprocess.run([sys.executable, "hide.py", *example], capture_output=True, text=True, check=True)
        said.append(done.stderr)
    assert "Resuming " in said[1]
    assert "epoch 3/3" in said[1]
    assert "epoch 2/3" not in said[1]
