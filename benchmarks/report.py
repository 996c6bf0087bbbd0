"""Report: print a benchmark's results as tables, and write them to a dated file."""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, Literal

from rounds import Group, Spread, Timing

RESULTS = Path(__file__).parent / "results"


@dataclass(slots=True)
class Figure:
    """A figure, either a ratio ("x") or a value with a unit, and its limit, if it has one.

    The median must not exceed the limit. With `counts="low"`, the lower end of the confidence interval must not exceed it.
    """

    name: str
    unit: str
    value: Spread
    limit: float | None = None
    counts: Literal["median", "low"] = "median"
    digits: int | None = None

    @property
    def verdict(self) -> str:
        if self.limit is None:
            return ""
        return "ok" if getattr(self.value, self.counts) <= self.limit else "over"

    def cells(self) -> list[str]:
        digits = self.digits if self.digits is not None else 2 if self.unit in ("x", "us") else 1
        value, low, high = (f"{number:.{digits}f}" for number in (self.value.median, self.value.low, self.value.high))
        limit = "" if self.limit is None else f"{self.limit:g} {self.unit}"
        return [self.name, f"{value} {self.unit}".rstrip(), f"{low} to {high}", limit, self.verdict]


def print_table(title: str, heads: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """Print rows under a title. The first column is left-aligned, and the others are right-aligned."""
    print(f"\n{title:<50}" + "".join(f"{head:>16}" for head in heads))
    for name, *cells in rows:
        print((f"  {name:<48}" + "".join(f" {cell:>15}" for cell in cells)).rstrip())


def in_words(timing: Timing, *, digits: int = 0, per: float = 1) -> str:
    """Format the median and, in parentheses, the minimum, in units of `per` nanoseconds."""
    return f"{timing.spread.median / per:.{digits}f} ({timing.minimum / per:.{digits}f})"


def versions(*packages: str) -> dict[str, str | None]:
    """Return the versions of Python and of each package, or None for a package that is not installed."""
    found: dict[str, str | None] = {"python": platform.python_version()}
    for package in packages:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            found[package] = None
    if "hookpoint" in packages and found["hookpoint"] is None:  # hookpoint is on PYTHONPATH but not installed
        from hookpoint import __version__

        found["hookpoint"] = __version__
    return found


def machine() -> dict[str, Any]:
    """Describe the machine: what matters for measurements, but nothing that identifies its owner."""
    if sys.platform == "darwin":
        asked = subprocess.run(["sysctl", "-n", "machdep.cpu.brand_string"], capture_output=True, text=True, check=False)
        cpu, system = asked.stdout.strip(), f"macOS {platform.mac_ver()[0]}"
    else:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        cpu = next((line.split(":")[1].strip() for line in lines if line.startswith("model name")), "")
        system = platform.freedesktop_os_release().get("PRETTY_NAME", "Linux")
    return {"cpu": cpu or platform.machine(), "cores": os.cpu_count(), "system": system}


def write(
    name: str,
    suffix: str,
    about: Mapping[str, Any],
    groups: Iterable[Group],
    figures: Iterable[Figure],
    *,
    folder: Path | None = None,
) -> Path:
    """Write results to a dated file, by default in results/. A file with the same name is overwritten."""
    today = date.today().isoformat()
    result = {
        "benchmark": name,
        "date": today,
        **about,
        "timings_ns": {group.title: {one: _numbers(timing) for one, timing in group.timings.items()} for group in groups},
        "figures": [
            {
                "name": figure.name,
                "unit": figure.unit,
                **_rounded(figure.value),
                "limit": figure.limit,
                "verdict": figure.verdict or None,
            }
            for figure in figures
        ],
    }
    folder = RESULTS if folder is None else folder
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{name}-{today}-py{platform.python_version()}{suffix}.json"
    path.write_text(json.dumps(result, indent=1) + "\n")
    return path


def _numbers(timing: Timing) -> dict[str, float]:
    return {"minimum": round(timing.minimum, 2), **_rounded(timing.spread), "rounds": len(timing.rounds)}


def _rounded(spread: Spread) -> dict[str, float]:
    return {"median": round(spread.median, 3), "low": round(spread.low, 3), "high": round(spread.high, 3)}
