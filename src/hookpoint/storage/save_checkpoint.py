"""save_checkpoint: write a model's weights to one file, as in MindSpore."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hookpoint.core.checkpoint.plain_names import plain_state
from hookpoint.core.errors import NotSaveable
from hookpoint.storage.disk import disk


def save_checkpoint(save_obj: Any, ckpt_file_name: str | os.PathLike[str]) -> None:
    """Write a model's weights, or a state dict, to one safetensors file. `load_weights` reads this file.

    The file is written atomically and contains only weights. To save a checkpoint that a run can resume from, use
    `run.save("tag")`.

    >>> import torch
    >>> save_checkpoint(torch.nn.Linear(2, 1), "0.75.ckpt")
    >>> sorted(load_weights("0.75.ckpt"))
    ['bias', 'weight']
    """
    from hookpoint.storage.checkpoint.weights_file import is_writable, write_weights

    weights = save_obj if isinstance(save_obj, Mapping) else getattr(save_obj, "state_dict", dict)()
    weights = dict(plain_state(weights))
    if not weights or not is_writable(weights):
        got = type(save_obj).__name__
        raise NotSaveable(
            f"save_checkpoint: save_obj must be a model or a mapping of names to tensors, got {got}.", give="run.model"
        )
    with disk.replacing(Path(ckpt_file_name)) as new, new.open("xb") as stream:
        write_weights(weights, stream)
        stream.flush()
        os.fsync(stream.fileno())
