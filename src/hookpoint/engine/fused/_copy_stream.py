"""CopyStream: copy batches to the GPU while the previous step runs."""

from __future__ import annotations

from typing import Any

import torch

from hookpoint.core.errors import BadData
from hookpoint.core.run.run import Run
from hookpoint.engine.data.as_loader import move
from hookpoint.engine.fused._static_batch import Signature, StaticBatch, is_on_host, signature_of


class CopyStream:
    """Move batches to the device. If a CUDA graph exists for a batch's shape, copy the batch to a staging buffer.

    The copy to the staging buffer runs on a separate stream.
    The step's stream waits for the copy, and the copy waits for the step that reads the previous batch. The CPU does not wait
    for the copy or the step. Copies overlap with a step only if the batch is in pinned memory, as with
    `DataLoader(..., pin_memory=True)`.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._run: Run | None = None
        self._stream: Any = None
        self._staging: dict[Signature, StaticBatch] = {}
        self._consumed: Any = None
        self._is_unread = False  # True after a copy to a staging buffer, until note_consumed is called

    def begin(self, run: Run) -> None:
        """Use staging buffers for the run's training batches until `end` is called."""
        self._run = run
        self._stream = torch.cuda.Stream(self._device)  # type: ignore[no-untyped-call]
        self._consumed = torch.cuda.Event()  # type: ignore[no-untyped-call]

    def end(self) -> None:
        self._stream, self._run, self._staging, self._is_unread = None, None, {}, False

    def stage(self, signature: Signature, batch: Any) -> Any:
        """Create the staging buffer for all batches with this signature, and return it."""
        self._staging[signature] = staging = StaticBatch(batch)
        return staging.batch

    def forget(self) -> None:
        """Free the staging buffers. Later batches are moved without staging."""
        self._staging = {}

    def note_consumed(self) -> None:
        """Record an event on the current stream. The next copy to a staging buffer waits for this event."""
        self._consumed.record()
        self._is_unread = False

    def __call__(self, batch: Any) -> Any:
        if self._run is None or self._run.mode != "train" or not self._staging or not is_on_host(batch):
            return move(batch, self._device)
        try:
            staging = self._staging.get(signature_of(batch))
        except BadData:  # the step will raise an error for this batch
            staging = None
        if staging is None:
            return move(batch, self._device)
        steps = torch.cuda.current_stream(self._device)
        if self._is_unread:  # a step that runs without a graph may still read the buffer
            self._stream.wait_stream(steps)
        else:
            self._stream.wait_event(self._consumed)
        self._is_unread = True
        with torch.cuda.stream(self._stream):
            staging.copy(batch)
        steps.wait_stream(self._stream)
        return staging.batch
