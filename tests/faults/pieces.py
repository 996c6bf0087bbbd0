"""Pieces: a checkpoint without one piece of its state; `forget` is a task of `children`."""

from __future__ import annotations

import dataclasses
import shutil
import tempfile
from collections.abc import Mapping
from functools import reduce
from operator import getitem
from pathlib import Path
from typing import Any

import subject

from hookpoint import Callback, StopRun
from hookpoint.core.loop.services import machine_of
from hookpoint.storage.checkpoint.checkpoint_folder import write_checkpoint
from hookpoint.storage.workdir.find_checkpoint import newest_good

GONE = object()


def forget(workdir: str, trace: str, variant: dict[str, Any], piece: list[str]) -> None:
    """Rewrite the newest checkpoint with one piece reset to its initial value, and a matching manifest."""
    found = newest_good(Path(workdir))
    assert found is not None
    state = found.state
    if piece:
        *inner, last = piece
        initial: Any = beginning(subject.Variant(**variant))
        for key in piece:
            initial = initial.get(key, GONE) if isinstance(initial, Mapping) else GONE
        holder = reduce(getitem, inner, state)
        assert last in holder, f"the checkpoint has no {piece}"
        if initial is GONE:
            del holder[last]
        else:
            assert subject.digest(holder[last]) != subject.digest(initial), f"{piece} is as it was in the beginning"
            holder[last] = initial
    shutil.rmtree(found.path)
    write_checkpoint(found.path, state, lambda files: dataclasses.replace(found.manifest, files=files))


def beginning(variant: subject.Variant) -> dict[str, Any]:
    """Return the state of a run at its start."""
    taken: list[dict[str, Any]] = []

    class Takes(Callback):
        def on_run_begin(self, run: Any) -> None:
            taken.append(machine_of(run).saving.state())
            raise StopRun

    with tempfile.TemporaryDirectory() as folder:
        subject.train(f"{folder}/run", f"{folder}/trace", variant, more=[Takes()])
    return taken[0]
