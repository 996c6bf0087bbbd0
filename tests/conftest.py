"""What the fault tests counted, printed under the results."""

from __future__ import annotations

from collections import Counter


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
