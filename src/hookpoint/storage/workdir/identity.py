"""Identity: compare the run that saved a checkpoint with the run that resumes from it."""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
from collections.abc import Mapping
from typing import Any, Literal, NamedTuple

from hookpoint._version import __version__
from hookpoint.storage.checkpoint.manifest import FORMAT

Verdict = Literal["fine", "warned", "refused"]

GIT_SECONDS = 2.0
GIT_HEAD = "# branch.oid "
GIT_NO_COMMIT = "(initial)"


# Explanations of differences: why the run cannot resume (REFUSED), or what changes if it resumes (WARNED).
REFUSED = {
    "format": "a newer release of hookpoint saved it in a format that this release cannot read",
    "world_size": "each rank has a shard of the data and the state",
    "model_size": "the groups of ranks that share samples differ",
    "layout": "each rank has different layers of the model",
    "copies": "the two runs synchronize the models of their ranks differently",
    "model": "its weights have different names, shapes or types",
    "optimizer": "only the same class can load its state",
    "optimizer_parameters": "its state is stored by position, and the order differs",
}
WARNED = {
    "seed": "the saved generators are restored; the new seed has no effect",
    "accumulate": "a step has a different number of batches",
    "precision": "results will differ",
    "device": "results may differ in the last bits",
    "cuda": "results may differ in the last bits",
    "torch": "results may differ in the last bits",
    "numpy": "its random numbers may differ",
}
FINE = frozenset({"hookpoint", "python", "platform", "git", "git_dirty"})
UNKNOWN = "the effect of this difference is unknown"


class Row(NamedTuple):
    """A fact that differs between the saved run and this run."""

    name: str
    saved: Any
    now: Any
    verdict: Verdict
    why: str = ""  # if given, the table shows this explanation instead of the one in REFUSED or WARNED


def collect(*, world_size: int, seed: int | None, **more: Any) -> dict[str, Any]:
    """Return the properties of this run, such as versions and the seed, that are compared when a checkpoint is resumed.

    All values are plain types. This function takes up to four seconds if git is slow.
    """
    identity: dict[str, Any] = {
        "format": FORMAT,
        "hookpoint": __version__,
        "python": platform.python_version(),
        "platform": platform.platform(),
        "world_size": world_size,
        "seed": seed,
    }
    if "numpy" in sys.modules:
        identity["numpy"] = sys.modules["numpy"].__version__
    return {**identity, **_revision(), **more}


def compare(saved: Mapping[str, Any], now: Mapping[str, Any]) -> list[Row]:
    """Return the differences between two runs, worst first.

    Different releases record different facts. If a fact was recorded for only one of the runs, its verdict is "fine".
    """
    rows = [Row(name, saved.get(name), now.get(name), _verdict(name, saved, now)) for name in {**now, **saved}]
    differing = [row for row in rows if _plain(row.saved) != _plain(row.now)]
    return sorted(differing, key=lambda row: ("refused", "warned", "fine").index(row.verdict))


def table(rows: list[Row]) -> str:
    """Format the rows as an aligned table with the columns "what", "saved", "now" and "verdict"."""
    lines = [("what", "saved", "now", "verdict")]
    for row in rows:
        why = row.why or ({**REFUSED, **WARNED}.get(row.name, UNKNOWN) if row.verdict != "fine" else "")
        verdict = f"{row.verdict}: {why}" if why else row.verdict
        lines.append((row.name.replace("_", " "), _shown(row.saved), _shown(row.now), verdict))
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return "\n".join("  ".join(map(str.ljust, line, widths)).rstrip() for line in lines)


def _verdict(name: str, saved: Mapping[str, Any], now: Mapping[str, Any]) -> Verdict:
    if name not in saved or name not in now:
        return "fine"
    if name == "format" and saved[name] in range(now[name]):  # this release can read older formats
        return "fine"
    return "refused" if name in REFUSED else "fine" if name in FINE else "warned"


def _plain(value: Any) -> Any:
    """Return a value as it would be if it were saved to a file and read back."""
    return json.loads(json.dumps(value, default=str))


def _shown(value: Any) -> str:
    return "-" if value is None else str(value)


def _revision() -> dict[str, Any]:
    """Return the git revision of the main script's repository, and whether tracked files have changed.

    Without git or a repository, the result is empty.
    """
    script = getattr(sys.modules.get("__main__"), "__file__", None)
    folder = (
        os.path.dirname(os.path.abspath(script)) if script else None
    )  # without a script, as in a notebook, git uses the current folder
    status = _git(folder, "status", "--porcelain=v2", "--branch", "--no-ahead-behind", "--untracked-files=no")
    if status is None:  # git may time out in a large repository
        revision = _git(folder, "rev-parse", "HEAD")
        return {"git": revision} if revision else {}
    lines = status.splitlines()
    revision = next((line.removeprefix(GIT_HEAD) for line in lines if line.startswith(GIT_HEAD)), GIT_NO_COMMIT)
    return {} if revision == GIT_NO_COMMIT else {"git": revision, "git_dirty": any(not line.startswith("#") for line in lines)}


def _git(folder: str | None, *command: str) -> str | None:
    """Run git and return its output, or None if it fails. The options keep git from writing its index or starting a daemon."""
    try:
        done = subprocess.run(
            ["git", "-c", "core.fsmonitor=false", *command],
            cwd=folder,
            env={**os.environ, "GIT_OPTIONAL_LOCKS": "0"},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            check=True,
            timeout=GIT_SECONDS,
        )
    except (OSError, ValueError, subprocess.SubprocessError):
        return None
    return done.stdout.decode(errors="replace").strip()
