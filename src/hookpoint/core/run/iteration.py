"""Iteration: what lives from on_iter_begin to on_iter_end."""

from __future__ import annotations

from typing import Any, NoReturn

from hookpoint.core.errors import BadLoop, OutsideIteration


class Iteration:
    """This iteration's values and what was asked of it. One object serves a whole pass; `clear` drops every reference."""

    __slots__ = (
        "asked",
        "batch",
        "batch_idx",
        "has_ended",
        "loss",
        "outputs",
        "retry",
        "samples",
        "skipped",
        "skips_were_read",
        "targets",
    )

    def __init__(self) -> None:
        self.batch_idx = -1
        self.samples = 1
        self.begin_asking()
        self.clear()

    def clear(self) -> None:
        self.batch: Any = None
        self.outputs: Any = None
        self.loss: Any = None
        self.targets: Any = None
        self.has_ended = False
        if self.asked or self.skips_were_read:
            self.begin_asking()

    def begin_asking(self) -> None:
        """Forget what was asked of the last iteration."""
        self.asked = self.retry = self.skips_were_read = False
        self.skipped: frozenset[str] = frozenset()

    @property
    def is_off(self) -> bool:
        """Whether it is not to count: it is skipped as a whole, or tried again."""
        return self.retry or "batch" in self.skipped

    def ask_skip(self, what: str) -> None:
        self.refuse_if_ended(f"skip_{what}")
        self.skipped |= {what}
        self.asked = True

    def ask_retry(self) -> None:
        self.refuse_if_ended("retry")
        self.retry = self.asked = True

    def refuse_if_ended(self, verdict: str) -> None:
        """Say that a verdict comes too late, where it does."""
        if self.has_ended:
            raise BadLoop(f"run.{verdict}() comes too late: the iteration has ended.", ask="it before on_train_iter_end")


class NoIteration:
    """Stands where an iteration would: whoever reads or sets a value of it is told that there is none."""

    __slots__ = ()

    samples = 1
    skipped: frozenset[str] = frozenset()

    def __getattr__(self, name: str) -> NoReturn:
        raise OutsideIteration(name)

    def __setattr__(self, name: str, value: object) -> NoReturn:
        raise OutsideIteration(name)


NO_ITERATION: Any = NoIteration()
