"""Evaluated weights: the weights that a Runner loads to validate or predict if it has not trained yet."""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from hookpoint.core.checkpoint.layer_versions import put_versions, versions_of
from hookpoint.core.checkpoint.stateful import load_state, state_of
from hookpoint.core.checkpoint.store import Resume
from hookpoint.core.errors import CannotResume
from hookpoint.core.logger import logger
from hookpoint.core.run.run import Run
from hookpoint.core.text.terminal import say
from hookpoint.parallel.checkpoint.collective_calls import on_all_ranks, on_chief
from hookpoint.storage import saved_weights
from hookpoint.storage.saved_weights import Gone
from hookpoint.storage.workdir.find_checkpoint import Found

ATTEMPTS = 50  # give up if the run deletes checkpoints faster than this process reads them
SECONDS_BETWEEN = 0.02


def load_evaluated_weights(run: Run, parts: Mapping[str, Any], workdir: Any, resume: Resume) -> None:
    """Load the weights that `resume` selects and print their path. All ranks load the same weights."""
    parts = {name: part for name, part in parts.items() if _has_weights(part)}
    if "model" not in parts:
        return
    found = _found(run, parts, None if workdir is None else Path(workdir), resume)
    if found is None:
        return
    for name, part in parts.items():
        if name in found.state["parts"]:
            _load(name, part, found)
        elif run.is_chief:
            logger.warning("%s has no state for '%s', which is left unchanged", found.path, name)
    clocks = found.manifest.clocks
    where = f"epoch {clocks.get('epoch', '?')}, step {found.manifest.step}"
    say(f'{run.name}: using the weights from {found.path} ({where}); pass resume="never" to keep the model\'s current weights')


def _found(run: Run, parts: Mapping[str, Any], workdir: Path | None, resume: Resume) -> Found | None:
    team = run.team
    for _ in range(ATTEMPTS):
        # The chief selects a checkpoint, and all ranks read it. If it is deleted before all ranks have read it, they try again.
        known = on_chief(team, lambda: _unless_gone(lambda: saved_weights.find(workdir, resume, parts)), _facts)
        if known is None:
            return None
        found = on_all_ranks(team, lambda known=known: _unless_gone(lambda: _completed(known, parts)))  # type: ignore[misc]
        if all(team.gather(isinstance(found, Found))):
            return found  # type: ignore[no-any-return]
        time.sleep(SECONDS_BETWEEN)
    what = f"the checkpoints in {workdir or resume} are deleted faster than they can be read."
    raise CannotResume(what, keep="more of them, with the saver's max_to_keep=")


def _completed(known: Any, parts: Mapping[str, Any]) -> Any:
    if isinstance(known, list):
        path, made = known
        known = saved_weights.read(Path(path), parts)
        if known.manifest.encoded().decode() != made:
            raise Gone(path)
    return saved_weights.complete(known, parts) if isinstance(known, Found) else known


def _unless_gone(work: Any) -> Any:
    try:
        return work()
    except Gone:
        return False


def _facts(found: Any) -> Any:
    return [str(found.path), found.manifest.encoded().decode()] if isinstance(found, Found) else found


def _load(name: str, part: Any, found: Found) -> None:
    try:
        load_state(part, _with_versions(part, found.state["parts"][name]))
    except Exception as error:
        raise CannotResume(
            f"the weights in {found.path} do not match this Runner's {name}: {error}",
            give="the model that was trained, or the workdir of its run",
            write='resume="never" to keep the current weights',
        ) from error


def _with_versions(part: Any, state: Any) -> Any:
    """Add the current module versions to weights that were read from a weights file, which does not store versions."""
    if not isinstance(part, torch.nn.Module) or versions_of(state) is not None:
        return state
    given: Any = OrderedDict(state)
    versions = versions_of(state_of(part))
    put_versions(given, OrderedDict() if versions is None else versions)
    return given


def _has_weights(part: Any) -> bool:
    if isinstance(part, Mapping | list | tuple):
        return any(map(_has_weights, part.values() if isinstance(part, Mapping) else part))
    return isinstance(part, torch.nn.Module) and bool(state_of(part))
