"""Iteration: the values that exist from on_iter_begin to on_iter_end."""

from __future__ import annotations

from typing import Any, NoReturn

from hookpoint.core.errors import BadLoop, OutsideIteration

VALUES = ("batch", "batch_idx", "loss", "outputs", "samples", "targets")


class Iteration:
    """The values of one iteration, and requests to skip or retry it.

    A pass uses the same object for all its iterations. `clear` drops the references to the values.
    """

    __slots__ = (*VALUES, "has_ended", "has_requests", "is_sampled", "retry", "skipped", "skips_were_read")

    def __init__(self) -> None:
        self.batch_idx = -1
        self.samples = 1
        self.is_sampled = False  # whether hookpoint measures how long the callbacks take in this iteration
        self.reset_requests()
        self.clear()

    def clear(self) -> None:
        self.batch: Any = None
        self.outputs: Any = None
        self.loss: Any = None
        self.targets: Any = None
        self.has_ended = False
        if self.has_requests or self.skips_were_read:
            self.reset_requests()

    def reset_requests(self) -> None:
        """Clear the requests from the last iteration."""
        self.has_requests = self.retry = self.skips_were_read = False
        self.skipped: frozenset[str] = frozenset()

    @property
    def is_discarded(self) -> bool:
        """Whether the iteration does not count, because the whole batch is skipped or retried."""
        return self.retry or "batch" in self.skipped

    def request_skip(self, what: str) -> None:
        self.check_running(f"skip_{what}")
        if what not in self.skipped:
            self.skipped |= {what}
            self.has_requests, self.skips_were_read = True, False  # an earlier read did not see this request

    def request_retry(self) -> None:
        self.check_running("retry")
        self.retry = self.has_requests = True

    def check_running(self, verdict: str) -> None:
        """Raise BadLoop if the iteration has ended, because a verdict would be too late."""
        if self.has_ended:
            raise BadLoop(f"run.{verdict}() comes too late: the iteration has ended.", call="it before on_train_iter_end")


class NoIteration:
    """Takes the place of an `Iteration` while no iteration is running. Reading or setting a value raises OutsideIteration."""

    __slots__ = ()

    samples = 1
    is_sampled = False
    skipped: frozenset[str] = frozenset()

    def __getattr__(self, name: str) -> NoReturn:
        raise OutsideIteration(name)

    def __setattr__(self, name: str, value: object) -> NoReturn:
        raise OutsideIteration(name)


NO_ITERATION: Any = NoIteration()
