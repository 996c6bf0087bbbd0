"""Batches: the iterator a user's `for` gets for a pass."""

from __future__ import annotations

from typing import Any

from hookpoint.core.loop.passes import Pass


class Batches:
    """What a user's `for` runs over. When a `break` lets go of it, its pass is marked and closed by the next `run.*` call.

    A generator with a `finally` would close at once, but an error in a callback would then be lost.
    """

    __slots__ = ("_pass",)

    def __init__(self, one_pass: Pass) -> None:
        self._pass = one_pass

    def __iter__(self) -> Batches:
        return self

    def __next__(self) -> Any:
        return self._pass.advance()

    @property
    def results(self) -> dict[str, Any]:
        """What the pass has logged, once it is over: the means over it, by name."""
        return self._pass.results

    def __len__(self) -> int:
        return len(self._pass._loader)  # type: ignore[arg-type]

    def __del__(self) -> None:
        if self._pass.is_open:
            self._pass.abandoned = True
            self._pass._loop.abandoned = True
            self._pass._loop.leaving.leave(self._pass, has_failed=True)
