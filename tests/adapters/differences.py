"""The known differences between the records of a host and of our Runner: one file per host in the folder differences/.

A file has one paragraph per script that differs. Its first lines name the script, the versions of the host and the reason;
the lines of the difference follow, in the format of `diff`.
"""

from __future__ import annotations

import difflib
from dataclasses import dataclass
from pathlib import Path

from packaging.specifiers import SpecifierSet

FOLDER = Path(__file__).with_name("differences")


@dataclass(frozen=True)
class Difference:
    """The rows that only our Runner has (-), and those that only the host has (+)."""

    script: str
    versions: SpecifierSet
    reason: str
    lines: tuple[str, ...]


def listed(host: str, version: str) -> dict[str, Difference]:
    """Return the listed differences of this version of a host, by the name of the script."""
    path = FOLDER / f"{host}.txt"
    paragraphs = path.read_text().split("\n\n") if path.exists() else []
    found = [parsed(paragraph) for paragraph in paragraphs if paragraph.strip()]
    return {one.script: one for one in found if one.versions.contains(version, prereleases=True)}


def parsed(paragraph: str) -> Difference:
    lines = paragraph.strip().splitlines()
    fields = dict(line.split(": ", 1) for line in lines if not line.startswith(("+", "-")))
    rows = tuple(line for line in lines if line.startswith(("+", "-")))
    return Difference(fields["script"], SpecifierSet(fields["versions"].replace("any", "")), fields["reason"], rows)


def difference(ours: list[tuple], theirs: list[tuple]) -> tuple[str, ...]:
    """Return the lines of `diff`, without equal lines."""
    texts = [[" ".join(map(str, row)) for row in rows] for rows in (ours, theirs)]
    lines = list(difflib.unified_diff(*texts, n=0, lineterm=""))[2:]
    return tuple(line for line in lines if not line.startswith("@@"))
