"""What belongs to a host and not to the loop that it drives: signals, steps, data, random numbers, checkpoints."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import PurePath
from typing import Any

from hookpoint.core.checkpoint.positions import Entered
from hookpoint.core.checkpoint.store import Checkpoint, Request, Resume, Saved
from hookpoint.core.run.run import Run
from hookpoint.core.schedule.clocks import Clocks


class HostSignals:
    """Ctrl-C and SIGTERM are for the host to handle."""

    caught: signal.Signals | None = None
    received: signal.Signals | None = None
    has_stopped = False
    is_leaving = False
    ask_save: Callable[[], None] | None = None

    def install(self) -> None: ...
    def restore(self) -> None: ...
    def take(self, received: signal.Signals) -> None: ...
    def interrupt(self, check: Any) -> None: ...

    def can_interrupt(self) -> bool:
        return False

    def ending(self) -> BaseException | None:
        return None


class HostSteps:
    """Optimizer steps that the host reports."""

    are_reported = True

    def __init__(self, run: Run, clocks: Clocks) -> None:
        self._run, self._clocks = run, clocks

    def install(self) -> None:
        self._begin = self._run.hooks.dispatch("on_step_begin", mode="train")
        self._end = self._run.hooks.dispatch("on_step_end", mode="train")

    def remove(self) -> None: ...

    def begin_step(self) -> None:
        if self._begin is not None:
            self._begin(self._run)

    def end_step(self) -> None:
        self._clocks.count_step()
        if self._end is not None:
            self._end(self._run)


class HostLoader:
    """The loader of a pass whose batches a host brings; it may know how many there will be."""

    def __init__(self, total: int | None = None) -> None:
        self._total = total

    def __iter__(self) -> Iterator[Any]:
        return iter(())

    def __len__(self) -> int:
        if self._total is None:
            raise TypeError("the host did not say how many batches there are")
        return self._total


class HostRandomState:
    """Random numbers that the host keeps, and puts back."""

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None: ...


class HostPositions:
    """The place in the data, which the host finds by itself."""

    def __init__(self, randomness: Any = None) -> None:
        self.remembers = False
        self.notes: list[str] = []

    def begin(self, loader: Iterable[Any], epoch: int) -> Iterator[Any]:
        return iter(loader)

    def visit(self, loader: Iterable[Any]) -> Iterator[Any]:
        return iter(loader)

    def state_dict(self, batches: int | None = None) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None: ...

    def resume(self, loader: Iterable[Any], epoch: int, batches: int, state: Mapping[str, Any]) -> Entered:
        return Entered(iter(loader), batches)

    resume_in_team = resume


class HostStore:
    """Checkpoints that the host writes; what a run resumes from is the state that the host had kept for it."""

    def __init__(self, write: Callable[[Sequence[str], int], Any] | None = None) -> None:
        self.found: Mapping[str, Any] | None = None
        self._write = write

    def join(self, team: Any) -> None: ...

    def open(self, resume: Resume, identity: Mapping[str, Any]) -> Checkpoint | None:
        return None if self.found is None else Checkpoint(PurePath("the host's checkpoint"), self.found)

    def check(self, state: Mapping[str, Any]) -> None: ...

    def save(self, state: Mapping[str, Any], *, step: int, tags: Sequence[str]) -> Any:
        return None if self._write is None else self._write(tags, step)

    def write(self, state: Mapping[str, Any], *, step: int, elapsed: float, request: Request) -> Saved | None:
        tags = list(request.tags)
        return Saved(self.save(state, step=step, tags=tags), step, tags)

    def collect(self, *, wait: bool = False) -> list[Saved]:
        return []

    def describe(self, facts: Mapping[str, Any]) -> None: ...

    def close(self) -> None: ...
