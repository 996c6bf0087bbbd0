"""SendMonitorData: send metrics once all of them have new values."""

from __future__ import annotations

from hookpoint.callbacks.notify.send_stat import SendStat


class SendMonitorData(SendStat):
    """Send metrics as SendStat does, but only after every metric has received a new value since the last message.

    A message therefore never mixes new and old values. tensorpack's SendMonitorData does the same. Everything else works as in
    SendStat.

    Triggered at the end of each complete epoch, unless `.when(...)` says otherwise.

    >>> SendMonitorData(["notify-send", "{loss:.3f} and {val_loss:.3f}"], ["loss", "val_loss"]).names
    ('loss', 'val_loss')
    """

    def is_due(self, new: set[str]) -> bool:
        return new == set(self.names)
