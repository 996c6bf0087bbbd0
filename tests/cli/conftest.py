"""Runs to look at, made by really training, and the command to look with."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
import time
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
from click.testing import CliRunner

from hookpoint import Loop
from hookpoint import callbacks as cb
from hookpoint.cli.main import main


@pytest.fixture
def command(tmp_path, monkeypatch):
    """Run the command in a folder of its own, in this process."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("NO_COLOR", raising=False)

    def run(*arguments, code=0, input=None):
        result = CliRunner().invoke(main, [str(one) for one in arguments], input=input)
        assert result.exception is None or isinstance(result.exception, SystemExit), result.exc_info
        assert result.exit_code == code, (result.exit_code, result.stdout, result.stderr)
        return result

    return run


@pytest.fixture
def train(tmp_path):
    """Train a little, in tmp_path/runs."""

    def run(name="mine", *, epochs=2, callbacks=None, monitors=None, values=None, **options):
        workdir = tmp_path / "runs" / name
        callbacks = [cb.ModelSaver(), cb.MinSaver("val_loss")] if callbacks is None else callbacks
        monitors = [cb.JSONWriter()] if monitors is None else monitors
        options = {"log_every": 2, "config": {"depth": 3, "net": {"width": 8}, "api_key": "abc"}, "name": name, **options}
        with Loop(callbacks, workdir=workdir, extra_callbacks=[], monitors=monitors, **options) as run:
            for epoch in run.epochs(epochs):
                for batch in run.batches([1.0, 2.0, 3.0, 4.0]):
                    run.log(loss=batch / epoch, **(values or {}))
                for batch in run.batches([3.0], mode="val"):
                    run.log(loss=batch / epoch)
        return workdir

    return run


@dataclass
class Training:
    """A process that trains, an epoch for each line it gets."""

    process: subprocess.Popen
    workdir: Path

    def epoch(self):
        self.process.stdin.write("go\n")
        self.process.stdin.flush()
        assert self.process.stdout.readline() == "trained\n"

    def end(self):
        self.process.stdin.close()
        self.process.wait(timeout=60)


SCRIPT = """
    import sys
    from hookpoint import Loop
    from hookpoint import callbacks as cb

    with Loop([cb.ModelSaver()], workdir=sys.argv[1], extra_callbacks=[], monitors=[cb.JSONWriter()], log_every=1) as run:
        print("training", flush=True)
        for epoch in run.epochs(100):
            for batch in run.batches([1.0, 3.0]):
                run.log(loss=batch / epoch)
            if not sys.stdin.readline():
                break
            print("trained", flush=True)
"""


@pytest.fixture
def training(tmp_path):
    """Train in a process of its own, in tmp_path/runs, until it is ended or killed."""

    @contextmanager
    def start(name="live"):
        workdir = tmp_path / "runs" / name
        arguments = [sys.executable, "-c", textwrap.dedent(SCRIPT), str(workdir)]
        pipe = subprocess.PIPE
        with subprocess.Popen(arguments, stdin=pipe, stdout=pipe, stderr=subprocess.DEVNULL, text=True) as process:
            try:
                assert process.stdout.readline() == "training\n"
                yield Training(process, workdir)
            finally:
                process.kill()

    return start


@pytest.fixture
def until():
    """Wait for something to become true."""

    def wait(is_true, seconds=30):
        end = time.monotonic() + seconds
        while not is_true():
            assert time.monotonic() < end, "it never came"
            time.sleep(0.02)

    return wait


@pytest.fixture
def process(tmp_path):
    """Run the command as a process of its own; return what came of it."""

    def run(*arguments, cwd=tmp_path, environment=None, **options):
        done = subprocess.run(
            [sys.executable, "-W", "error", "-m", "hookpoint", *map(str, arguments)],
            cwd=cwd,
            env={**os.environ, **(environment or {})},
            capture_output=True,
            timeout=60,
            check=False,
            **options,
        )
        return done

    return run
