"""load_info: return the values that a saver appended to a checkpoint."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from hookpoint.core.errors import CannotResume
from hookpoint.core.text.secrets import masked
from hookpoint.storage.checkpoint.checkpoint_folder import read_manifest
from hookpoint.storage.disk import disk
from hookpoint.storage.remote.remote_folder import is_url
from hookpoint.storage.workdir.find_checkpoint import folder_at, unreadable


def load_info(path: str | os.PathLike[str]) -> dict[str, Any]:
    """Return the values that a saver's `append_info` option added to a checkpoint.

    `path` is a checkpoint folder, a best-… folder, or a workdir. For a workdir, the newest checkpoint is read. The
    values are read from the manifest, so neither torch nor the key of an encrypted checkpoint is needed.

    >>> saver = callbacks.ModelCheckpoint(append_info=["epoch_num", {"team": "vision"}])
    >>> with Loop([saver], workdir="runs/mine") as run:
    ...     for epoch in run.epochs(2): pass
    >>> load_info("runs/mine/checkpoints/last")
    {'epoch_num': 2, 'team': 'vision'}
    """
    if is_url(os.fspath(path)):
        show = f"it with `hookpoint show {masked(os.fspath(path))}`"
        raise CannotResume(f"load_info reads local folders, got {masked(os.fspath(path))}.", read=show)
    try:
        if not disk.is_folder(Path(path), follow=True):
            raise CannotResume(f"there is no folder {path}.", give="a workdir or a checkpoint folder")
        return dict(read_manifest(folder_at(Path(path))).info)
    except CannotResume:
        raise
    except OSError as error:
        raise unreadable(Path(path), error) from error
