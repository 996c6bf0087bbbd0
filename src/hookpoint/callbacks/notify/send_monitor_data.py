"""SendMonitorData: tell someone, once all of several metrics have come."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from hookpoint.callbacks.notify._stat_sender import StatSender

if TYPE_CHECKING:
    from typing import Unpack

    from hookpoint.core.callback.callback import Options


class SendMonitorData(StatSender):
    """Do what SendStat does, but only when each of the metrics has a new value since the last time, as in tensorpack.

    So a message never mixes this epoch's values with older ones. Everything else is as in SendStat: no shell, a thread of its
    own, and no failure that ends or holds up a run.

    Triggered at the end of each complete epoch, unless `.when(...)` says otherwise. Reads `names`. Keeps what was sent last in
    the checkpoint. Runs on the chief. A step pays nothing, a trigger for reading the metrics, and the machine for the command.

    >>> SendMonitorData(["notify-send", "{loss:.3f} and {val_loss:.3f}"], ["loss", "val_loss"]).names
    ('loss', 'val_loss')
    """

    def __init__(
        self,
        command: str | Sequence[str] | None = None,
        names: str | Sequence[str] = (),
        *,
        url: str | Sequence[str] | None = None,
        shell: bool = False,
        timeout_seconds: float = 10,
        **options: Unpack[Options],
    ) -> None:
        super().__init__(command, names, url, shell, timeout_seconds, **options)

    def is_due(self, new: set[str]) -> bool:
        return new == set(self.names)
