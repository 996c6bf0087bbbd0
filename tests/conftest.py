"""What every test runs under, and what the fault tests counted, printed under the results."""

from __future__ import annotations

import os
from collections import Counter

from hypothesis import settings

# The same examples each time, so that a change that passes once passes again. HYPOTHESIS_PROFILE=search looks for new ones.
settings.register_profile("same", derandomize=True)
settings.register_profile("search", derandomize=False)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "same"))


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
