"""Count the system calls that the board's server makes while a run is in progress.

The calls are counted with no page open, with the page of another run open, and with the page of this run open. strace counts
all system calls of the server, the calls on the run's folder, and the calls that look up a path in this folder. Calls on the
folder are counted separately, because they are slow on shared storage. The run writes ten lines per second to scalars.jsonl, or
is paused. The page is open in chromium, and its requests are included. Needs Linux, strace, chromium and playwright.
"""

from __future__ import annotations

import argparse
import re
import signal
import subprocess
import sys
import textwrap
import time
from collections import Counter
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from board import ARGUMENTS, CHROMIUM, serving, write_run
from report import Figure, machine, print_table, versions, write
from rounds import Spread

SETTLE_SECONDS = 12.0  # after this time, the server has searched for runs twice
LOOKUPS = (
    "stat",
    "lstat",
    "newfstatat",
    "statx",
    "open",
    "openat",
    "access",
    "faccessat",
    "faccessat2",
    "readlink",
    "readlinkat",
)
TRAINING = """
    import sys, time
    from hookpoint import Loop
    from hookpoint import callbacks as cb

    with Loop([cb.ModelSaver()], workdir=sys.argv[1], extra_callbacks=[], monitors=[cb.JSONWriter()], log_every=1) as run:
        for epoch in run.epochs(1):
            for batch in run.batches(range(10**9)):
                time.sleep(0.1)
                run.log(loss=1.0 / run.current_iteration)
                if run.iteration == 1:
                    print("training", flush=True)
"""


def calls_of(pid: int, seconds: float, log: Path, folder: Path) -> Counter[str]:
    """Count a process's system calls per second: all calls, calls on a folder, and calls that look up a path in this folder."""
    command = ["strace", "-f", "-y", "-qq", "-s", "400", "-o", str(log), "-p", str(pid)]
    with subprocess.Popen(command) as strace:
        time.sleep(seconds)
        strace.send_signal(signal.SIGINT)
    counts: Counter[str] = Counter()
    for line in log.read_text(errors="replace").splitlines():
        found = re.match(r"\d+ +(\w+)\(", line)
        if not found:
            continue  # this line shows a signal, or the second part of an interrupted call
        counts["all"] += 1
        if str(folder) in line:
            counts["on the run's folder"] += 1
            counts["that look up a path in it"] += found[1] in LOOKUPS and "AT_EMPTY_PATH" not in line
    return Counter({name: count / seconds for name, count in counts.items()})  # type: ignore[misc]


def measure(folder: Path, seconds: float) -> list[Figure]:
    from playwright.sync_api import sync_playwright

    from hookpoint import control
    from hookpoint.board._run_table import key_of

    write_run(folder / "runs" / "other", 0, 100)
    run = folder / "runs" / "live"
    command = [sys.executable, "-c", textwrap.dedent(TRAINING), str(run)]
    figures: list[Figure] = []
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as training:
        try:
            assert training.stdout is not None
            assert training.stdout.readline() == "training\n"
            with serving(folder / "runs", folder / "cache") as server, sync_playwright() as driver:
                browser = driver.chromium.launch(executable_path=CHROMIUM, args=ARGUMENTS)

                def add(what: str) -> None:
                    time.sleep(SETTLE_SECONDS)
                    counts = calls_of(server.process.pid, seconds, folder / "strace.log", run)
                    for name in ("all", "on the run's folder", "that look up a path in it"):
                        count = counts[name]
                        figures.append(Figure(f"{what}: calls {name}", "/s", Spread(count, count, count)))

                add("no page")
                page = browser.new_page()
                other = key_of(folder / "runs" / "other")
                page.goto(f"{server.url}#runs={other}&run={other}")
                page.wait_for_selector(".chart")
                add("a page shows another run")
                page.goto(f"{server.url}#runs={key_of(run)}&run={key_of(run)}")
                page.wait_for_selector("#name:has-text('live')")
                add("a page shows the run")
                control(run).pause()
                add("a page shows the paused run")
                control(run).resume()
                browser.close()
        finally:
            training.kill()
    return figures


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=30.0, help="duration of each count, in seconds")
    parser.add_argument("--no-write", action="store_true", help="do not write a file to benchmarks/results")
    options = parser.parse_args()
    about: dict[str, Any] = {
        "versions": versions("hookpoint", "starlette", "uvicorn", "orjson", "playwright"),
        "machine": machine(),
        "seconds": options.seconds,
    }
    with TemporaryDirectory() as place:
        figures = measure(Path(place), options.seconds)
    print_table("board calls", ["figure", "interval", "at most", "verdict"], [figure.cells() for figure in figures])
    if not options.no_write:
        path = write("board-calls", "", about, [], figures)
        print(f"\nwrote benchmarks/results/{path.name}")


if __name__ == "__main__":
    main()
