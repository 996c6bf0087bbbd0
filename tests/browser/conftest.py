"""Fixtures: Chromium, the board as a process, and a run that accepts commands. `make test-board` runs these tests."""

from __future__ import annotations

import json
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
def page(browser, serve, request):  # closed before the servers end
    """A page that records its errors and requests.

    After the test, no page of its context may have reported an error or sent a request to another server than the board,
    unless the test's module sets EXPECTS_PROBLEMS.
    """
    context = browser.new_context(viewport={"width": 1400, "height": 850})
    problems, requested = [], []
    context.on("weberror", lambda error: problems.append(str(error.error)))
    context.on("console", lambda message: problems.append(message.text) if message.type == "error" else None)
    context.on("request", lambda request: requested.append(urlsplit(request.url)))
    page = watched(context.new_page())
    yield page
    context.close()
    if not getattr(request.module, "EXPECTS_PROBLEMS", False):
        assert problems == []
        assert {one.netloc for one in requested if one.scheme not in ("data", "blob")} == {page.board}


@pytest.fixture
def phone(browser):
    """A page on a small touch screen."""
    context = browser.new_context(viewport={"width": 390, "height": 844}, has_touch=True)
    yield watched(context.new_page())
    context.close()


def watched(page):
    """Collect the errors of a page in `problems`, and the addresses of its requests in `requested`."""
    page.problems, page.requested, page.board = [], [], None
    page.on("pageerror", lambda error: page.problems.append(str(error)))
    page.on("console", lambda message: page.problems.append(message.text) if message.type == "error" else None)
    page.on("request", lambda request: page.requested.append(request.url))
    return page


@pytest.fixture
def opened():
    """Return `opened(page, url)`: open the board, and check for errors and requests to other servers."""

    def open_page(page, url, view=""):
        page.board = url.netloc
        page.goto(url.geturl() + (f"#{view}" if view else ""))
        page.wait_for_selector("body[data-ready='1']")
        assert page.problems == []
        assert {urlsplit(one).netloc for one in page.requested} == {url.netloc}
        return page

    return open_page


@pytest.fixture
def row():
    """Return `row(step, at, **values)`: a line of scalars.jsonl."""

    def line(step, at="step", **values):
        facts = {"step": step, "iteration": step, "epoch": 1, "time": 1.79e9 + step, "at": at}
        return json.dumps({**facts, **values}) + "\n"

    return line


@pytest.fixture
def write_run(tmp_path):
    """Return `write_run(name, lines, events, **facts)`: write a run to tmp_path/runs, and return its folder."""

    def write(name, lines, events=(), /, **facts):
        folder = tmp_path / "runs" / name
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "scalars.jsonl").write_text("".join(lines))
        if events:
            (folder / "events.jsonl").write_text("".join(json.dumps(event) + "\n" for event in events))
        if facts:
            (folder / "run.json").write_text(json.dumps({"format": 1, "status": "finished", **facts}))
        return folder

    return write


@pytest.fixture
def events_of(tmp_path):
    """Return `events_of(name)`: the events of a run."""

    def read(name):
        path = tmp_path / "runs" / name / "events.jsonl"
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []

    return read


@pytest.fixture
def serve(tmp_path):
    """Return `serve(*arguments)`: start `hookpoint board` over tmp_path/runs, and return its address."""
    processes = []

    def start(*arguments, port=0):
        (tmp_path / "runs").mkdir(exist_ok=True)
        command = [sys.executable, "-m", "hookpoint", "board", "runs", "--port", str(port), "--no-open", *arguments]
        environment = {**os.environ, "XDG_CACHE_HOME": str(tmp_path / "cache")}
        process = subprocess.Popen(command, cwd=tmp_path, env=environment, stdout=subprocess.PIPE, text=True)
        processes.append(process)
        url = process.stdout.readline().strip()
        assert url, "the board did not start"
        start.process = process
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

        def on_iter_begin(self):
            if "decay" in sys.argv:
                self.learning_rate *= 0.999

    settings = Settings()
    savers = [] if "no-saver" in sys.argv else [cb.ModelSaver()]
    options = {"workdir": sys.argv[1], "extra_callbacks": [], "monitors": [cb.JSONWriter()], "log_every": 1}
    with Loop([*savers, settings], **options) as run:
        for epoch in run.epochs(100_000):
            for batch in run.batches([1.0] * 50):
                time.sleep(0.02)
                run.log(loss=1.0 / run.current_iteration, rate=settings.learning_rate, learning_rate=settings.learning_rate)
                run.log(count=run.current_iteration)
                if run.iteration == 1:
                    print("training", flush=True)
"""


@pytest.fixture
def training(tmp_path):
    """Start a run in tmp_path/runs that accepts commands. Return its process.

    "decay" lowers the learning rate in each iteration, and "no-saver" leaves out the saver.
    """

    @contextmanager
    def start(name="live", *options):
        command = [sys.executable, "-c", textwrap.dedent(TRAINING), str(tmp_path / "runs" / name), *options]
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
            try:
                assert process.stdout.readline() == "training\n"
                yield process
            finally:
                with suppress(OSError):
                    process.kill()

    return start
