"""Stand-ins for objects that a host manages itself: the loader, its position and the random state. See also HostStore."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from hookpoint.core.checkpoint.positions import Entered, Positions
from hookpoint.core.checkpoint.randomness import PlainRandomness
from hookpoint.core.data.data_graph import graph_of
from hookpoint.core.data.samples import length_of
from hookpoint.core.logger import logger


class HostLoader:
    """A stand-in for the loader of a pass whose batches come from a host. `total` is the number of batches, if known.

    `theirs` is the host's own loader, if known. This object stores only the classes and lengths of the loader and its datasets,
    to be written to `run.json`. It does not store the loader itself, because a reference would keep the loader's workers alive.
    """

    def __init__(self, total: int | None = None, theirs: Any = None) -> None:
        self._total = total
        try:
            self.graph = None if theirs is None else graph_of(theirs)
        except Exception as error:  # the user's loader or dataset may raise any error
            logger.warning("the data could not be described: %s", error)
            self.graph = None

    def __iter__(self) -> Iterator[Any]:
        return iter(())

    def __len__(self) -> int:
        if self._total is None:
            raise TypeError("the host did not give the number of batches")
        return self._total


class HostRandomState(PlainRandomness):
    """Random state that the host itself saves and restores."""

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None: ...


class HostPositions(Positions):
    """The position in the data, which the host itself restores."""

    def describe(self, loader: Any) -> dict[str, Any]:
        """Return facts about the host's own loader, or an empty dict if the host did not pass its loader."""
        if not isinstance(loader, HostLoader):
            return super().describe(loader)
        return {} if loader.graph is None else {"graph": loader.graph, "batches": length_of(loader)}

    def begin(self, loader: Iterable[Any], epoch: int) -> Iterator[Any]:
        return iter(loader)

    def state_dict(self, batches: int | None = None) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None: ...

    def resume(self, loader: Iterable[Any], epoch: int, batches: int, state: Mapping[str, Any]) -> Entered:
        return Entered(iter(loader), batches)

    resume_in_team = resume
