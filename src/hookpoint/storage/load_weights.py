"""load_weights: load the weights that a run has saved."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from hookpoint.core.checkpoint.plain_names import plain_state
from hookpoint.core.errors import CannotResume, DamagedCheckpoint
from hookpoint.storage._load_averages import averaged_weights
from hookpoint.storage.checkpoint.checkpoint_folder import (
    is_like_a_checkpoint,
    read_checkpoint,
    read_manifest,
    refuse_link,
    verified,
    verify_file,
)
from hookpoint.storage.checkpoint.layout import CHECKPOINTS, MANIFEST
from hookpoint.storage.checkpoint.load_shards import filled
from hookpoint.storage.disk import disk
from hookpoint.storage.workdir.catalog import places

WEIGHTS = "model.safetensors"


def load_weights(path: str | os.PathLike[str], *, averaged: bool | str = False) -> dict[str, Any]:
    """Return the weights in a checkpoint, a best-… folder, a workdir or a .safetensors file.

    The result maps names to tensors on the host, ready for `model.load_state_dict`; for more than one model, there is one
    mapping per model. For a workdir, the newest good checkpoint is used. Files with a manifest are verified first, and
    DamagedCheckpoint is raised if they have changed. With `averaged=True`, the result contains the averages of a callback
    instead of the trained weights. If more than one callback averages, pass its name.

    >>> import torch
    >>> from hookpoint.storage.checkpoint_store import CheckpointStore
    >>> store = CheckpointStore("runs/mine")
    >>> store.open("never", {})
    >>> path = store.save({"parts": {"model": torch.nn.Linear(2, 1).state_dict()}}, step=1, tags=["best-loss"])
    >>> store.close()
    >>> torch.nn.Linear(2, 1).load_state_dict(load_weights("runs/mine/checkpoints/best-loss"))
    <All keys matched successfully>
    """
    refuse_link(Path(path))
    given = Path(os.path.realpath(path))
    if disk.is_folder(given):
        folder = given if is_like_a_checkpoint(given) else _newest_good(given)
        return dict(plain_state(averaged_weights(folder, averaged) if averaged else _of_checkpoint(folder)))
    if disk.is_file(given) and averaged:
        raise CannotResume(f"{path} is a weights file without averages.", give="the checkpoint's folder")
    if disk.is_file(given):
        return dict(plain_state(_of_file(given)))
    raise CannotResume(f"{path} does not exist.", give="a workdir, a checkpoint, or a .safetensors file")


def _of_checkpoint(folder: Path) -> dict[str, Any]:
    manifest = read_manifest(folder)
    if WEIGHTS in manifest.files:  # without reading the optimizer state
        return _of_file(folder / WEIGHTS)
    model = filled(read_checkpoint(folder).state.get("parts", {}).get("model"), folder)
    if not isinstance(model, dict):
        raise CannotResume(f"{folder} contains no model weights.", give="the workdir of a run with a model")
    return dict(model)


def _of_file(file: Path) -> dict[str, Any]:
    from hookpoint.storage.checkpoint.weights_file import read_weights

    if disk.exists(file.parent / MANIFEST):
        manifest = read_manifest(file.parent)
        if file.name in manifest.files:
            verify_file(file.parent, file.name, manifest)
    try:
        return read_weights(file)
    except (OSError, MemoryError):
        raise
    except Exception as error:  # SafetensorError, or a header with unknown names
        raise CannotResume(f"{file} cannot be read: {error}", give="a file in the format of safetensors") from error


def _newest_good(given: Path) -> Path:
    workdir = given.parent if given.name == CHECKPOINTS else given
    problems = []
    for _, folder in reversed(places(workdir)):
        try:
            if not verified(folder).is_of_exception:
                return folder
        except DamagedCheckpoint as error:
            problems.append(str(error))
    raise CannotResume("\n  ".join([f"there is no good checkpoint in {given}.", *problems]))
