"""State bytes: convert a state to bytes, for checkpoints that another library writes."""

from __future__ import annotations

import hashlib
import io
from collections.abc import Mapping
from typing import Any

from hookpoint.core.errors import DamagedCheckpoint
from hookpoint.storage.checkpoint import state_files
from hookpoint.storage.checkpoint.snapshot import Snapshots

MAGIC = b"hookpoint-state-1"
KINDS = {b"pt": state_files.TORCH, b"json": state_files.JSON}


def packed(state: Mapping[str, Any]) -> bytes:
    """Convert a state without models to bytes: a header with a digest, followed by the content of state.pt or state.json.

    Raises NotSaveable if the state contains a value that cannot be restored later. The error names the first such value.
    """
    snapshot = Snapshots().take(state, outlives_the_call=False)
    ((name, write),) = state_files.files_of(snapshot)
    memory = io.BytesIO()
    write(memory)
    content = memory.getvalue()
    return b" ".join([MAGIC, name.rpartition(".")[2].encode(), hashlib.sha256(content).hexdigest().encode()]) + b"\n" + content


def unpacked(data: bytes, what: str) -> dict[str, Any]:
    """Return the state that `data` contains.

    Raises DamagedCheckpoint if the data is not a packed state, was altered, or is incomplete. `what` is the name of the data
    in the error message.
    """
    header, _, content = data.partition(b"\n")
    magic, _, facts = header.partition(b" ")
    kind, _, digest = facts.partition(b" ")
    if magic != MAGIC or kind not in KINDS:
        raise DamagedCheckpoint(f"{what} is not a hookpoint state.", use="the file that this version of hookpoint wrote")
    if hashlib.sha256(content).hexdigest().encode() != digest:
        raise DamagedCheckpoint(f"{what} differs from what was written.", use="an earlier checkpoint")
    with state_files.unreadable_if_failing(f"{what} is intact but"):
        state: dict[str, Any] = state_files.load(KINDS[kind], io.BytesIO(content))["state"]
    return state
