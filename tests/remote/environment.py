"""Set up an environment with an S3 server and client, and run the tests of remote storage there: python environment.py.

The environment is small: it shares the packages of the development environment.
"""

from __future__ import annotations

import hashlib
import subprocess
import sys
import venv
from pathlib import Path

ROOT = Path(__file__).parents[2]
REQUIREMENTS = Path(__file__).with_name("requirements.txt")


def environment() -> Path:
    """Create the environment, unless it is up to date, and return its interpreter."""
    folder = ROOT / ".venv-remote"
    python, stamp = folder / "bin" / "python", folder / ".stamp"
    digest = hashlib.sha256(REQUIREMENTS.read_bytes() + sys.prefix.encode()).hexdigest()
    if stamp.exists() and stamp.read_text() == digest:
        return python
    print(f"setting up {folder.relative_to(ROOT)} ...", flush=True)
    venv.create(folder, clear=True, with_pip=True)
    packages = Path("lib") / f"python{sys.version_info.major}.{sys.version_info.minor}" / "site-packages"
    (folder / packages / "development.pth").write_text(f"{ROOT / 'src'}\n{Path(sys.prefix) / packages}\n")
    install = ["-m", "pip", "install", "-qq", "--no-compile", "--disable-pip-version-check", "-r", str(REQUIREMENTS)]
    subprocess.run([python, *install], check=True)
    stamp.write_text(digest)
    return python


if __name__ == "__main__":
    sys.exit(subprocess.run([environment(), "-m", "pytest", "-m", "", "tests/remote", *sys.argv[1:]], cwd=ROOT).returncode)
