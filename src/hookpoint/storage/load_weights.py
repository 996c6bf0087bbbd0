"""load_weights: load the weights that a run has saved."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hookpoint.core.checkpoint.plain_names import plain_state
from hookpoint.core.errors import CannotResume
from hookpoint.core.text.secrets import masked
from hookpoint.storage.checkpoint.checkpoint_folder import (
    is_like_a_checkpoint,
    read_checkpoint,
    read_manifest,
    refuse_link,
    verified,
    verify_file,
)
from hookpoint.storage.checkpoint.encryption import load_key, plain_source
from hookpoint.storage.checkpoint.layout import MANIFEST, WEIGHTS, workdir_of
from hookpoint.storage.checkpoint.load_shards import filled
from hookpoint.storage.checkpoint.state_files import unreadable_if_failing
from hookpoint.storage.checkpoint.tree import is_tensor, memory_of, named_tensors
from hookpoint.storage.disk import disk
from hookpoint.storage.lineage import lineage_of_weights, with_lineage
from hookpoint.storage.remote.remote_folder import is_url
from hookpoint.storage.workdir.find_checkpoint import search

AVERAGES = ("averages", "statistics")  # keys in the state of a callback that averages weights; "statistics" is for batch norm


def load_weights(
    path: str | os.PathLike[str], *, averaged: bool | str = False, key: str | os.PathLike[str] | None = None
) -> dict[str, Any]:
    """Return the weights in a checkpoint, a best-… folder, a workdir or a .safetensors file.

    The result is a dict of tensors on the host, ready for `model.load_state_dict`. With more than one model, it contains one
    such dict per model. For a workdir, the newest valid checkpoint is used. Files that a manifest lists are verified first. If
    a file has changed, DamagedCheckpoint is raised.

    With `averaged=True`, the result contains the averaged weights of a callback such as SwapEMAWeights, not the training
    weights. If more than one callback averages weights, pass the callback's name instead of True.

    The result also stores where the weights come from. `Runner(init_weights=...)` records this origin in run.json.

    `key` specifies the key for encrypted checkpoints: a file, or "env:NAME" for an environment variable.

    >>> import torch
    >>> from hookpoint.storage.checkpoint_store import CheckpointStore
    >>> store = CheckpointStore("runs/mine")
    >>> store.open("never", {})
    >>> path = store.save({"parts": {"model": torch.nn.Linear(2, 1).state_dict()}}, step=1, tags=["best-loss"])
    >>> store.close()
    >>> torch.nn.Linear(2, 1).load_state_dict(load_weights("runs/mine/checkpoints/best-loss"))
    <All keys matched successfully>
    """
    if key is not None:
        load_key(key, argument="key")
    if is_url(os.fspath(path)):
        raise CannotResume(f"load_weights reads local files, got {masked(os.fspath(path))}.", download="them first")
    refuse_link(Path(path))
    resolved = Path(os.path.realpath(path))
    if disk.is_folder(resolved):
        folder = resolved if is_like_a_checkpoint(resolved) else _newest_good(resolved)
        weights = plain_state(_averaged_weights(folder, averaged) if averaged else _read_checkpoint(folder))
        return with_lineage(weights, lineage_of_weights(folder, averaged))
    if disk.is_file(resolved) and averaged:
        raise CannotResume(f"{path} is a weights file and contains no averages.", give="the checkpoint's folder")
    if disk.is_file(resolved):
        return with_lineage(plain_state(_read_file(resolved)), lineage_of_weights(resolved, averaged))
    raise CannotResume(f"{path} does not exist.", give="a workdir, a checkpoint, or a .safetensors file")


def _read_checkpoint(folder: Path) -> dict[str, Any]:
    if WEIGHTS in read_manifest(folder).files:  # avoids reading the optimizer state
        return _read_file(folder / WEIGHTS)
    model = filled(read_checkpoint(folder).state.get("parts", {}).get("model"), folder)
    if not isinstance(model, dict):
        raise CannotResume(f"{folder} contains no model weights.", give="the workdir of a run with a model")
    return dict(model)


def _read_file(file: Path) -> dict[str, Any]:
    from hookpoint.storage.checkpoint.weights_file import read_weights

    source: Any = file
    if disk.exists(file.parent / MANIFEST):
        manifest = read_manifest(file.parent)
        if file.name in manifest.files:
            verify_file(file.parent, file.name, manifest)
            source = plain_source(file, manifest.encryption)
    with unreadable_if_failing(str(file), give="a .safetensors file"):
        return read_weights(source)


def _newest_good(path: Path) -> Path:
    def verify(folder: Path) -> Path:
        verified(folder)
        return folder

    folder, damaged = search(workdir_of(path), verify)
    if folder is None:
        raise CannotResume("\n  ".join([f"there is no good checkpoint in {path}.", *map(str, damaged.values())]))
    return folder


def _averaged_weights(folder: Path, callback: bool | str) -> dict[str, Any]:
    """Return the model's weights. The weights that a callback has averaged are replaced with its averages.

    `callback` is the callback's name, or True if only one callback averages weights.
    """
    state = read_checkpoint(folder).state
    states = {name: saved["state"] for name, saved in state.get("callbacks", {}).items() if "averages" in saved["state"]}
    names = list(states) if callback is True else [name for name in states if name == callback]
    if len(names) != 1:
        wanted = "averages" if callback is True else f"averages of {callback}"
        cure = {"name": f"one of {', '.join(states)}"} if states else {"leave": "averaged= out, or add SwapEMAWeights() to it"}
        raise CannotResume(f"{folder} has {'multiple' if len(names) > 1 else 'no'} {wanted}.", **cure)
    name = names[0]
    if not states[name]["averages"]:
        raise CannotResume(f"{folder} was saved before {name} started averaging.", give="a later checkpoint")
    # With pipeline stages, each rank has averaged its own layers. With replicas, the result is the mean over all ranks.
    others = [rank.get("callbacks", {}).get(name, {}).get("state", {}) for rank in state.get("ranks", ())[1:]]
    averages = [
        {weight: value for key in AVERAGES for weight, value in rank.get(key, {}).items()} for rank in (states[name], *others)
    ]
    model, averages = filled([state["parts"]["model"], averages], folder)
    weights = {weight for rank in averages for weight in rank}
    return _replaced(model, {weight: _mean([rank[weight] for rank in averages if weight in rank]) for weight in weights})


def _mean(values: list[Any]) -> Any:
    """Return the mean of floating-point tensors. For integer tensors, return the first one."""
    return sum(values) / len(values) if len(values) > 1 and values[0].is_floating_point() else values[0]


def _replaced(model: Mapping[str, Any], averages: Mapping[str, Any]) -> dict[str, Any]:
    """Replace weights with their averages, converted to the weights' dtypes. Tied weights stay tied."""
    tensors = dict(named_tensors(model))
    by_memory = {memory_of(tensors[name]): value.to(tensors[name].dtype) for name, value in averages.items() if name in tensors}

    def replaced(value: Any) -> Any:
        if isinstance(value, Mapping):
            return {key: replaced(inner) for key, inner in value.items()}
        return by_memory.get(memory_of(value), value) if is_tensor(value) and value.numel() else value

    result: dict[str, Any] = replaced(model)
    return result
