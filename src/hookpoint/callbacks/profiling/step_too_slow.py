"""StepTooSlow: the error that StepTimeout raises in the training thread."""

from __future__ import annotations

from hookpoint.core.errors import HookpointError


class StepTooSlow(HookpointError, TimeoutError):
    """A step took longer than a StepTimeout with `then="raise"` allows.

    >>> issubclass(StepTooSlow, TimeoutError)
    True
    """

    def __init__(self, words: str = "a step took longer than StepTimeout allows; the log contains the stacks") -> None:
        super().__init__(words)
