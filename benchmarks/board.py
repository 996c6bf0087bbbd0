"""Measure the board in a real browser, with many runs and with a long file.

The benchmark measures the time until the first curve appears, the CPU time of an idle board, and the memory.

Chromium and the server run on the same machine. The time until the first curve is measured from the navigation until the page
has drawn a chart. "Cold" means that the server has just started, and "warm" means that the page is reloaded. Run the benchmark
with `make bench-board`; it needs Linux, chromium and playwright.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import random
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from report import Figure, machine, print_table, versions, write
from rounds import Spread

CHROMIUM = os.environ.get("CHROMIUM") or shutil.which("chromium") or "chromium"
ARGUMENTS = ["--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-component-update", "--disable-sync"]
TICKS = os.sysconf("SC_CLK_TCK")
MEGABYTE = 1e6
IDLE_SECONDS = 30.0
SPIKE = 9.0
WARM_LOADS = 3
PANNED_RUNS, PANNED_CHARTS, PANNED_STEPS = 5, 20, 2_000
PAN_VIEW = {"width": 2_560, "height": 1_500}  # large enough to show all charts
PAN = """async (seconds) => {
    const over = document.querySelector(".u-over"), gaps = [];
    const options = { deltaY: 0, bubbles: true, cancelable: true, clientX: over.getBoundingClientRect().left + 50 };
    let frames = 0, begin = 0, last = 0;
    const frame = (now, done) => {
        if (frames) gaps.push(now - last); else begin = now;
        last = now;
        frames++;
        over.dispatchEvent(new WheelEvent("wheel", { ...options, deltaX: frames % 120 < 60 ? 4 : -4 }));
        if (now - begin < seconds * 1000) requestAnimationFrame((next) => frame(next, done));
        else done(gaps);
    };
    return new Promise((done) => requestAnimationFrame((now) => frame(now, done)));
}"""


def write_run(folder: Path, number: int, lines: int) -> None:
    """Write a run that has ended, with 4 metrics."""
    folder.mkdir(parents=True)
    facts = {
        "format": 1,
        "name": folder.name,
        "status": "finished",
        "step": lines,
        "epoch": 3,
        "epochs": 3,
        "elapsed_seconds": 60.0,
    }
    started = f"2026-11-{1 + number % 17:02}T{number % 24:02}:{number % 60:02}:00+00:00"
    best = {"val_loss": {"value": 0.1 + number / 1e4, "step": lines, "mode": "min"}}
    config = {"learning_rate": 10.0 ** -(number % 5), "depth": number % 7}
    (folder / "run.json").write_text(json.dumps({**facts, "started": started, "best": best, "config": config}))
    noise = random.Random(number)
    with open(folder / "scalars.jsonl", "w") as file:
        for step in range(1, lines + 1):
            values = {"loss": math.exp(-step / 300) + noise.random() / 10, "accuracy": noise.random(), "learning_rate": 0.001}
            file.write(
                json.dumps({"step": step, "iteration": step, "epoch": 1, "time": 1.79e9 + step, "at": "step", **values}) + "\n"
            )


def write_long_run(folder: Path, lines: int) -> None:
    """Write a run with many lines and one spike, but no run.json."""
    folder.mkdir(parents=True)
    values = random.Random(0)
    with open(folder / "scalars.jsonl", "w") as file:
        for step in range(1, lines + 1):
            clocks = f'"step": {step}, "iteration": {step}, "epoch": {1 + step // 10_000}, "time": {1.79e9 + step / 100:.3f}'
            loss = SPIKE if step == lines // 3 else values.random()
            file.write(f'{{{clocks}, "at": "step", "loss": {loss:.6f}, "accuracy": {values.random():.6f}}}\n')


class Server:
    """A `hookpoint board` process, with its CPU time and memory."""

    def __init__(self, folder: Path, cache: Path) -> None:
        command = [sys.executable, "-m", "hookpoint", "board", str(folder), "--port", "0", "--no-open"]
        environment = {**os.environ, "XDG_CACHE_HOME": str(cache)}
        self.process = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        assert self.process.stdout is not None
        self.url = self.process.stdout.readline().strip()

    def cpu_seconds(self) -> float:
        fields = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / TICKS

    def index_cpu_seconds(self) -> float:
        """Return the CPU time of the processes that have built indexes."""
        fields = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[13]) + int(fields[14])) / TICKS

    def peak_bytes(self) -> int:
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        return int(status.split("VmHWM:")[1].split()[0]) * 1024

    def stop(self) -> None:
        self.process.terminate()
        self.process.wait()


@contextmanager
def serving(folder: Path, cache: Path) -> Iterator[Server]:
    server = Server(folder, cache)
    try:
        yield server
    finally:
        server.stop()


def first_curve(page: Any, url: str, selector: str = ".chart") -> float:
    """Return the seconds from the navigation to the first chart."""
    began = time.perf_counter()
    page.goto(url)
    page.wait_for_selector(selector)
    return time.perf_counter() - began


def measure_many(browser: Any, folder: Path, runs: int, rounds: int) -> list[Figure]:
    for number in range(runs):
        write_run(folder / "runs" / f"group-{number // 100}" / f"run-{number:04}", number, 300)
    cold, cold_cpu, warm, warm_cpu = [], [], [], []
    for turn in range(rounds):
        with serving(folder / "runs", folder / f"cache-{turn}") as server:
            page = browser.new_page()
            cold.append(first_curve(page, server.url))
            cold_cpu.append(server.cpu_seconds())
            before = server.cpu_seconds()
            warm += [first_curve(page, server.url) for _ in range(WARM_LOADS)]
            warm_cpu.append((server.cpu_seconds() - before) / WARM_LOADS)
            if turn == rounds - 1:
                page.wait_for_timeout(3_000)
                before, began = server.cpu_seconds(), time.monotonic()
                page.wait_for_timeout(IDLE_SECONDS * 1000)
                idle = 100 * (server.cpu_seconds() - before) / (time.monotonic() - began)
                peak = server.peak_bytes() / MEGABYTE
            page.close()
    return [
        Figure(f"{runs} runs: first curve, cold", "s", spread(cold), 2.0, digits=2),
        Figure(f"{runs} runs: first curve, warm", "s", spread(warm), 1.0, digits=2),
        Figure(f"{runs} runs: CPU time of the server until then, cold, with its start", "s", spread(cold_cpu), None, digits=2),
        Figure(f"{runs} runs: CPU time of the server until then, warm", "s", spread(warm_cpu), None, digits=2),
        Figure(f"{runs} runs: idle CPU with a page open", "%", Spread(idle, idle, idle), 1.0, digits=2),
        Figure(f"{runs} runs: peak memory of the server", "MB", Spread(peak, peak, peak), 200, digits=0),
    ]


def measure_long(browser: Any, folder: Path, lines: int) -> list[Figure]:
    write_long_run(folder / "long" / "mine", lines)
    with serving(folder / "long", folder / "cache") as server:
        page = browser.new_page()
        began = time.perf_counter()
        preview = first_curve(page, server.url)
        preview_cpu = server.cpu_seconds()
        page.wait_for_selector(f".chart[data-metric='loss'][data-exact='true'][data-high='{SPIKE:g}']", timeout=600_000)
        exact = time.perf_counter() - began
        index_cpu = server.index_cpu_seconds()
        again = first_curve(page, server.url, ".chart[data-exact='true']")
        key = page.locator("#runs tr[data-key]").first.get_attribute("data-key")
        zoom = page.evaluate(
            "async (url) => { const t = performance.now(); await (await fetch(url)).json(); return performance.now() - t; }",
            f"/api/run/{key}/series?name=loss&from={lines // 2}&to={lines // 2 + 2000}&px=800",
        )
        peak = server.peak_bytes() / MEGABYTE
        page.close()
    with serving(folder / "long", folder / "cache") as server:
        page = browser.new_page()
        cached = first_curve(page, server.url, f".chart[data-metric='loss'][data-exact='true'][data-high='{SPIKE:g}']")
        page.close()
    name = f"{lines / 1e6:g} million lines"
    return [
        Figure(f"{name}: first curve, a preview", "s", spread([preview]), 1.0, digits=2),
        Figure(f"{name}: CPU time of the server until then, with its start", "s", spread([preview_cpu]), None, digits=2),
        Figure(f"{name}: exact curve", "s", spread([exact]), 30.0, digits=1),
        Figure(f"{name}: CPU time of the index process", "s", spread([index_cpu]), None, digits=1),
        Figure(f"{name}: loaded again", "s", spread([again]), None, digits=2),
        Figure(f"{name}: exact curve of a new server", "s", spread([cached]), None, digits=2),
        Figure(f"{name}: zoom to 2000 steps", "ms", spread([zoom]), None, digits=0),
        Figure(f"{name}: peak memory of the server", "MB", spread([peak]), 200, digits=0),
    ]


def write_panned_runs(folder: Path) -> None:
    """Write runs in which all values differ, so that each pixel of a curve has a mean and a band."""
    for number in range(PANNED_RUNS):
        (folder / f"run-{number}").mkdir(parents=True)
        noise = random.Random(number)
        with open(folder / f"run-{number}" / "scalars.jsonl", "w") as file:
            for step in range(1, PANNED_STEPS + 1):
                values = {f"metric-{chart:02}": round(noise.random(), 4) for chart in range(PANNED_CHARTS)}
                clocks = {"step": step, "iteration": step, "epoch": 1, "time": 1.79e9 + step, "at": "step"}
                file.write(json.dumps({**clocks, **values}) + "\n")


def browser_cpu_seconds() -> float:
    """Return the CPU time of all browser processes. It does not depend on what else the machine is doing."""
    parents: dict[int, tuple[int, str, float]] = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            text = path.read_text()
        except OSError:
            continue  # the process has ended
        name, fields = text.partition("(")[2].rpartition(")")[0], text.rpartition(")")[2].split()
        parents[int(path.parent.name)] = int(fields[1]), name, (int(fields[11]) + int(fields[12])) / TICKS

    def is_ours(pid: int) -> bool:
        return pid == os.getpid() or (pid in parents and is_ours(parents[pid][0]))

    return sum(seconds for pid, (_, name, seconds) in parents.items() if "chrom" in name and is_ours(pid))


def measure_pan(browser: Any, folder: Path, seconds: float = 4.0) -> list[Figure]:
    """Zoom in on half of the run, and pan all charts with the wheel in each frame."""
    write_panned_runs(folder / "panned")
    with serving(folder / "panned", folder / "cache-panned") as server:
        page = browser.new_page(viewport=PAN_VIEW)
        page.goto(f"{server.url}#zoom=500~1500")
        page.wait_for_selector(
            f".chart[data-metric='metric-19'][data-exact='true'][data-lines='{PANNED_RUNS}'] canvas", timeout=120_000
        )
        assert page.locator(".chart canvas").count() == PANNED_CHARTS
        page.wait_for_timeout(1_500)
        idle = page.evaluate(PAN.replace("over.dispatchEvent", "void"), 1.0)
        before = browser_cpu_seconds()
        gaps = page.evaluate(PAN, seconds)
        cpu = 1000 * (browser_cpu_seconds() - before) / len(gaps)
        page.close()
    name = f"{PANNED_CHARTS} charts of {PANNED_RUNS} runs"
    rates = [1000 / gap for gap in gaps if gap > 0]
    rate, most = 1000 * len(gaps) / sum(gaps), 1000 * len(idle) / sum(idle)
    slowest = sorted(rates)[len(rates) // 20]
    return [
        Figure(
            f"{name}: frames per second while panning; from the slowest twentieth", "", Spread(rate, slowest, max(rates)), None
        ),
        Figure(f"{name}: CPU time of the browser per frame", "ms", spread([cpu]), None, digits=1),
        Figure(f"{name}: frames per second of the browser without panning", "", spread([most]), None),
    ]


def spread(values: list[float]) -> Spread:
    ordered = sorted(values)
    return Spread(ordered[len(ordered) // 2], ordered[0], ordered[-1])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=1_000, help="number of runs")
    parser.add_argument("--lines", type=int, default=5_000_000, help="lines in the long file; five million take 650 MB")
    parser.add_argument("--rounds", type=int, default=3, help="how many times to start a server")
    parser.add_argument("--quick", action="store_true", help="use only 50 runs and 200,000 lines, for rough figures")
    parser.add_argument("--pan", action="store_true", help="measure panning only")
    parser.add_argument("--no-write", action="store_true", help="do not write a file to benchmarks/results")
    options = parser.parse_args()
    from playwright.sync_api import sync_playwright

    runs, lines = (50, 200_000) if options.quick else (options.runs, options.lines)
    about: dict[str, Any] = {
        "versions": versions("hookpoint", "starlette", "uvicorn", "orjson", "playwright"),
        "machine": machine(),
        "runs": runs,
        "lines": lines,
        "load": os.getloadavg(),  # recorded because other programs on the machine make wall times longer
    }
    with TemporaryDirectory() as place, sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=CHROMIUM, args=ARGUMENTS)
        figures = measure_pan(browser, Path(place))
        if not options.pan:
            figures += [*measure_many(browser, Path(place), runs, options.rounds), *measure_long(browser, Path(place), lines)]
        browser.close()
    print_table("board", ["figure", "interval", "at most", "verdict"], [figure.cells() for figure in figures])
    if not options.no_write:
        path = write("board", "-pan" if options.pan else "", about, [], figures)
        print(f"\nwrote benchmarks/results/{path.name}")


if __name__ == "__main__":
    main()
