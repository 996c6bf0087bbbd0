"""What every test runs under, and what the fault tests counted, printed under the results."""

from __future__ import annotations

import gc
import os
import shutil
from collections import Counter
from pathlib import Path
from tempfile import mkdtemp

import pytest
from hypothesis import settings

os.environ.setdefault("OMP_NUM_THREADS", "1")  # tensors here are tiny: more threads only make the workers wait for each other

# The same examples each time, so that a change that passes once passes again. HYPOTHESIS_PROFILE=search looks for new ones.
settings.register_profile("quick", derandomize=True, max_examples=20)
settings.register_profile("all", derandomize=True, max_examples=100)
settings.register_profile("search", derandomize=False, max_examples=100)

QUICK = "not slow"  # the -m of the default suite, in pyproject.toml

MEMORY = Path("/dev/shm")  # tests write thousands of checkpoints, and syncing each to a disk takes half of their time
MEMORY_BYTES = 2 * 2**30


def pytest_configure(config):
    settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "quick" if config.option.markexpr == QUICK else "all"))
    if config.option.basetemp is None and not hasattr(config, "workerinput") and _has_room(MEMORY):
        config.option.basetemp = mkdtemp(prefix="hookpoint-tests-", dir=MEMORY)
        config.add_cleanup(lambda: shutil.rmtree(config.option.basetemp, ignore_errors=True))


def _has_room(folder):
    return os.access(folder, os.W_OK) and shutil.disk_usage(folder).free > MEMORY_BYTES


@pytest.fixture
def spread(pytestconfig):
    """Return `spread(cases, number)`: so many of the cases, with the first and the last; all of them in `make test-all`."""

    def choose(cases, number):
        cases = list(cases)
        if pytestconfig.option.markexpr != QUICK or number >= len(cases):
            return cases
        return [cases[round(place * (len(cases) - 1) / (number - 1))] for place in range(number)]

    return choose


@pytest.fixture
def sample(pytestconfig):
    """Return `sample(some, everything)`: the first; the second in `make test-all`."""
    return lambda some, everything: some if pytestconfig.option.markexpr == QUICK else everything


def pytest_collection_finish(session):
    gc.freeze()  # torch leaves a million objects behind: no collection during a test has to look at them again


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
