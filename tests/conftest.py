"""What every test runs under, and what the fault tests counted, printed under the results."""

from __future__ import annotations

import os
import shutil
from collections import Counter
from pathlib import Path
from tempfile import mkdtemp

from hypothesis import settings

os.environ.setdefault("OMP_NUM_THREADS", "1")  # tensors here are tiny: more threads only make the workers wait for each other

# The same examples each time, so that a change that passes once passes again. HYPOTHESIS_PROFILE=search looks for new ones.
settings.register_profile("same", derandomize=True)
settings.register_profile("search", derandomize=False)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "same"))

MEMORY = Path("/dev/shm")  # tests write thousands of checkpoints, and syncing each to a disk takes half of their time
MEMORY_BYTES = 2 * 2**30


def pytest_configure(config):
    if config.option.basetemp is None and not hasattr(config, "workerinput") and _has_room(MEMORY):
        config.option.basetemp = mkdtemp(prefix="hookpoint-tests-", dir=MEMORY)
        config.add_cleanup(lambda: shutil.rmtree(config.option.basetemp, ignore_errors=True))


def _has_room(folder):
    return os.access(folder, os.W_OK) and shutil.disk_usage(folder).free > MEMORY_BYTES


def pytest_terminal_summary(terminalreporter):
    sums: dict[str, Counter[str]] = {}
    for reports in terminalreporter.stats.values():
        for report in reports:
            if getattr(report, "when", None) == "call":
                for name, counted in report.user_properties:
                    if name == "faults":
                        sums.setdefault(counted[0], Counter()).update(counted[1])
    if sums:
        terminalreporter.section("faults")
        for heading, counts in sorted(sums.items()):
            terminalreporter.line(
                f"{heading}: " + ", ".join(f"{number} {name.replace('_', ' ')}" for name, number in counts.items())
            )
