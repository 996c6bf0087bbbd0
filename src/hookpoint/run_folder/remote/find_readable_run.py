"""Find a run to read, in a local folder or in remote storage."""

from __future__ import annotations

import os

from hookpoint.run_folder.find_run import find_run
from hookpoint.run_folder.run_folder import RunFolder
from hookpoint.storage.remote.remote_folder import is_url


def find_readable_run(name: str) -> RunFolder:
    """Return the run at a path or a URL, or the run with this name under runs/."""
    if is_url(name) and not os.path.isdir(name):
        from hookpoint.run_folder.remote.remote_run import remote_run

        return remote_run(name)
    return find_run(name)
