"""StoreNotes: notes of the processes for each other, in the store that torch.distributed meets in."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Mapping
from threading import Thread
from typing import Any

import torch.distributed as dist

SECONDS = 5.0  # a store whose process is stopped never answers
PREFIX = "hookpoint notes"

logger = logging.getLogger("hookpoint")


class StoreNotes:
    """Keep one note per rank, over a connection of its own. A store that once did not answer is not asked again."""

    def __init__(self, rank: int, size: int, store: Any) -> None:
        self._rank, self._size, self._store = rank, size, store

    @classmethod
    def in_default_store(cls, rank: int, size: int) -> StoreNotes | None:
        """Return notes in a store of torch.distributed; None where there is none, or none that can be opened once more."""
        try:
            shared = getattr(dist.distributed_c10d, "_get_default_store")()  # noqa: B009
            return cls(rank, size, dist.PrefixStore(PREFIX, shared.clone()))  # type: ignore[attr-defined]
        except Exception:  # hang reports are then those of each process alone
            logger.debug("processes cannot leave notes for each other", exc_info=True)
            return None

    def put(self, note: Mapping[str, Any]) -> bool:
        data = json.dumps(note)
        return self._asked(lambda: self._store.set(str(self._rank), data)) is not None

    def read(self) -> list[Mapping[str, Any] | None]:
        found = self._asked(self._read_all)
        return [None] * self._size if found is None else found[0]

    def _read_all(self) -> list[Mapping[str, Any] | None]:
        keys = [str(rank) for rank in range(self._size)]
        return [json.loads(self._store.get(key)) if self._store.check([key]) else None for key in keys]

    def _asked(self, ask: Callable[[], Any]) -> list[Any] | None:
        """Return the answer in a list, or None where there was none in time."""
        answers: list[Any] = []
        if self._store is None:
            return None

        def answer() -> None:
            try:
                answers.append(ask())
            except Exception:  # the store is gone, and so is the run
                pass

        thread = Thread(target=answer, name="hookpoint notes", daemon=True)
        thread.start()
        thread.join(SECONDS)
        if not answers:
            self._store = None
        return answers or None
