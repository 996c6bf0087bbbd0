"""RankPosts: notes in which each rank of a team writes its position in the run, for the other ranks to read."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from hookpoint.core.hang.process_state import state_of_process

UNKNOWN = {"count": 0, "waited": 0.0}
SILENT_LOOKS = 4  # after this many checks without a new note, a rank counts as unresponsive


class RankPosts:
    """Write a note for the other ranks at each check. While this rank waits, also read their notes.

    If several ranks wait, only one of them logs a report: the lowest rank that still responds.
    """

    def __init__(self, rank: int, notes: Any) -> None:
        self._rank, self._notes = rank, notes
        self._host, self._count, self._waited = os.uname().nodename, 0, 0.0
        self._last: dict[int, Mapping[str, Any]] = {}
        self._silent: dict[int, int] = {}  # maps a rank to its number of checks without a new note
        self._is_open = True

    def exchange(self, where: str, stack: list[str], waited: float, *, reads: bool) -> None:
        """Write a note with this rank's position and stack. With `reads`, also read the notes of the other ranks."""
        self._count, self._waited = self._count + 1, waited
        note = {"count": self._count, "host": self._host, "pid": os.getpid(), "where": where, "stack": stack, "waited": waited}
        self._is_open = self._notes.put(note)
        notes = self._notes.read() if reads and self._is_open else []
        if not reads:
            self._last, self._silent = {}, {}
        for rank, latest in enumerate(note or UNKNOWN for note in notes):
            if rank != self._rank:
                is_new = rank not in self._last or latest["count"] != self._last[rank]["count"]
                self._silent[rank] = 0 if is_new else self._silent[rank] + 1
                self._last[rank] = latest

    def is_mine_to_report(self) -> bool:
        """Return whether this rank logs the report. It does so unless a lower rank also waits and still responds."""
        lower = (rank for rank in self._last if rank < self._rank and self._answers(rank))
        return all(self._last[rank]["waited"] <= self._waited / 2 for rank in lower)

    def report(self) -> list[str]:
        """Return the lines of a report that says where each of the other ranks is, or that the rank does not respond."""
        if not self._is_open:
            return ["the process group's store does not answer: rank 0, which hosts the store, may have stopped or exited"]
        return [line for rank, note in sorted(self._last.items()) for line in self._lines(rank, note)]

    def _lines(self, rank: int, note: Mapping[str, Any]) -> list[str]:
        if not note["count"]:
            return [f"rank {rank} has not started its run"]
        who = f"rank {rank} (process {note['pid']} on {note['host']})"
        if self._answers(rank):
            return [f"{who} has been {note['where']} for {note['waited']:.0f} s, in", *(f"  {line}" for line in note["stack"])]
        state = state_of_process(note["pid"]) if note["host"] == self._host else "not responding"
        return [f"{who} is {state}; it was last seen {note['where']}"]

    def _answers(self, rank: int) -> bool:
        return self._silent[rank] < SILENT_LOOKS
