"""Set up an environment for another trainer and run the tests of its adapter there: python environment.py keras [--lowest].

`together` is an environment with several trainers, for the tests with callbacks of several libraries in one list.

An environment is small: it shares the packages of the development environment. Versions come from constraints.txt, or are the
lowest that pyproject.toml allows.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import tomllib
import venv
from pathlib import Path

ROOT = Path(__file__).parents[2]
CONSTRAINTS, PROJECT = ROOT / "constraints.txt", ROOT / "pyproject.toml"
TESTS = ["tests/adapters", "tests/architecture/test_docs.py"]
LOWEST_NEEDS = {"lightning": ["setuptools<81"]}  # an old release imports pkg_resources
SELECTED = "adapters or other-trainers"
# Several trainers in one environment, for tests of mixed lists. Everything else is tested per trainer.
COMBINED = {
    "together": (["keras", "lightning", "transformers"], ["tests/adapters/foreign_callbacks/test_several_libraries.py"])
}


def requirements(host: str, *, lowest: bool) -> list[str]:
    """Return the requirements of the extras for a trainer, with exact versions for the lowest."""
    extras = tomllib.loads(PROJECT.read_text())["project"]["optional-dependencies"]
    names, _ = COMBINED.get(host, ([host], TESTS))
    if not lowest:
        return [one for name in names for one in extras[name]]
    return [one for name in names for one in (*(one.replace(">=", "==") for one in extras[name]), *LOWEST_NEEDS.get(name, []))]


def environment(host: str, *, lowest: bool) -> Path:
    """Create the environment, unless it is up to date, and return its interpreter."""
    needed = requirements(host, lowest=lowest)
    folder = ROOT / ".venv-adapters" / (f"{host}-lowest" if lowest else host)
    python, stamp = folder / "bin" / "python", folder / ".stamp"
    digest = hashlib.sha256(repr([needed, "" if lowest else CONSTRAINTS.read_text(), sys.prefix]).encode()).hexdigest()
    if stamp.exists() and stamp.read_text() == digest:
        return python
    print(f"setting up {folder.relative_to(ROOT)} ...", flush=True)
    venv.create(folder, clear=True, with_pip=True)
    packages = Path("lib") / f"python{sys.version_info.major}.{sys.version_info.minor}" / "site-packages"
    (folder / packages / "development.pth").write_text(f"{ROOT / 'src'}\n{Path(sys.prefix) / packages}\n")
    pinned = [] if lowest else ["-c", str(CONSTRAINTS)]
    torch = next(line for line in CONSTRAINTS.read_text().splitlines() if line.startswith("torch=="))
    install = ["-m", "pip", "install", "-qq", "--no-compile", "--disable-pip-version-check", *pinned, torch, *needed]
    subprocess.run([python, *install], check=True)
    stamp.write_text(digest)
    return python


def main(host: str, *flags: str) -> int:
    python = environment(host, lowest="--lowest" in flags)
    _, tests = COMBINED.get(host, ([host], TESTS))
    selected = ["-m", "", "-k", SELECTED]
    variables = {**os.environ, "KERAS_BACKEND": "torch", "HF_HUB_OFFLINE": "1"}
    return subprocess.run([python, "-m", "pytest", *tests, *selected], cwd=ROOT, env=variables).returncode


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
