"""The state of Keras's own callbacks. Keras does not save it, so this module saves the attributes that a resumed run needs.

It does not copy all attributes. EarlyStopping, for example, flips the sign of `min_delta` when it first reads its metric; in a
resumed run, it would flip a copied value a second time.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from hookpoint.adapters.foreign_callbacks._adopted import Adopted

COUNTERS = {
    "EarlyStopping": ("wait", "best", "best_epoch", "stopped_epoch"),
    "ReduceLROnPlateau": ("wait", "best", "cooldown_counter"),
    "ModelCheckpoint": ("best", "epochs_since_last_save", "_batches_seen_since_last_saving", "_last_batch_seen"),
}
WEIGHTS = {"EarlyStopping": "best_weights"}
APPENDS = "CSVLogger"


def state_of(callback: Adopted) -> dict[str, Any]:
    """Return the state of a Keras callback, as plain values and tensors."""
    theirs = callback.theirs
    if hasattr(theirs, "state_dict"):
        return {"state_dict": theirs.state_dict()}
    state: dict[str, Any] = {
        name: _plain(getattr(theirs, name)) for name in _names(callback, COUNTERS) if hasattr(theirs, name)
    }
    for name in _names(callback, {kind: (attribute,) for kind, attribute in WEIGHTS.items()}):
        if getattr(theirs, name, None) is not None:
            import torch

            state[name] = [torch.as_tensor(array) for array in getattr(theirs, name)]
    if callback.is_a(APPENDS) and os.path.exists(theirs.filename):
        state["size"] = os.path.getsize(theirs.filename)
    return state


def load_state(callback: Adopted, state: dict[str, Any]) -> None:
    """Restore the state that `state_of` returned. Call this after on_train_begin, which resets the callback."""
    theirs = callback.theirs
    if "state_dict" in state:
        theirs.load_state_dict(state["state_dict"])
        return
    if "best" in state and getattr(theirs, "monitor_op", ...) is None:
        # Older Keras versions choose min or max when they first read the metric, and then reset the best value. Make them
        # choose now, so that they do not reset the best value that is restored below.
        getattr(theirs, "_set_monitor_op", lambda: None)()
    for name, value in state.items():
        if name == "size":  # remove the rows written after the checkpoint, because the resumed run writes them again
            os.truncate(theirs.filename, min(value, os.path.getsize(theirs.filename)))
        else:
            setattr(theirs, name, [tensor.numpy() for tensor in value] if name in WEIGHTS.values() else value)


@contextmanager
def without_truncating(callback: Adopted, *, resuming: bool) -> Iterator[None]:
    """If the run resumes, make a CSVLogger append to its file instead of truncating it."""
    if not (resuming and callback.is_a(APPENDS)):
        yield
        return
    before, callback.theirs.append = callback.theirs.append, True
    try:
        yield
    finally:
        callback.theirs.append = before


def _names(callback: Adopted, table: dict[str, tuple[str, ...]]) -> tuple[str, ...]:
    return next((names for kind, names in table.items() if callback.is_a(kind)), ())


def _plain(value: Any) -> Any:
    return value if value is None or isinstance(value, bool | int | str) else float(value)
