"""StoreNotes: let ranks leave notes for each other in torch.distributed's store."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from contextlib import suppress
from threading import Thread
from typing import Any

import torch.distributed as dist

from hookpoint.core.logger import logger

SECONDS = 5.0  # how long to wait for the store; a store in a suspended process never responds
PREFIX = "hookpoint notes"


class StoreNotes:
    """Write a note that other ranks can read, and read their notes.

    Ranks can write and read at any time and from any thread. They do not wait for each other. A request to the store waits at
    most `SECONDS` for a response.

    Each rank has one note. Requests use a separate connection to the store. If a request gets no response, no more requests
    are made.
    """

    def __init__(self, rank: int, size: int, store: Any) -> None:
        self._rank, self._size, self._store = rank, size, store

    @classmethod
    def in_default_store(cls, rank: int, size: int) -> StoreNotes | None:
        """Return a StoreNotes for torch.distributed's default store, or None if the store cannot be opened a second time."""
        try:
            shared = getattr(dist.distributed_c10d, "_get_default_store")()  # noqa: B009
            return cls(rank, size, dist.PrefixStore(PREFIX, shared.clone()))  # type: ignore[attr-defined]
        except Exception:  # without notes, each rank writes its own hang report
            logger.debug("ranks cannot leave notes for each other", exc_info=True)
            return None

    def put(self, note: Mapping[str, Any]) -> bool:
        """Replace this rank's note. Return whether this succeeded."""
        data = json.dumps(note)
        return self._request(lambda: self._store.set(str(self._rank), data)) is not None

    def read(self) -> list[Mapping[str, Any] | None]:
        """Return the newest note of every rank, in rank order."""
        found = self._request(self._read_all)
        return [None] * self._size if found is None else found[0]

    def _read_all(self) -> list[Mapping[str, Any] | None]:
        keys = [str(rank) for rank in range(self._size)]
        return [json.loads(self._store.get(key)) if self._store.check([key]) else None for key in keys]

    def _request(self, request: Callable[[], Any]) -> list[Any] | None:
        """Make a request to the store. Return a list with the result as its only item, or None if the request failed."""
        answers: list[Any] = []
        if self._store is None:
            return None

        def answer() -> None:
            with suppress(Exception):  # the store no longer exists, so the run has ended
                answers.append(request())

        thread = Thread(target=answer, name="hookpoint notes", daemon=True)
        thread.start()
        thread.join(SECONDS)
        if not answers:
            self._store = None
        return answers or None
