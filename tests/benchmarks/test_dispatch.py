"""The dispatch benchmark runs and prints its figures. The measured values are not tested: machines differ."""

import re
import subprocess
import sys
from pathlib import Path

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
PROMISED = (
    "unheard point in the loop / empty method call",
    "hooks.fire(name), unheard / empty method call",
    "10 handlers, run-only / bare loop",
    "10 handlers, by name / bare loop",
    "schedule of steps, not due, adds",
    "schedule of hours, not due, adds",
    "import hookpoint adds",
)


def run(*options: str) -> str:
    command = [sys.executable, str(BENCHMARKS / "dispatch.py"), *options]
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=250).stdout


def test_every_limit_is_printed_with_its_verdict_and_nothing_is_written() -> None:
    before = sorted((BENCHMARKS / "results").glob("*"))
    said = run("--quick", "--no-write")
    for name in PROMISED:
        line = next(line for line in said.splitlines() if line.strip().startswith(name))
        assert re.search(r"-?\d+\.\d+ (x|ns|ms) +-?\d+\.\d+ to -?\d+\.\d+ +[\d.]+ (x|ns|ms) +(ok|over)$", line), line
    fires = said[said.index("ns per fire") : said.index("a point nobody listens to")]
    for row in ("bare loop over bound methods", "in the loop, run-only", "in the loop, by name"):
        assert re.search(rf"{row}( +-?\d+ \(-?\d+\)){{4}}$", fires, re.MULTILINE), fires
    assert sorted((BENCHMARKS / "results").glob("*")) == before


def test_help_lists_the_options() -> None:
    said = run("--help")
    assert "--quick" in said
    assert "--no-write" in said
