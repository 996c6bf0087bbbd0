"""RankPosts: what each process of a team knows of the others while they do not talk."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from hookpoint.core.hang.process_state import state_of_process

if TYPE_CHECKING:
    from hookpoint.core.team.team import Notes

UNKNOWN = {"count": 0, "waited": 0.0}
SILENT_LOOKS = 4  # without a new note, and a process counts as one that does not answer


class RankPosts:
    """Leave a note for the others at each look, and read theirs while this process waits.

    Only the lowest rank that waits and can answer reports.
    """

    def __init__(self, rank: int, notes: Notes) -> None:
        self._rank, self._notes = rank, notes
        self._host, self._count, self._waited = os.uname().nodename, 0, 0.0
        self._last: dict[int, Mapping[str, Any]] = {}
        self._silent: dict[int, int] = {}  # for how many looks a rank has not written a new note
        self._is_open = True

    def exchange(self, where: str, stack: list[str], waited: float, *, reads: bool) -> None:
        """Say where this process is; with `reads`, find out where the others are."""
        self._count, self._waited = self._count + 1, waited
        note = {"count": self._count, "host": self._host, "pid": os.getpid(), "where": where, "stack": stack, "waited": waited}
        self._is_open = self._notes.put(note)
        found = self._notes.read() if reads and self._is_open else []
        if not reads:
            self._last, self._silent = {}, {}
        for rank, said in enumerate(one or UNKNOWN for one in found):
            if rank != self._rank:
                is_new = rank not in self._last or said["count"] != self._last[rank]["count"]
                self._silent[rank] = 0 if is_new else self._silent[rank] + 1
                self._last[rank] = said

    def is_mine_to_report(self) -> bool:
        """Say whether no lower rank waits as well and can answer."""
        return not any(
            rank < self._rank and self._answers(rank) and note["waited"] > self._waited / 2 for rank, note in self._last.items()
        )

    def report(self) -> list[str]:
        """Return for each other process where it is, or that it does not answer."""
        if not self._is_open:
            return ["the store that the processes share does not answer: rank 0, which keeps it, may be stopped or gone"]
        return [line for rank, note in sorted(self._last.items()) for line in self._lines(rank, note)]

    def _lines(self, rank: int, note: Mapping[str, Any]) -> list[str]:
        if not note["count"]:
            return [f"rank {rank} has not begun its run"]
        who = f"rank {rank} (process {note['pid']} on {note['host']})"
        if self._answers(rank):
            return [f"{who} is {note['where']}, for {note['waited']:.0f} s, in", *(f"  {line}" for line in note["stack"])]
        state = state_of_process(note["pid"]) if note["host"] == self._host else "alive or not; it does not answer"
        return [f"{who} is {state}; it was last seen {note['where']}"]

    def _answers(self, rank: int) -> bool:
        return self._silent[rank] < SILENT_LOOKS
