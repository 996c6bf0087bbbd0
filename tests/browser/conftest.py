"""Chromium, the board as a process of its own, and a training that takes commands. `make test-board` runs these tests."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import textwrap
from contextlib import contextmanager, suppress
from urllib.parse import urlsplit

import pytest

CHROMIUM = os.environ.get("CHROMIUM") or shutil.which("chromium") or shutil.which("google-chrome")
ARGUMENTS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--no-first-run",
    "--host-resolver-rules=MAP evil.example 127.0.0.1",
]


@pytest.fixture(scope="session")
def browser():
    playwright = pytest.importorskip("playwright.sync_api")
    if CHROMIUM is None:
        pytest.skip("chromium is not installed")
    with playwright.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=CHROMIUM, args=ARGUMENTS)
        yield browser
        browser.close()


@pytest.fixture
def page(browser):
    """A page that reports its errors: a test fails if there are any."""
    context = browser.new_context(viewport={"width": 1400, "height": 850})
    page = context.new_page()
    errors = []
    page.on("pageerror", lambda error: errors.append(str(error)))
    page.on("console", lambda message: errors.append(message.text) if message.type == "error" else None)
    page.problems = errors
    yield page
    context.close()


@pytest.fixture
def serve(tmp_path):
    """Return `serve(*arguments)`: start `hookpoint board` over tmp_path/runs, and return its address."""
    processes = []

    def start(*arguments):
        command = [sys.executable, "-m", "hookpoint", "board", "runs", "--port", "0", "--no-open", *arguments]
        environment = {**os.environ, "XDG_CACHE_HOME": str(tmp_path / "cache")}
        process = subprocess.Popen(command, cwd=tmp_path, env=environment, stdout=subprocess.PIPE, text=True)
        processes.append(process)
        url = process.stdout.readline().strip()
        assert url, "the board did not start"
        return urlsplit(url)

    yield start
    for process in processes:
        process.terminate()
        process.wait(60)
        process.stdout.close()


TRAINING = """
    import sys, time
    from hookpoint import Callback, Loop, ObjAttrParam
    from hookpoint import callbacks as cb

    class Settings(Callback):
        learning_rate = 0.5

        def on_setup(self, run):
            run.hyper.register(ObjAttrParam(self, "learning_rate"))

    settings = Settings()
    options = {"workdir": sys.argv[1], "extra_callbacks": [], "monitors": [cb.JSONWriter()], "log_every": 1}
    with Loop([cb.ModelSaver(), settings], **options) as run:
        for epoch in run.epochs(100_000):
            for batch in run.batches([1.0] * 50):
                time.sleep(0.02)
                run.log(loss=1.0 / run.current_iteration, rate=settings.learning_rate)
                if run.iteration == 1:
                    print("training", flush=True)
"""


@pytest.fixture
def training(tmp_path):
    """Start a training in tmp_path/runs that takes commands. Return its process."""

    @contextmanager
    def start(name="live"):
        command = [sys.executable, "-c", textwrap.dedent(TRAINING), str(tmp_path / "runs" / name)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
            try:
                assert process.stdout.readline() == "training\n"
                yield process
            finally:
                with suppress(OSError):
                    process.kill()

    return start
