"""LoggedValues: adapt `run.log` to training steps that are captured in a CUDA graph and replayed."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NoReturn

import torch

from hookpoint.core.errors import BadValue
from hookpoint.core.log.logbook import Logbook
from hookpoint.core.log.monitors import Monitors
from hookpoint.core.log.records import Kind
from hookpoint.engine.data.as_loader import map_tensors


class LoggedValues:
    """Copy every logged tensor, because the next replay overwrites the original. During a capture, record the tensor instead.

    A tensor that the forward logs is recorded once, during the capture, and logged again after each replay. The forward cannot
    log Python numbers, because a replay does not run the code that computes them.
    """

    def __init__(self, logbook: Logbook, monitors: Monitors) -> None:
        self._logbook, self._monitors = logbook, monitors

    def begin(self, wait: Callable[[], None]) -> None:
        """Start copying logged tensors. `wait` makes the monitor threads' stream wait for the training stream."""
        logbook, monitors = self._logbook, self._monitors
        log_one, put_some, send = logbook.log, logbook.put, monitors.put

        def log(name: str, value: Any, weight: float, *, as_given: bool = False) -> None:
            log_one(name, _copy(value), weight, as_given=as_given)

        def put(values: Mapping[str, Any], weight: float) -> None:
            put_some({name: _copy(value) for name, value in values.items()}, weight)

        def put_record(kind: Kind, values: dict[str, Any], **options: Any) -> None:
            copied = values if kind == "scalars" else map_tensors(values, _copy)
            wait()
            send(kind, copied, **options)

        self.log_copy = log_one
        logbook.has_recent = False
        logbook.log, logbook.put, monitors.put = log, put, put_record  # type: ignore[method-assign]

    def end(self) -> None:
        self._logbook.has_recent = True
        for owner, name in ((self._logbook, "log"), (self._logbook, "put"), (self._monitors, "put")):
            vars(owner).pop(name, None)

    @contextmanager
    def recording(self) -> Iterator[list[tuple[str, torch.Tensor]]]:
        """Collect the tensors that are logged inside a `with` block instead of logging them."""
        recorded: list[tuple[str, torch.Tensor]] = []

        def record(name: str, value: Any, weight: float, *, as_given: bool = False) -> None:
            if not isinstance(value, torch.Tensor) or value.device.type == "cpu":
                kind = "a tensor on the CPU" if isinstance(value, torch.Tensor) else repr(value)
                raise BadValue(
                    f"'{name}' is {kind}: in a CUDA graph, the forward can log only tensors on the GPU.",
                    log="it in a callback at on_train_iter_end, or as a tensor on the GPU",
                )
            recorded.append((name, value.detach()))

        def refuse(*args: Any, **kwargs: Any) -> NoReturn:
            what = "in a CUDA graph, the forward can log only with run.log and hookpoint.log."
            raise BadValue(what, call="run.put_... in a callback at on_train_iter_end")

        logbook, monitors = self._logbook, self._monitors
        before = logbook.log, logbook.put, monitors.put
        logbook.log, logbook.put, monitors.put = record, refuse, refuse  # type: ignore[method-assign]
        try:
            yield recorded
        finally:
            logbook.log, logbook.put, monitors.put = before  # type: ignore[method-assign]


def _copy(value: Any) -> Any:
    return value.detach().clone() if isinstance(value, torch.Tensor) and value.is_cuda else value
