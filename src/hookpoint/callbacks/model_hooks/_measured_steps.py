"""MeasuredSteps: which steps are worth a measurement."""

from __future__ import annotations

from hookpoint.callbacks._shared.arguments import whole
from hookpoint.core.errors import BadLoop
from hookpoint.core.loop.services import machine_of
from hookpoint.core.run.run import Run


class MeasuredSteps:
    """Say whether the step that is under way is measured: every n-th, or without `every` those at which values are sent."""

    def __init__(self, owner: str, every: int | None) -> None:
        self.every = None if every is None else whole(owner, "every", every, least=1)

    def check(self, owner: str, run: Run) -> None:
        """Refuse to go by log steps where there are none."""
        if self.every is None and not machine_of(run).options.log_every:
            raise BadLoop(f"{owner} measures at log steps, and log_every=0 leaves none.", give=f"{owner}(every=100)")

    def has_next(self, run: Run) -> bool:
        """Say whether the step that comes next is measured, with accumulation for each batch of it."""
        step = run.step + 1
        return step >= machine_of(run).logbook.next_log_step if self.every is None else step % self.every == 0
