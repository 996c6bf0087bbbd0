"""EpochValues: what an epoch has logged, as one row."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from hookpoint.core.log.records import Record

EPOCH = "epoch"


class EpochValues:
    """Gather the scalars of records until their epoch ends: means of passes, and what was logged beside them.

    Of a value that came several times the last one counts. The means of log steps are left out. A metric that is called
    "epoch" gets a `values/` in front.
    """

    def __init__(self) -> None:
        self.gathered: dict[str, float] = {}

    def take(self, record: Record) -> tuple[int, dict[str, float]] | None:
        """Take in a record; where it ends an epoch, return the epoch's number and its values."""
        if record.kind == "scalars" and record.at != "step":
            self.gathered.update({_key(name): value for name, value in record.scalars().items()})
        elif record.kind == "event" and "epoch_end" in record.values:
            gathered, self.gathered = self.gathered, {}
            return record.epoch, gathered
        return None


def _key(name: str) -> str:
    return f"values/{name}" if name == EPOCH else name
